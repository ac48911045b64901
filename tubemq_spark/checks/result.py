# SPDX-License-Identifier: Apache-2.0
"""The result of a check, and results as a table in plain text, for notebooks and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Final, Literal, NamedTuple, get_args

from tubemq_spark.peer_text import escaped

CheckState = Literal["ok", "warning", "failed"]

OK: Final = "ok"
FAILED: Final = "failed"

_LINE = "{:<7}  {:<12}  {:<20}  {:<32}  {}"  # all but the remedy


class CheckResult(NamedTuple):
    """One line of a report. `spark.createDataFrame` accepts a list of them.

    `check` is a stable name, such as `tls`; the functions that make results name theirs. `place` is where the check ran
    (`driver`, or `executor` and a host), `subject` what it is about, such as `broker 1 at host:8123`. `remedy` says
    what to do; it is empty only if `state` is `ok`.
    """

    state: CheckState
    check: str
    place: str
    subject: str
    detail: str
    remedy: str


def _result(state: CheckState, check: str, subject: str, detail: str, remedy: str = "") -> CheckResult:
    if state != OK and not remedy:
        raise ValueError(f"the result of check {check!r} is {state}: it needs a remedy")
    place = "driver"  # until `judge_reports` names that of a task
    return CheckResult(state, check, place, escaped(subject), escaped(detail), escaped(remedy))


ok = partial(_result, OK)
warning = partial(_result, "warning")
failed = partial(_result, FAILED)


def split_advice(error: Exception, otherwise: str) -> tuple[str, str]:
    """Return what an error of this package says, and what it advises: the part behind `; `, else behind the first
    sentence, else `otherwise`."""
    text = str(error)
    for separator in ("; ", ". "):
        problem, found, advice = text.partition(separator)
        if found and advice:
            return problem, advice
    return text, otherwise


def format_table(results: Iterable[CheckResult]) -> str:
    """Return one line for each result, and below it what to do if it is not `ok`. The last line counts the states."""
    shown = list(results)
    lines = [_LINE.format(*CheckResult._fields), _LINE.format(*("-" * len(head) for head in CheckResult._fields))]
    for result in shown:
        lines.append(_LINE.format(*result))
        if result.state != OK:
            lines.append(f"{'':9}what to do: {result.remedy}")
    return "\n".join([*lines, count_states(one.state for one in shown)])


def count_states(states: Iterable[CheckState]) -> str:
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state}" for state in get_args(CheckState))
