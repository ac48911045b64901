"""The entry point of `tubemq-spark`: parse the arguments and run one command. Exit statuses:

0 success, 1 the work failed, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tubemq_spark.errors import ConfigError, TubeMQError

INTERRUPTED = 130  # as in shells: 128 plus the number of the signal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the command line, and return its exit status."""
    try:
        given = _parse(arguments)
        try:
            return int(given.run(given))
        except TubeMQError as error:
            print(f"tubemq-spark {given.command}: {error}", file=sys.stderr)
            return 2 if isinstance(error, ConfigError) else 1
    except SystemExit as end:  # argparse has printed the mistake or its help
        return 0 if end.code is None else int(end.code)
    except KeyboardInterrupt:
        print("tubemq-spark: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments. The slow imports are here, where `main` already handles Ctrl-C."""
    from importlib.metadata import version

    from tubemq_spark.cli import broker, demo

    parser = argparse.ArgumentParser(prog="tubemq-spark", description="Apache TubeMQ and Spark, from the command line.")
    parser.add_argument("--version", action="version", version=f"tubemq-spark {version('tubemq-spark')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in (demo, broker):
        command.add_to(commands)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:  # show the usage of the command rather than that of the program
        commands.choices.get(given.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    return given
