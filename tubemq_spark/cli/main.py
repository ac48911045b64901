# SPDX-License-Identifier: Apache-2.0
"""The entry point of `tubemq-spark`: run one command. Exit statuses:

0 success, 1 the work failed, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from tubemq_spark.errors import ConfigError, TubeMQError

INTERRUPTED = 130  # as in shells: 128 plus the number of the signal
INSTALL = "pip install 'tubemq-spark[cli]'"
NEEDED = ("typer", "rich", "numpy", "pyarrow")  # `doctor` reports what the workers' Python lacks, not its own


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the command line, and return its exit status."""
    try:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            print(f"tubemq-spark: the package {missing[0]} is not installed. Run: {INSTALL}", file=sys.stderr)
            return 1
        from tubemq_spark.cli.app import app  # slow, so here, where Ctrl-C is handled already

        app(list(sys.argv[1:] if arguments is None else arguments), prog_name="tubemq-spark")
        return 0
    except SystemExit as end:  # typer has printed the mistake, the help or nothing
        code = end.code if isinstance(end.code, int) else 0
        return _interrupted() if code == INTERRUPTED else code
    except TubeMQError as error:
        print(f"tubemq-spark: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # the reader of a pipe has ended, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        return 0


def _interrupted() -> int:
    print("tubemq-spark: interrupted", file=sys.stderr)
    return INTERRUPTED
