# SPDX-License-Identifier: Apache-2.0
"""What a visit token, and a task's time, tell about clocks."""

from __future__ import annotations

import pytest

from tubemq_spark.checks.clocks import check_other_clock, check_token_clock

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("age", "has_credentials", "state"),
    [
        (0, True, "ok"),
        (470, True, "ok"),
        (-1, True, "ok"),
        (-10, True, "warning"),
        (-30, False, "warning"),
        (-30, True, "failed"),
        (600, True, "warning"),
    ],
)
def test_a_token_is_not_from_the_future_nor_old(age: float, has_credentials: bool, state: str) -> None:
    result = check_token_clock(int((NOW - age) * 1000), NOW, has_credentials=has_credentials, subject="m:8715")
    assert result is not None
    assert (result.state, result.check) == (state, "clock")


def test_a_master_without_tokens_tells_nothing() -> None:
    assert check_token_clock(-2, NOW, has_credentials=True, subject="m:8715") is None


@pytest.mark.parametrize(
    ("theirs", "state", "words"),
    [
        (NOW + 5, "ok", "as the driver's"),
        (NOW - 1, "ok", "as the driver's"),
        (NOW + 40, "warning", "30 s ahead of"),
        (NOW - 30, "warning", "30 s behind"),
    ],
)
def test_a_task_runs_between_the_drivers_times(theirs: float, state: str, words: str) -> None:
    result = check_other_clock(theirs, NOW, NOW + 10, "a")
    assert result.state == state
    assert words in result.detail
