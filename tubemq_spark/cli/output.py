# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: tables and progress bars on a terminal; plain columns, or JSON lines, elsewhere.

Much of it comes from peers: names, clients, messages. Characters that would command a terminal, or reorder its text,
are escaped here, in all forms of output.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

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


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, wraps: bool = True) -> Table:
    """Return a table without a frame; columns of numbers are right-aligned. Without `wraps`, long cells are cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        cells = [row[number] for row in rows]
        is_number = any(type(cell) is int for cell in cells) and all(
            type(cell) is int or cell is None for cell in cells
        )
        made.add_column(
            name, header_style="dim", justify="right" if is_number else "left",
            overflow="fold" if wraps else "ellipsis", no_wrap=not wraps,
        )  # fmt: skip
    for row in rows:
        made.add_row(*(Text(cell_text(cell)) for cell in row))
    return made


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: fitted to a terminal, or whole lines elsewhere."""
    out = console()
    if is_wide_terminal(out):
        out.print(table(columns, rows))
        return
    out.width = _WIDE
    with out.capture() as captured:
        out.print(table(columns, rows), end="")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)


def print_rows(rows: Sequence[Mapping[str, object]], columns: Mapping[str, str], *, as_json: bool) -> None:
    """Print rows as lines of JSON, or as a table; `columns` are names of cells by the heads of the table."""
    if as_json:
        print_json(*rows)
    else:
        print_table(list(columns), [[row[name] for name in columns.values()] for row in rows])
    if not rows:
        note("there is nothing to list")


def print_plan(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
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


def cell_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else escaped(",".join(map(str, value)) if isinstance(value, list) else str(value))


def note(text: str) -> None:
    """Print a line for people, which no program reads, to the standard error. Nothing depends on it."""
    with suppress(OSError):  # a reader of it who has ended must not end the command
        print(f"tubemq-spark: {escaped(text)}", file=sys.stderr, flush=True)


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
    with Progress(*columns, console=error, transient=True) as bar:
        task = bar.add_task(escaped(text), total=total)
        yield lambda count: bar.advance(task, count)
