# SPDX-License-Identifier: Apache-2.0
"""The result of a check."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from tubemq_spark.peer_text import escaped

CheckState = Literal["ok", "warning", "failed"]

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"

DRIVER: Final = "driver"  # the place of results, until `judge_reports` names that of a task


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


def ok(check: str, subject: str, detail: str) -> CheckResult:
    return CheckResult(OK, check, DRIVER, escaped(subject), escaped(detail), "")


def warning(check: str, subject: str, detail: str, remedy: str) -> CheckResult:
    return _problem(WARNING, check, subject, detail, remedy)


def failed(check: str, subject: str, detail: str, remedy: str) -> CheckResult:
    return _problem(FAILED, check, subject, detail, remedy)


def _problem(state: CheckState, check: str, subject: str, detail: str, remedy: str) -> CheckResult:
    if not remedy:
        raise ValueError(f"the result of check {check!r} is {state}: it needs a remedy")
    return CheckResult(state, check, DRIVER, escaped(subject), escaped(detail), escaped(remedy))


def split_advice(error: Exception, otherwise: str) -> tuple[str, str]:
    """Return what an error of this package says, and what it advises: the part behind `; `, else behind the first
    sentence, else `otherwise`."""
    text = str(error)
    for separator in ("; ", ". "):
        problem, found, advice = text.partition(separator)
        if found and advice:
            return problem, advice
    return text, otherwise
