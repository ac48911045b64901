# SPDX-License-Identifier: Apache-2.0
"""Which earlier attempts a task may have."""

from __future__ import annotations

import pytest

from tubemq_spark.sink.batch_plan import BatchPlan
from tubemq_spark.sink.batch_state import BatchState
from tubemq_spark.sink.deduplicator import EarlierAttempts, earlier_attempts
from tubemq_spark.sink.task_attempts import WriteTask


@pytest.mark.parametrize(
    ("attempt", "is_first", "committed", "earlier"),
    [
        (0, True, 7, EarlierAttempts.NONE),
        (0, True, None, EarlierAttempts.NONE),
        (0, False, 7, EarlierAttempts.IN_AN_EARLIER_RUN),
        (0, True, 8, EarlierAttempts.IN_AN_EARLIER_RUN),  # the sink has committed the batch, and Spark has not
        (1, True, 7, EarlierAttempts.IN_THIS_RUN),
        (1, False, 7, EarlierAttempts.IN_THIS_RUN),
        (1, True, 8, EarlierAttempts.IN_THIS_RUN),
    ],
)
def test_only_first_attempts_of_a_batch_that_is_planned_for_the_first_time_have_no_earlier_ones(
    attempt: int, is_first: bool, committed: int | None, earlier: EarlierAttempts
) -> None:
    plan = BatchPlan(BatchState("id", "query", committed), is_first, 0)
    assert earlier_attempts(WriteTask("query", 8, 0, attempt), plan) is earlier
