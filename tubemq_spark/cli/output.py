# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: tables and progress bars on a terminal; plain columns, or JSON lines, elsewhere.

Much of it comes from peers: names, clients, messages. Characters that would command a terminal, or reorder its text,
are escaped here, in all forms of output.
"""

from __future__ import annotations

import codecs
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tubemq_spark.cli.tables import Rows, fitted, whole
from tubemq_spark.cli.words import of_commands
from tubemq_spark.default_logging import DefaultLogHandler
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.peer_text import escaped

_NARROW = 60  # characters of a terminal's line; a narrower table would lose cells
_WIDE = 1_000_000  # characters of a line, for output that programs read

Advance = Callable[[int], None]
"""Adds to the number of what is done."""


def console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)


def is_wide_terminal(out: Console) -> bool:
    """Return True if tables can be fitted to it; elsewhere they are printed as whole lines."""
    return out.is_terminal and out.width >= _NARROW


def print_line(text: str) -> None:
    print(escaped(text), flush=True)


def print_json(*values: object) -> None:
    """Print one line of JSON for each value, and send them on."""
    for value in values:
        print(json_text(value))
    sys.stdout.flush()


def print_result(text: str, *values: object, as_json: bool = False) -> None:
    """Print what a command has done: `text`, or `values` as JSON. If that fails, the standard error says it."""
    try:
        print_json(*values) if as_json else print_line(text)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # a reader that has ended does not want it
            note(text)
        raise


def json_text(value: object) -> str:
    """Return one line of JSON without characters that `escaped` escapes, and without those that the output lacks."""
    is_unicode = codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")
    text = json.dumps(value, ensure_ascii=not is_unicode, default=str)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def confirm(question: str, *, err: bool = False, flag: str = "--yes") -> None:
    """Ask a person, and end the command unless the answer is yes. The `flag` answers, too."""
    if sys.stdin is None:
        raise ConfigError(f"the standard input is closed, so nobody can answer. Use {flag}")
    with _read_by_somebody(), redirect_stdout(sys.stderr if err else sys.stdout):  # `err` prints a blank to the latter
        typer.confirm(escaped(question), abort=True, err=err)


def print_table(columns: Sequence[str], rows: Rows, spare: Collection[str] = ()) -> None:
    """Print a table: on a terminal, if it is too wide, without columns of `spare`; elsewhere whole lines."""
    out = console()
    if is_wide_terminal(out) and (made := fitted(columns, rows, out.width, spare)) is not None:
        out.print(made.table)
        if made.note:
            note(made.note)
        return
    out.width = _WIDE
    with out.capture() as captured:
        out.print(whole(columns, rows), end="")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def print_rows(
    rows: Sequence[Mapping[str, object]], columns: Mapping[str, str], *, as_json: bool, spare: Collection[str] = ()
) -> None:
    """Print rows as lines of JSON, or as a table; `columns` are names of cells by the heads of the table. `spare` is as
    for `print_table`."""
    if as_json:
        print_json(*rows)
    else:
        print_table(list(columns), [[row[name] for name in columns.values()] for row in rows], spare)
    if not rows:
        note("there is nothing to list")


def print_plan(columns: Sequence[str], rows: Rows) -> None:
    """Print what a command will change."""
    with _read_by_somebody():
        print_table(columns, rows)


@contextmanager
def _read_by_somebody() -> Iterator[None]:
    """Raise `TubeMQError` if the reader of the output has ended: nothing changes unseen."""
    try:
        yield
    except BrokenPipeError:
        raise TubeMQError("nothing is changed: the output, which shows the changes, has no reader") from None


def note(text: str) -> None:
    """Print a line for people, which no program reads, to the standard error. Nothing depends on it."""
    with suppress(OSError):  # a reader of it who has ended must not end the command
        print(f"tubemq-spark: {escaped(of_commands(text))}", file=sys.stderr, flush=True)


class LogLines(DefaultLogHandler):
    """Prints warnings and errors of the connector as notes, if no other handler gets them."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.is_alone(record.name):
                note(f"{record.levelname.lower()}: {record.getMessage()}")
        except Exception:
            self.handleError(record)


@contextmanager
def progress(text: str, total: int | None = None, *, prints_lines: bool = False) -> Iterator[Advance]:
    """Show a progress bar on a terminal, and nothing elsewhere; without `total` the end is unknown.

    With `prints_lines` there is no bar if the command's lines go to the terminal, because they show the progress.
    """
    error = Console(stderr=True)
    if not error.is_terminal or (prints_lines and sys.stdout.isatty()):
        yield lambda count: None
        return
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), TimeElapsedColumn()]
    # Rich would print the standard output to the terminal, too: lines that go to a file or a pipe.
    with Progress(*columns, console=error, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(escaped(text), total=total)
        yield lambda count: bar.advance(task, count)
