# SPDX-License-Identifier: Apache-2.0
"""Output of the demo: tables that update in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tubemq_spark.cli.stream import Batch, Reading

_PLAIN_ROWS = 3  # printed of each batch, usually one of each partition
_LIVE_ROWS, _LIVE_BATCHES = 10, 6
_ROW = "  {:<9}  {:>6}  {:<11}  {:<16}  {:<12}  {}"
_COLUMNS = ("partition", "offset", "msg_type", "msg_time", "attributes", "value")
_OTHER_COLUMNS = 68  # characters that the frame and all columns but `value` take on a terminal
_NARROW, _TIME_COLUMN = 100, 18  # a terminal narrower than 100 characters leaves out the 18 of `msg_time`
_BAR = 24  # characters


class Display:
    """Shows batches as they arrive: the newest in a table on a terminal, all as lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = ""
        self._rows: deque[Reading] = deque(maxlen=_LIVE_ROWS)
        self._batches: deque[Batch] = deque(maxlen=_LIVE_BATCHES)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def status(self, text: str) -> None:
        """Show the current activity in one line, on a terminal only; the next status replaces it."""
        if self._live is not None and text != self._status:
            self._status = text
            self._redraw(self._live)

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, batch: Batch) -> None:
        if self._live is None:
            if not self._batches:
                self.print(_ROW.format(*_COLUMNS))
            for row in _sample(batch.rows, _PLAIN_ROWS):
                self.print(_ROW.format(*row))
            self.print(f"batch {batch.number}: {len(batch.rows)} rows in {batch.seconds:.2f} s, lag {batch.lag}")
            self._batches.append(batch)
            return
        self._rows.extend(_sample(batch.rows, _LIVE_ROWS))
        self._batches.append(batch)
        self._redraw(self._live)

    def _redraw(self, live: Live) -> None:
        status = Text(self._status, style="dim")
        if not self._batches:
            live.update(status, refresh=True)
            return
        rows = Panel(_newest(self._rows, self._console.width), title="rows", title_align="left")
        progress = Panel(_progress(self._batches), title="micro-batches", title_align="left")
        live.update(Group(rows, progress, status), refresh=True)


def _sample(rows: Sequence[Reading], count: int) -> list[Reading]:
    """Return `count` rows at equal distances, or all if there are fewer."""
    return [rows[number * len(rows) // count] for number in range(count)] if len(rows) > count else list(rows)


def _newest(rows: Iterable[Reading], width: int) -> Table:
    dropped = _COLUMNS.index("msg_time") if width < _NARROW else len(_COLUMNS)
    room = max(10, width - _OTHER_COLUMNS + (_TIME_COLUMN if width < _NARROW else 0))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in _without(_COLUMNS, dropped):
        justify: Literal["left", "right"] = "right" if name == "offset" else "left"
        most = room if name == "value" else None
        table.add_column(name, no_wrap=True, header_style="dim", justify=justify, max_width=most, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, _without(row, dropped)))
    return table


def _without(cells: Sequence[str], number: int) -> Sequence[str]:
    return [*cells[:number], *cells[number + 1 :]]


def _progress(batches: deque[Batch]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("batch", "rows", "seconds", "rows/s", "lag"):
        table.add_column(name, no_wrap=True, header_style="dim", justify="right")
    table.add_column("", no_wrap=True)
    most = max(batch.lag for batch in batches) or 1
    for batch in batches:
        rate = f"{len(batch.rows) / batch.seconds:.0f}" if batch.seconds else ""
        bar = Text("█" * round(_BAR * batch.lag / most), style="yellow")
        table.add_row(str(batch.number), str(len(batch.rows)), f"{batch.seconds:.2f}", rate, str(batch.lag), bar)
    return table
