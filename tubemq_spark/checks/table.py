# SPDX-License-Identifier: Apache-2.0
"""Results as a table in plain text, for notebooks and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tubemq_spark.checks.result import FAILED, OK, WARNING, CheckResult, CheckState

_HEADS = CheckResult._fields[:-1]
_MAX_WIDTH = 46  # of all columns but the last


def format_table(results: Iterable[CheckResult]) -> str:
    """Return one line for each result, and below it what to do if it is not `ok`. The last line counts the states."""
    shown = list(results)
    rows: list[tuple[str, ...]] = [_HEADS, *(one[:-1] for one in shown)]
    widths = [min(_MAX_WIDTH, max(len(row[column]) for row in rows)) for column in range(len(_HEADS) - 1)]
    lines = [_line(_HEADS, widths), _line(tuple("-" * len(head) for head in _HEADS), widths)]
    for result, row in zip(shown, rows[1:], strict=True):
        lines.append(_line(row, widths))
        if result.state != OK:
            lines.append(f"{'':<{widths[0]}}  what to do: {result.remedy}")
    return "\n".join([*lines, count_states(one.state for one in shown)])


def count_states(states: Iterable[CheckState]) -> str:
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state}" for state in (OK, WARNING, FAILED))


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False))
    return "  ".join((*padded, cells[-1]))
