# SPDX-License-Identifier: Apache-2.0
"""Which holder of a partition is fenced, which is waited for, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.clocks import ManualClock
from tubemq_spark.client.consumer.claim_acquirer import ClaimConflict
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import FencedError, PartitionOccupiedError
from tubemq_spark.protocol.claim_id import ClaimId, label_of

TASK = ClaimId("q", run=5, batch=5, task=5, attempt=5, stage=5, reader="5")
SIBLING = str(replace(TASK, stage=6, attempt=9, label=label_of("host-7", "app-1", "my report")))
NEWER_RUN = str(replace(TASK, run=6))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def conflict(clock: ManualClock) -> ClaimConflict:
    return ClaimConflict(ClientSettings((), retry_for=60.0, clock=clock), "g", TASK, claim_timeout=45.0)


def test_the_wait_for_a_sibling_has_no_limit_and_is_logged_once_a_minute(
    conflict: ClaimConflict, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    while clock.now < 1000 + 3600:
        assert not conflict.must_fence("here", SIBLING)
        conflict.pause()
        assert 0.01 <= clock.pauses[-1] <= 0.5
    assert 58 <= len(caplog.records) <= 60
    text = caplog.records[0].getMessage()
    assert text.startswith("[claim-wait] here: another scan of the same data reads the partition, spark_q_r5_b5")
    assert text.endswith("(of a Spark query on host-7, app-1, my-report); this one has waited for it for 10 s")
    assert not conflict.is_doubtful("here")


@pytest.mark.parametrize(
    ("holder", "error", "words"),
    [
        ("java", PartitionOccupiedError, r"here: another consumer of group g holds .* for more than 45 s: java\. Stop"),
        (NEWER_RUN, FencedError, "a run of this query that began later, .* Check that the query does not run twice$"),
        (str(replace(TASK, reader="6")), PartitionOccupiedError, r"waits for itself; call cache\(\) on one side$"),
    ],
)
def test_the_wait_for_other_holders_ends_after_the_claim_timeout(
    conflict: ClaimConflict, clock: ManualClock, holder: str, error: type[Exception], words: str
) -> None:
    for _ in range(20):  # the time that siblings take does not count
        assert not conflict.must_fence("here", SIBLING)
        clock.advance(60)
    begun = clock.now

    def go_on() -> None:
        while True:
            assert not conflict.must_fence("here", holder)
            conflict.pause()

    with pytest.raises(error, match=words):
        go_on()
    assert begun + 45 <= clock.now < begun + 46
    assert conflict.is_doubtful("here")


def test_a_newer_run_that_took_our_claim_over_ends_the_wait_at_once(conflict: ClaimConflict) -> None:
    with pytest.raises(FencedError, match=r"here: a newer run of this query, spark_q_r6_.*, has taken the partition"):
        conflict.must_fence("here", NEWER_RUN, was_ours=True)


def test_the_error_names_the_holders_host_and_application(conflict: ClaimConflict, clock: ManualClock) -> None:
    other = replace(TASK, query="r", label=label_of("host_3", "application_17_0001", "Nightly: copy", "clicks"))
    assert not conflict.must_fence("here", str(other))
    clock.advance(46)
    words = r"\(of a Spark query on host-3, application-17-0001, Nightly-copy, clicks\)\. Stop it"
    with pytest.raises(PartitionOccupiedError, match=words):
        conflict.must_fence("here", str(other))
