# SPDX-License-Identifier: Apache-2.0
"""The table of outcomes as Markdown, and its place in a page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.every_call.trials import BROKEN, COLUMNS, MISSED, NEXT_RUN, RETRIED, UNNOTICED, Result

_COUNTED = (UNNOTICED, RETRIED, NEXT_RUN)


def markdown(results: Iterable[Result]) -> str:
    """Return the table: methods as rows, faults as columns, and in each cell the counts of outcomes."""
    cells: dict[tuple[str, str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        trial = result.trial
        cells[trial.job, trial.role, trial.method][trial.column][result.outcome] += 1
        totals[trial.column][result.outcome] += 1
    lines = [
        f"| request | {' | '.join(COLUMNS)} |",
        f"|---{'|---' * len(COLUMNS)}|",
        *(_line(f"{job}, {role}: `{method}`", columns) for (job, role, method), columns in sorted(cells.items())),
        _line("all", totals),
    ]
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """Return one sentence with the counts of all outcomes, and one with the errors that ended runs."""
    counts = Counter(result.outcome for result in results)
    errors = Counter(error for result in results for error in result.errors)
    seen = ", ".join(f"`{name}` {count} times" for name, count in sorted(errors.items())) or "none"
    missed = f", missed {counts[MISSED]}" if counts[MISSED] else ""
    return (
        f"{len(results)} trials: unnoticed {counts[UNNOTICED]}, retried {counts[RETRIED]}, next run "
        f"{counts[NEXT_RUN]}, broken {counts[BROKEN]}{missed}. Errors of tasks and runs: {seen}."
    )


def write(page: Path, name: str, text: str) -> None:
    """Replace what stands in `page` between the markers of `name`. Raise `ValueError` if it has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- every call: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        raise ValueError(f"{page} has no lines '<!-- every call: {name} -->' and '<!-- end -->'")
    page.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def _line(title: str, columns: dict[str, Counter[str]]) -> str:
    return f"| {title} | {' | '.join(_cell(columns.get(column)) for column in COLUMNS)} |"


def _cell(counts: Counter[str] | None) -> str:
    if counts is None:
        return "-"
    broken = f" **{counts[BROKEN]} broken**" if counts[BROKEN] else ""
    return "/".join(str(counts[outcome]) for outcome in _COUNTED) + broken
