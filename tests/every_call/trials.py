# SPDX-License-Identifier: Apache-2.0
"""The faults, and what follows from one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.every_call.hook import DRIVER, TASK
from tests.request_faults import ANSWERED, BEFORE, LATE, LOST, SENT, UNANSWERED

SOURCE, SINK = "source", "sink"

COLUMNS: Mapping[str, Sequence[str]] = {
    "request lost": [LOST],
    "reply lost": [UNANSWERED],
    "reply late": [LATE],
    "connection cut": [f"cut_{moment}" for moment in (BEFORE, SENT, ANSWERED)],
    "peer crashes before": [f"crash_{BEFORE}"],
    "peer crashes after": [f"crash_{ANSWERED}"],
    "worker killed": [f"kill_{moment}" for moment in (BEFORE, SENT, ANSWERED)],
    "driver killed": [f"kill_{moment}" for moment in (BEFORE, SENT, ANSWERED)],
}
"""The faults as users name them, and their variants: see `tests.request_faults.befall`."""

_KILLED = {"worker killed": TASK, "driver killed": DRIVER}  # the role that a column is for

# What follows from a fault. Each time all promises are checked.
UNNOTICED = "unnoticed"  # no error, and no request was repeated
RETRIED = "retried"  # requests were repeated; the query did not end
NEXT_RUN = "next run"  # the run of the query ended, and the next run continued
BROKEN = "broken"  # a promise was broken
MISSED = "missed"  # the query sent fewer requests than before, so the fault did not happen


@dataclass(frozen=True)
class Trial:
    """One fault at one request. `history` is what the engine of `job` plays. If nothing happens, it sends the requests
    of `expected`, counted by process and method."""

    job: str
    role: str
    method: str
    column: str
    how: str
    expected: Mapping[Any, int]
    history: Any

    def __str__(self) -> str:
        return f"{self.job}, {self.role}, {self.method}, {self.how}: {self.history.name}"


@dataclass(frozen=True)
class Result:
    """What followed from a trial. `errors` are the classes of errors that ended runs or tasks, `problem` the text of
    the broken promise."""

    trial: Trial
    outcome: str
    errors: Sequence[str] = ()
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.trial}: {self.outcome}\n{self.trial.history}\n{self.problem or ''}"


def faults_of(role: str) -> Iterator[tuple[str, str]]:
    """Yield column and variant of each fault that a request of `role` may meet."""
    for column, hows in COLUMNS.items():
        if _KILLED.get(column, role) == role:
            for how in hows:
                yield column, how


def outcome_of(calls: Mapping[Any, int], expected: Mapping[Any, int], *, is_ended: bool, is_repeated: bool) -> str:
    """Return the outcome if no promise was broken. `calls` are the requests of the trial, `expected` those without a
    fault, both counted by process and method."""
    if is_ended:
        return NEXT_RUN
    has_more = any(count > expected.get(kind, 0) for kind, count in calls.items())
    return RETRIED if is_repeated or has_more else UNNOTICED
