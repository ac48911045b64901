# SPDX-License-Identifier: Apache-2.0
"""The demo's output on terminals and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tubemq_spark.cli.demo import Batch, Display

FIXED = ("temperature", "2024-02-29 12:30", "site=harbour")
ROWS = [(f"1:{n % 3}", str(28 * n), *FIXED, f'{{"sensor": {n}, "celsius": 71.5}}') for n in range(30)]


def shown(width: int, *, terminal: bool, batches: list[Batch]) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, height=50, force_terminal=terminal, color_system=None, highlight=False, soft_wrap=True
    )
    display = Display(console)
    with display.live:
        for batch in batches:
            display.show(batch)
        display.status = "5 rows sent"
    display.print("the end")
    return file.getvalue()


BATCHES = [Batch(0, ROWS, lag=7, seconds=0.25), Batch(1, ROWS[:1], lag=0), Batch(2, [], lag=0, seconds=1.0)]


@pytest.mark.parametrize("width", [20, 79, 80, 99, 100, 200])
def test_output_is_plain_lines_without_a_terminal(width: int) -> None:
    lines = shown(width, terminal=False, batches=BATCHES).splitlines()
    assert [line for line in lines if line.startswith("batch")] == [
        "batch 0: 30 rows in 0.25 s, lag 7",
        "batch 1: 1 rows in 0.00 s, lag 0",
        "batch 2: 0 rows in 1.00 s, lag 0",
    ]
    assert lines[0].split() == ["partition", "offset", "msg_type", "msg_time", "attributes", "value"]
    assert '  1:0             0  temperature  2024-02-29 12:30  site=harbour  {"sensor": 0, "celsius": 71.5}' in lines
    assert lines[-1] == "the end"


@pytest.mark.parametrize("width", [20, 79, 80, 99, 100, 200])
def test_a_terminal_shows_rows_batches_and_status_within_its_width(width: int) -> None:
    text = shown(width, terminal=True, batches=BATCHES)
    assert "5 rows sent" in text
    assert "the end" in text
    assert max(len(line) for line in text.splitlines() if "│" in line) == width
    assert "…" not in text  # no cell is cut
    if width == 80:
        assert re.search(r"partition +offset +msg_type +value", text)
        assert re.search(r'│ 1:\d +\d+ +temperature +{"sensor": \d+, "celsius": 71.5} +│', text)
        assert "rows, without msg_time, attributes: the terminal is too narrow" in text
    if width >= 80:
        assert "micro-batches" in text
        assert "█" in text
    if width >= 100:  # whole rows
        assert '"celsius": 71.5}' in text
        assert "2024-02-29 12:30" in text


def test_a_terminal_shows_only_the_status_before_there_are_rows() -> None:
    text = shown(100, terminal=True, batches=[])
    assert ("5 rows sent" in text, "micro-batches" in text) == (True, False)
