# SPDX-License-Identifier: Apache-2.0
"""Tables without frames. A narrow terminal gets fewer columns, because an id that is cut is worth nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from tubemq_spark.peer_text import escaped

_GAP = 2  # characters between two columns

Rows = Sequence[Sequence[object]]


class Fitted(NamedTuple):
    """A table of some columns of the given ones, and the names of the others."""

    table: Table
    left_out: Sequence[str]

    @property
    def note(self) -> str:
        """What a person must know of the table, empty if it is whole."""
        names = ", ".join(self.left_out)
        return f"the terminal is too narrow for {names}: widen it, or use --json" if names else ""


def cell_text(value: object, separator: str = ",") -> str:
    """Return what a table shows of a value; `separator` is between the items of a list."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = separator.join(map(str, value)) if isinstance(value, list) else str(value)
    return "-" if value is None else escaped(text)


def whole(columns: Sequence[str], rows: Rows) -> Table:
    """Return a table that is as wide as its cells."""
    return _table(columns, rows, _wanted(columns, rows), ",")


def fitted(columns: Sequence[str], rows: Rows, width: int, spare: Collection[str] = ()) -> Fitted | None:
    """Return a table of at most `width` characters in which no cell is cut; None if there is none.

    Columns of `spare` are left out as needed, the first ones before the others. Lists and heads may have several lines.
    """
    least = _least(columns, rows)

    def is_too_wide(names: Collection[str]) -> bool:
        return sum(one + _GAP for name, one in zip(columns, least, strict=True) if name in names) - _GAP > width

    kept = dict.fromkeys(columns)
    gone = []
    for name in spare:
        if is_too_wide(kept):
            kept.pop(name)
            gone.append(name)
    if is_too_wide(kept):
        return None
    for name in reversed(gone):  # a wide one that went last may have made room for others
        if not is_too_wide([*kept, name]):
            kept[name] = None
    places = [place for place, name in enumerate(columns) if name in kept]
    names = [columns[place] for place in places]
    cells = [[row[place] for place in places] for row in rows]
    widths = [least[place] for place in places]
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    for number, wanted in enumerate(_wanted(names, cells)):
        more = min(room, wanted - widths[number])
        widths[number] += more
        room -= more
    return Fitted(_table(names, cells, widths, ", "), [name for name in columns if name not in kept])


def _wanted(columns: Sequence[str], rows: Rows) -> list[int]:
    """Return how wide the columns are if each cell has one line."""
    cells = [[cell_len(cell_text(cell, ", ")) for cell in row] for row in rows]
    return [max(column) for column in zip_longest([cell_len(name) for name in columns], *cells, fillvalue=0)]


def _least(columns: Sequence[str], rows: Rows) -> list[int]:
    """Return how wide the columns are at least: items of lists, and words of heads, are whole."""
    heads = [max(map(cell_len, name.split()), default=0) for name in columns]
    cells = [[_least_of(cell) for cell in row] for row in rows]
    return [max(column) for column in zip_longest(heads, *cells, fillvalue=0)]


def _least_of(cell: object) -> int:
    if isinstance(cell, list):
        return max((cell_len(cell_text(item)) + len(",") for item in cell), default=0)
    return cell_len(cell_text(cell))


def _table(columns: Sequence[str], rows: Rows, widths: Sequence[int], separator: str) -> Table:
    """Return a table of these widths; columns of numbers are right-aligned."""
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, (name, width) in enumerate(zip(columns, widths, strict=True)):
        cells = [row[number] for row in rows]
        is_number = any(type(cell) is int for cell in cells) and all(
            type(cell) is int or cell is None for cell in cells
        )
        made.add_column(
            name, header_style="dim", justify="right" if is_number else "left", overflow="fold", width=width or None
        )
    for row in rows:
        made.add_row(*(Text(cell_text(cell, separator)) for cell in row))
    return made
