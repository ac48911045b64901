# SPDX-License-Identifier: Apache-2.0
"""What the planner refuses, how often it asks, and what it plans; tests/simulation proves that the plans are right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.counting import TOPIC, cluster, counted, send_to_all, streaming
from tests.without_spark.query import GROUP, options
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.bound import Bound
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.truncation_check import Checked, StoreChangedError, TruncationCheck
from tubemq_spark.testing import EmbeddedTubeMQ

A, B = Partition(1, "t", 0), Partition(1, "u", 0)
ENDS = {A: 280, B: 56}
NewPlanner = Callable[..., MicroBatchPlanner]


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"t": 1, "u": 1}) as cluster:
        for number in range(12):
            cluster.send("t" if number < 10 else "u", b"%d" % number)
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture
def new_planner(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> Iterator[NewPlanner]:
    """Create the planner of a run. By default it begins at the earliest and asks the brokers each time."""
    planners = []

    def create(**given: Any) -> MicroBatchPlanner:
        planners.append(MicroBatchPlanner(replace(options(tubemq, "t", "u", clock=skipping_clock), **given)))
        return planners[-1]

    yield create
    for planner in planners:
        planner.stop()  # also those that a test has stopped


def test_second_scan_of_a_batch_gets_the_first_plan(tubemq: EmbeddedTubeMQ, new_planner: NewPlanner) -> None:
    """Spark calls `plan` for each scan. Tasks of the first scan may be reading, so the second plan claims nothing."""
    planner = new_planner(commit_offsets=False)
    start = planner.initial()
    end = planner.latest(start)
    first, holders = planner.plan(start, end), tubemq.claims()
    with tubemq.on("partition_register").count() as claims:
        assert planner.plan(start, end) == first != []
    assert (claims.fired, tubemq.claims()) == (0, holders)
    tubemq.send("t", b"new")
    assert planner.plan(end, planner.latest(end)) != first


def test_offsets_of_two_queries_are_refused(new_planner: NewPlanner) -> None:
    with pytest.raises(ConfigError, match="mixes offsets of two queries"):
        new_planner().plan(StreamOffset("q1", {A: 28, B: 0}), StreamOffset("q2", {A: 56, B: 0}))


def test_offset_emptied_by_losses_is_not_a_new_query(new_planner: NewPlanner) -> None:
    """Partitions that appear then are read from their earliest position."""
    planner = new_planner(starting=Bound("startingOffsets", "latest"))
    entered = planner.latest(StreamOffset("q", {}))
    assert (entered.query, entered.positions, entered.initial) == ("q", {A: 0, B: 0}, None)
    assert planner.plan(StreamOffset("q", {}), entered) == []
    assert planner.latest(entered).positions == ENDS


def test_first_end_is_the_same_when_it_is_asked_for_again(new_planner: NewPlanner) -> None:
    """Stores from which the first batch reads nothing have fingerprints, too."""
    planner = new_planner(starting=Bound("startingOffsets", "latest"))
    end = planner.latest(planner.initial())
    assert end.fingerprints
    assert planner.latest(planner.initial()).to_json() == end.to_json()


def test_store_that_changed_after_a_long_wait_is_asked_again(
    new_planner: NewPlanner, skipping_clock: SkippingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that starts again may wait for claims longer than requests are repeated."""
    check = TruncationCheck.check
    refusals = [StoreChangedError("a broker did not answer")]

    def change_once(*given: Any, **options: Any) -> Checked:
        skipping_clock.advance(60.0)
        if refusals:
            raise refusals.pop()
        return check(*given, **options)

    monkeypatch.setattr(TruncationCheck, "check", change_once)
    planner = new_planner()
    assert planner.latest(planner.initial()).positions == ENDS


def test_topic_that_was_created_again_is_no_news_while_it_is_empty(
    tubemq: EmbeddedTubeMQ, new_planner: NewPlanner
) -> None:
    """The repeated batch finds that the topic is gone, and the next trigger finds it again, at the same position."""
    policy = replace(options(tubemq, "t").loss_policy, fail=False)
    tubemq.create_topic("v", 1)
    first = new_planner(topics=("t", "v"), loss_policy=policy)
    end = first.latest(first.initial())
    first.plan(first.initial(), end)
    first.stop()
    tubemq.delete_topic("v")
    planner = new_planner(topics=("t", "v"), loss_policy=policy)
    planner.plan(planner.initial(), end)
    tubemq.create_topic("v", 1)
    assert planner.latest(end).to_json() == end.to_json()


def test_answer_is_never_older_than_the_question(
    tubemq: EmbeddedTubeMQ, new_planner: NewPlanner, skipping_clock: SkippingClock
) -> None:
    """`latest` waits until it may ask the brokers: also for what was stored just before, and while it waited."""
    planner = new_planner(poll_interval=0.1)
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)
    for _ in range(40):
        assert planner.latest(end) == end
    assert sum(skipping_clock.pauses) > 10
    assert 0.9 < skipping_clock.pauses[-1] <= 1.0
    tubemq.send("t", b"new")
    skipping_clock.pauses.clear()
    assert planner.latest(end).positions == {**ENDS, A: 308}
    assert 0.9 < sum(skipping_clock.pauses) <= 1.0


@pytest.mark.parametrize("other_work", ["a batch of another source", "a pause", "a batch of its own"])
def test_who_did_something_else_meanwhile_does_not_wait(
    new_planner: NewPlanner, skipping_clock: SkippingClock, other_work: str
) -> None:
    planner = new_planner(poll_interval=5.0)
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)
    if other_work != "a batch of its own":
        planner.latest(end)
    if other_work == "a batch of another source":
        planner.commit(end)
    if other_work == "a pause":
        skipping_clock.advance(5.0)
    planner.latest(end)
    assert skipping_clock.pauses == []
    planner.latest(end)
    assert sum(skipping_clock.pauses) == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize("commits", [True, False])
def test_group_is_at_once_where_a_new_partition_begins(
    tubemq: EmbeddedTubeMQ, new_planner: NewPlanner, commits: bool
) -> None:
    """A consumer of earlier times may have left it further."""
    tubemq.move_group(GROUP, "u", 1, 0, 56)
    planner = new_planner(commit_offsets=commits)
    assert planner.latest(StreamOffset("q", {A: 280})).positions == {A: 280, B: 0}
    assert tubemq.group_offset(GROUP, "u", 1, 0) == (0 if commits else 56)


# Numbers of requests that the source makes: they must not grow unnoticed


def steps_of(work: Callable[[], object]) -> int:
    """Return how many Python functions the work calls in this thread."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def steps_to_find_the_end(stores: int) -> int:
    with cluster(1, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, 1, stores)
        stream.read()
        send_to_all(tubemq, 1, stores)
        return steps_of(stream.ask)


def test_work_to_find_the_end_grows_linearly_with_the_stores() -> None:
    assert steps_to_find_the_end(200) < 5 * steps_to_find_the_end(50)


class Compared(Partition):
    """Counts how often a partition is compared with another one."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return super().__eq__(other)

    __hash__ = Partition.__hash__


def comparisons_of_a_commit(stores: int) -> int:
    """Return how often the driver compares partitions when it commits a batch."""
    with cluster(1, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, 1, stores)
        stream.read()
        positions: dict[Partition, int] = {
            Compared(*partition): end for partition, end in stream.start.positions.items()
        }
        Compared.comparisons = 0
        stream.driver.commit(replace(stream.start, positions=positions))
        return Compared.comparisons


def test_work_to_commit_grows_linearly_with_the_partitions() -> None:
    assert 0 < comparisons_of_a_commit(200) < 5 * comparisons_of_a_commit(50)


@pytest.mark.parametrize(("partitions", "stores"), [(40, 1), (2, 10), (1, 20)])
def test_idle_query_makes_one_request_for_each_store(partitions: int, stores: int) -> None:
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, partitions, stores)
        stream.read()
        stream.ask()
        with counted(tubemq) as cost:
            assert stream.ask() == stream.start
        assert cost.of_partitions == {"commit_offset": stores}


@pytest.mark.parametrize(("partitions", "stores", "most"), [(1, 10, 5 * 10), (30, 1, 3 * 30 + 2), (3, 10, 11 * 10)])
def test_each_partition_is_probed_once_at_the_end_of_a_batch(partitions: int, stores: int, most: int) -> None:
    """The group's move, a seek to the last entry and a fetch; for each store a seek and a fetch of its fingerprint."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):  # the first batch's fingerprint has no time, so the second batch is probed at its start
            send_to_all(tubemq, partitions, stores)
            stream.read()
        send_to_all(tubemq, partitions, stores)
        with counted(tubemq) as cost:
            assert stream.ask() != stream.start
        assert sum(cost.of_partitions.values()) <= most


@pytest.mark.parametrize(("partitions", "stores", "most"), [(1, 10, 5), (30, 1, 7), (3, 10, 7)])
def test_task_makes_few_requests_for_a_partition_with_little_to_read(partitions: int, stores: int, most: int) -> None:
    """It claims by a seek, fetches all messages and in shared stores once more none, proves with a seek and a roll-back
    that nothing moved, in shared stores with one more seek that all is in memory, and releases the claim."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, partitions, stores)
        stream.read()
        send_to_all(tubemq, partitions, stores)
        end = stream.ask()
        tasks = stream.driver.plan(stream.start, end)
        with counted(tubemq) as cost:
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == partitions * stores
        assert sum(cost.of_partitions.values()) <= most * partitions * stores


def test_one_message_costs_few_requests_for_other_partitions_of_its_store() -> None:
    """A visit (two seeks and a fetch between them), and a register that moves the group."""
    with cluster(40, 1) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):
            send_to_all(tubemq, 40, 1)
            stream.read()
        stream.ask()
        tubemq.send(TOPIC, b"message", 7)
        with counted(tubemq) as cost:
            stream.read()
            stream.ask()
        assert stream.rows == 81
        assert sum(cost.of_partitions.values()) <= 4 * 40 + 12


def test_batch_plan_asks_each_store_and_claims_nothing() -> None:
    """A visit for the beginning and the end of each store, and the end of the visitor's claim."""
    with cluster(3, 10) as tubemq:
        send_to_all(tubemq, 3, 10)
        raw = {"tubemq.master": tubemq.master, "tubemq.group": "readers", "subscribe": TOPIC}
        with counted(tubemq) as cost:
            tasks = plan_batch(SourceOptions.read(raw, streaming=False))
        assert cost.of_partitions == {"partition_register": 20, "partition_unregister": 10}
        with counted(tubemq) as cost:
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == 30
        assert sum(cost.of_partitions.values()) <= 7 * 30


def test_group_never_moves_back_within_a_run(tubemq: EmbeddedTubeMQ, new_planner: NewPlanner) -> None:
    planner = new_planner()
    planner.latest(StreamOffset("q", {A: 140, B: 56}))
    planner.commit(StreamOffset("q", {A: 84, B: 28}))
    planner.stop()
    assert [tubemq.group_offset(GROUP, one.topic, 1, 0) for one in (A, B)] == [140, 56]
