"""What is done about the holder of a partition, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tubemq_spark.client import clock as backoff
from tubemq_spark.client.consumer import claim_conflict as waiting
from tubemq_spark.client.consumer.claim_conflict import ClaimConflict
from tubemq_spark.errors import FencedError, PartitionOccupiedError
from tubemq_spark.protocol.claim_id import ClaimId, label_of

TASK = ClaimId("q", run=5, batch=5, task=5, attempt=5, stage=5, reader="5")
SIBLING = str(replace(TASK, stage=6, attempt=9, label=label_of("host-7", "app-1", "my report")))
NEWER_RUN = str(replace(TASK, run=6))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`now` moves with the pauses, which take no time."""
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(waiting, "time", fake)
    monkeypatch.setattr(backoff, "time", fake)
    return clock


def new_waiting() -> ClaimConflict:
    return ClaimConflict(TASK, "g", claim_timeout=45.0, retry_for=60.0)


def predecessors() -> Iterator[str]:
    for batch in range(5):
        for attempt in range(1_000_000):
            yield str(replace(TASK, batch=batch, attempt=attempt))


@pytest.mark.parametrize("newest", [False, True], ids=["the same", "ever newer ones"])
def test_a_broker_that_goes_on_naming_predecessors_ends_the_wait(clock: SimpleNamespace, newest: bool) -> None:
    waits, named = new_waiting(), predecessors()
    holder = next(named)

    def go_on() -> None:
        nonlocal holder
        for _ in range(1000):
            assert waits.meet("here", holder)
            waits.pause()
            holder = next(named) if newest else holder

    with pytest.raises(PartitionOccupiedError, match=r"was told \d+ times in 60 s to end such claims: s") as raised:
        go_on()
    assert raised.value.holder == holder
    assert 1060 <= clock.now < 1062


def test_the_first_predecessor_costs_no_time(clock: SimpleNamespace) -> None:
    waits = new_waiting()
    assert waits.meet("here", next(predecessors()))
    assert waits.meet("there", next(predecessors()))
    waits.pause()
    assert clock.now == 1000.0
    assert waits.is_unsure("here")


def test_a_sibling_is_waited_for_without_limit_and_named_once_a_minute(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    waits = new_waiting()
    while clock.now < 1000 + 3600:
        assert not waits.meet("here", SIBLING)
        before = clock.now
        waits.pause()
        assert 0.01 <= clock.now - before <= 0.5
    assert 58 <= len(caplog.records) <= 60
    said = caplog.records[0].getMessage()
    assert said.startswith("here: another scan of the same data reads the partition, spark_q_r5_b5_s6_p5_a9_n5_w")
    assert said.endswith("(of a Spark query on host-7, app-1, my-report); waiting for its end, for 10 s now")
    assert not waits.is_unsure("here")


@pytest.mark.parametrize(
    ("holder", "error", "words"),
    [
        ("java", PartitionOccupiedError, r"here: another consumer of group g holds .* for more than 45 s: java\. Stop"),
        (NEWER_RUN, FencedError, "a run of this query that began later, .* Check that the query does not run twice$"),
        (str(replace(TASK, reader="6")), PartitionOccupiedError, r"waits for itself; call cache\(\) on one side$"),
    ],
)
def test_others_are_waited_for_up_to_the_claim_timeout(
    clock: SimpleNamespace, holder: str, error: type[Exception], words: str
) -> None:
    waits = new_waiting()
    for _ in range(20):  # the time that siblings take does not count
        assert not waits.meet("here", SIBLING)
        clock.now += 60
    begun = clock.now

    def go_on() -> None:
        while True:
            assert not waits.meet("here", holder)
            waits.pause()

    with pytest.raises(error, match=words):
        go_on()
    assert begun + 45 <= clock.now < begun + 46
    assert waits.is_unsure("here")


def test_a_newer_run_that_took_a_claim_of_ours_is_not_waited_for() -> None:
    with pytest.raises(FencedError, match=r"here: a newer run of this query, spark_q_r6_.*, has taken the partition"):
        new_waiting().meet("here", NEWER_RUN, was_ours=True)


def test_a_holder_says_on_which_host_and_for_what_it_reads(clock: SimpleNamespace) -> None:
    waits = new_waiting()
    other = replace(TASK, query="r", label=label_of("host_3", "application_17_0001", "Nightly: copy", "clicks"))
    assert not waits.meet("here", str(other))
    clock.now += 46
    said = r"\(of a Spark query on host-3, application-17-0001, Nightly-copy, clicks\)\. Stop it"
    with pytest.raises(PartitionOccupiedError, match=said):
        waits.meet("here", str(other))
