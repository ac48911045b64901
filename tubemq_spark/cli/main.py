# SPDX-License-Identifier: Apache-2.0
"""The entry point of `tubemq-spark`: run one command. Exit statuses:

0 success, 1 the work failed, 2 wrong usage or a wrong name, such as an unknown topic, 130 Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec

import tubemq_spark
from tubemq_spark.cli.words import of_commands
from tubemq_spark.default_logging import DefaultLogHandler
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.peer_text import MAX_SHOWN, escaped, shown

INTERRUPTED = 130  # as in shells: 128 plus the number of the signal
INSTALL = "pip install 'tubemq-spark[cli]'"
_LONG_WORD = re.compile(rf"\S{{{MAX_SHOWN},}}")  # of what was typed; no word of an error is so long
NEEDED = ("typer", "rich", "numpy", "pyarrow")  # `doctor` reports what the workers' Python lacks, not its own


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the command line, and return its exit status.

    All errors end here, each with one line.
    """
    for descriptor in range(3):  # no file or socket may get the number of a closed stream, which Spark's JVM inherits
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False))
    # One that is ignored stays so: a script runs a command in the background.
    signals = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    atexit.register(_handle, signals, signal.SIG_IGN)  # as Python's very end lets a late signal kill the process
    with suppress(ValueError):  # outside of the main thread, which alone receives signals
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # which would leave claims and temporary folders behind
            signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        finally:  # a second Ctrl-C would interrupt the handling of the first
            _handle(signals, signal.SIG_IGN)
        status, problem = 0, ""
    except BaseException as error:
        status, problem = _outcome(error)
    if problem:
        with suppress(OSError):
            short = _LONG_WORD.sub(lambda found: shown(found[0]), problem)
            print(f"tubemq-spark: {escaped(short)}", file=sys.stderr)
    _handle(signals, lambda *_: os._exit(INTERRUPTED))  # as a pipe that nobody reads may keep this from ending
    try:
        sys.stdout.flush()
    except (AttributeError, OSError):  # it is closed, or the error above is that of this output
        _drop_output()
    return status


def _run(arguments: Sequence[str]) -> None:
    if sys.stdout is None:
        raise TubeMQError("the standard output is closed")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack characters
            stream.reconfigure(errors="backslashreplace")
    for argument in arguments:
        if any("\ud800" <= one <= "\udfff" for one in argument):  # how Python passes bytes that are not text
            raise ConfigError(f"the argument {argument!r} is not text in the locale's encoding")
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise TubeMQError(f"the package {missing[0]} is not installed. Run: {INSTALL}")
    from tubemq_spark.cli.app import app  # slow, so here, where Ctrl-C is handled already
    from tubemq_spark.cli.output import LogLines

    log = logging.getLogger(tubemq_spark.__name__)
    kept = log.handlers
    log.handlers = [LogLines(), *(one for one in kept if not isinstance(one, DefaultLogHandler))]
    try:
        app(list(arguments), prog_name="tubemq-spark")
    finally:
        log.handlers = kept


def _handle(signals: Iterable[signal.Signals], handler: Callable[..., object] | signal.Handlers) -> None:
    with suppress(ValueError):  # outside of the main thread
        for one in signals:
            signal.signal(one, handler)


def _outcome(error: BaseException) -> tuple[int, str]:
    """Return the exit status and the line for an error that has ended a command."""
    if isinstance(error, SystemExit):  # typer has printed the mistake, the help or nothing
        if isinstance(error.__context__, BrokenPipeError):
            return 0, ""
        code = error.code if isinstance(error.code, int) else 0
        if code == 1 and error.__context__ and isinstance(error.__context__.__context__, KeyboardInterrupt):
            return INTERRUPTED, ""  # at a question; typer has printed "Aborted!"
        return code, "interrupted" if code == INTERRUPTED else ""
    if isinstance(error, TubeMQError):
        return 2 if isinstance(error, ConfigError) else 1, of_commands(str(error))
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, BrokenPipeError):  # the reader of a pipe has ended, for example `head`
        return 0, ""
    if isinstance(error, OSError):
        has_no_folder = "No usable temporary directory" in str(error)  # the words of `tempfile`
        remedy = ". Set TMPDIR to a folder where files can be written" if has_no_folder else ""
        return 1, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "") + remedy
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of typer, for --install-completion
        return 1, "HOME is not set, and the system knows no home folder of this user"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return 1, f"internal error, please report it: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"


def _drop_output() -> None:
    """Let Python's own flush at the end find nothing to complain about."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
