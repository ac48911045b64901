"""What `tubemq-spark` is asked to do, and its exit statuses: 0 success, 1 the work failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tubemq_spark.cli import broker, demo
from tubemq_spark.errors import ConfigError, TubeMQError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of the command line; gives its exit status."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:  # argparse has said what is wrong, or shown its help
        return 0 if end.code is None else int(end.code)
    try:
        return int(given.run(given))
    except KeyboardInterrupt:
        print(f"tubemq-spark {given.command}: interrupted", file=sys.stderr)
        return 1
    except TubeMQError as error:
        print(f"tubemq-spark {given.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tubemq-spark", description="Apache TubeMQ and Spark, from the command line.")
    parser.add_argument("--version", action="version", version=f"tubemq-spark {version('tubemq-spark')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, broker):
        command.add_to(commands)
    return parser
