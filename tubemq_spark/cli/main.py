"""What `tubemq-spark` is asked to do, and its exit statuses.

0 success, 1 the work failed, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tubemq_spark.errors import ConfigError, TubeMQError

INTERRUPTED = 130  # as shells have it: 128 and the number of the signal


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of the command line; gives its exit status."""
    try:
        given = _parse(arguments)
        return _run(given)
    except SystemExit as end:  # argparse has said what is wrong, or shown its help
        return 0 if end.code is None else int(end.code)
    except KeyboardInterrupt:
        print("tubemq-spark: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(given: argparse.Namespace) -> int:
    try:
        return int(given.run(given))
    except TubeMQError as error:
        print(f"tubemq-spark {given.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """`SystemExit` when there is nothing to run. The imports take a moment, in which Ctrl-C is none the worse."""
    from importlib.metadata import version

    from tubemq_spark.cli import broker, demo

    parser = argparse.ArgumentParser(prog="tubemq-spark", description="Apache TubeMQ and Spark, from the command line.")
    parser.add_argument("--version", action="version", version=f"tubemq-spark {version('tubemq-spark')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in (demo, broker):
        command.add_to(commands)
    given, unknown = parser.parse_known_args(arguments)
    if unknown:  # the command's own usage helps more than the program's
        commands.choices.get(given.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    return given
