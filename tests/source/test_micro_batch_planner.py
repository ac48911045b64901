# SPDX-License-Identifier: Apache-2.0
"""The planner between Spark's calls and a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clocks import ManualClock
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, DataLossError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.log_fingerprint import Fingerprint
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source import micro_batch_planner as planner_module
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions

A, B = Partition(1, "t", 0), Partition(2, "t", 0)
ALL_SOLE = {"t": frozenset({1, 2})}
MARK = Fingerprint(0, 0, 1, 0)


class World:
    """A cluster: the partitions' log ends, the group's positions, and the requests so far."""

    def __init__(self) -> None:
        self.ends = {A: 280, B: 56}
        self.earliest = {A: 28, B: 0}
        self.group: dict[Partition, int] = {}
        self.asked = 0
        self.taken: list[dict[Partition, int | None]] = []
        self.holders: dict[Partition, str] = {}
        self.unknown: set[Partition] = set()  # the broker does not know the topic, although the master lists it
        self.away: set[Partition] = set()  # the broker does not answer


class Claims:
    def __init__(self, world: World, claim: ClaimId) -> None:
        self._world = world
        self._claim = claim
        self._held: set[Partition] = set()

    @property
    def claim(self) -> ClaimId:
        return self._claim

    def take(
        self,
        positions: Mapping[Partition, int | None],
        status: ReadStatus = ReadStatus.NORMAL,
        retry_for: float | None = None,
    ) -> None:
        if positions:
            self._world.taken.append(dict(positions))
        if unserved := self._world.unknown & positions.keys():
            raise TransportError("403 topicName t not existed", unserved=unserved)
        if unserved := self._world.away & positions.keys():
            raise TransportError("nobody answers", unserved=unserved)
        for partition, position in positions.items():
            new = self._world.ends[partition] if status is ReadStatus.FROM_MAX else self._world.earliest[partition]
            stands = self._world.group.get(partition, new)
            self._world.group[partition] = stands if position is None else position
            self._world.holders[partition] = str(self._claim)
            self._held.add(partition)

    @property
    def unknown_topics(self) -> frozenset[Partition]:
        return frozenset(self._world.unknown)

    def holds(self, partition: Partition) -> bool:
        return partition in self._held

    def position(self, partition: Partition) -> GroupPosition:
        return GroupPosition(self._world.group[partition], self._world.ends[partition])

    def client_id(self, partition: Partition) -> str | None:
        return self._world.holders.get(partition)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self._world.earliest[partition] for partition in partitions}

    def refresh(self, older_than: float) -> None:
        self._world.asked += 1

    def restore(self, positions: Mapping[Partition, int]) -> None:
        self.take(dict(positions))

    def drop(self, partitions: Collection[Partition]) -> None:
        self._held -= set(partitions)

    def is_doubtful(self, partition: Partition) -> bool:
        return False

    def lend(self, partitions: Collection[Partition]) -> None:
        self._held -= set(partitions)

    def next_batch(self) -> ClaimId:
        return self._claim

    def release(self) -> None:
        self._held.clear()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def new_planner(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MicroBatchPlanner]:
    """Create the planner of a run. By default it begins at the earliest and asks the brokers each time."""

    def cluster() -> SimpleNamespace:
        known = sorted(world.ends)
        return SimpleNamespace(
            partitions=lambda topic: known, owns_store=lambda partition: True, partitions_in_store=lambda partition: 1
        )

    class Session:
        visit_token = -2
        flow_rules = FlowRules()

        def __init__(self, settings: ClientSettings, *_: object) -> None:
            self.settings = settings
            self.cluster = cluster()

        def register(self) -> None: ...

        def refresh(self) -> None:
            self.cluster = cluster()

        refresh_soon = refresh

        def listed(self, *, once: bool = False) -> set[Partition]:
            return set(world.ends)

        def forget_unlisted(self) -> None:
            self.cluster = cluster()

        def broker(self, partition: Partition) -> Broker:
            return Broker(partition.broker_id, Address("b", 8123))

        def close(self) -> None: ...

    monkeypatch.setattr(planner_module, "ConsumerSession", Session)
    monkeypatch.setattr(Prober, "probe", lambda prober, positions, only_exact=(): {})  # no broker gives a clear answer
    monkeypatch.setattr(Prober, "flushed_ends", lambda prober, partitions: {})
    monkeypatch.setattr(planner_module, "DriverClaims", lambda session, claim, timeout: Claims(world, claim))

    def create(clock: Clock = SYSTEM_CLOCK, **options: Any) -> MicroBatchPlanner:
        raw = {"tubemq.master": "m", "tubemq.group": "g", "subscribe": "t"}
        given: dict[str, Any] = {"starting": "earliest", "poll_interval": 0.0, "metadata_interval": 0.0} | options
        usual = SourceOptions.read(raw, streaming=True)
        return MicroBatchPlanner(replace(usual, **{"client": replace(usual.client, clock=clock), **given}))

    return create


NewPlanner = Callable[..., MicroBatchPlanner]


def ranges_of(planner: MicroBatchPlanner, start: StreamOffset, end: StreamOffset) -> dict[Partition, tuple[int, int]]:
    wanted = [one for task in planner.plan(start, end) for one, _ in task.ranges]
    return {one.partition: (one.start, one.end) for one in wanted}


def test_first_batch_records_where_the_query_began(new_planner: NewPlanner, world: World) -> None:
    planner = new_planner()
    start = planner.initial()
    end = planner.latest(start)
    assert end == StreamOffset(start.query, {A: 280, B: 56}, initial={A: 28, B: 0}, counted=ALL_SOLE)
    assert ranges_of(planner, planner.initial(), end) == {A: (28, 280), B: (0, 56)}


def test_empty_first_batch_records_where_the_query_began(new_planner: NewPlanner, world: World) -> None:
    planner = new_planner(starting="latest")
    end = planner.latest(planner.initial())
    assert end.initial == end.positions == {A: 280, B: 56}
    assert world.group == {A: 280, B: 56}
    world.ends = {A: 308, B: 84}
    assert new_planner().plan(new_planner().initial(), end) == []


def test_first_batch_is_repeated_with_the_same_ranges(new_planner: NewPlanner, world: World) -> None:
    """A new run gets another initial offset; nothing is claimed under that offset's id."""
    first = new_planner()
    end = first.latest(first.initial())
    once = ranges_of(first, first.initial(), end)
    world.ends, world.earliest = {A: 336, B: 84}, {A: 56, B: 28}
    second = new_planner(starting="latest")
    start = second.initial()
    assert start.query != end.query
    assert ranges_of(second, start, end) == once
    assert all(end.query in holder for holder in world.holders.values())
    assert second.latest(end) == StreamOffset(end.query, {A: 336, B: 84}, counted=ALL_SOLE)


def test_second_scan_of_a_batch_gets_the_first_plan(new_planner: NewPlanner, world: World) -> None:
    """Spark calls `plan` for each scan. Tasks of the first scan may be reading, so the second plan claims nothing."""
    planner = new_planner(commit_offsets=False)
    start = planner.initial()
    end = planner.latest(start)
    first, taken, holders = planner.plan(start, end), len(world.taken), dict(world.holders)
    assert first
    assert planner.plan(start, end) == first
    assert (len(world.taken), world.holders) == (taken, holders)
    world.ends[A] += 28
    assert planner.plan(end, planner.latest(end)) != first


def test_offsets_of_two_queries_are_refused(new_planner: NewPlanner) -> None:
    with pytest.raises(ConfigError, match="mixes offsets of two queries"):
        new_planner().plan(StreamOffset("q1", {A: 28, B: 0}), StreamOffset("q2", {A: 56, B: 0}))


def test_checkpoint_with_an_unsubscribed_topic_is_refused(new_planner: NewPlanner) -> None:
    gone = StreamOffset("q", {A: 28, Partition(1, "gone", 0): 28})
    with pytest.raises(ConfigError, match="positions of partitions of gone that options 'subscribe'"):
        new_planner().latest(gone)
    with pytest.raises(ConfigError, match="positions of partitions of gone"):
        new_planner().plan(gone, gone)


@pytest.fixture
def hasty(new_planner: NewPlanner) -> MicroBatchPlanner:
    """A planner that does not wait for missing partitions, and accepts the loss."""
    client = SourceOptions.read({"tubemq.master": "m", "tubemq.group": "g", "subscribe": "t"}, streaming=True).client
    return new_planner(loss_policy=LossPolicy(fail=False), client=replace(client, retry_for=0.0))


def test_new_query_goes_on_without_a_removed_partition(hasty: MicroBatchPlanner, world: World) -> None:
    """The master still lists a topic that was removed."""
    world.unknown = {B}
    assert hasty.latest(hasty.initial()).positions == {A: 280}


def test_batch_is_repeated_without_a_removed_partition(
    hasty: MicroBatchPlanner, new_planner: NewPlanner, world: World
) -> None:
    world.unknown = {B}
    start, end = (
        StreamOffset("q", {A: 28, B: 0}),
        StreamOffset("q", {A: 56, B: 28}, fingerprints={(2, "t", 0): (MARK,)}),
    )
    assert ranges_of(hasty, start, end) == {A: (28, 56)}
    client = replace(hasty._options.client, retry_for=0.0)
    with pytest.raises(DataLossError, match=r"^2:t:0: the cluster does not have the partition any more.*up to 0,"):
        new_planner(client=client).plan(start, end)


def test_partition_of_an_unreachable_broker_is_not_gone(hasty: MicroBatchPlanner, world: World) -> None:
    """The master is asked at least once, even if there is no time for retries."""
    world.away = {B}
    offset = StreamOffset("q", {A: 28, B: 0})
    with pytest.raises(TransportError, match="nobody answers"):
        hasty.latest(offset)
    world.away = set()
    assert hasty.latest(offset).positions == {A: 280, B: 56}


@pytest.mark.parametrize(("ends", "goes_on_at"), [(84, 28), (28, 28), (0, 0)])
def test_partition_that_comes_back_goes_on_at_its_position(
    hasty: MicroBatchPlanner, world: World, ends: int, goes_on_at: int
) -> None:
    """Unless its store ends before that: then it is another store."""
    offset = StreamOffset("q", {A: 140, B: 28})
    world.unknown = {B}
    alone = hasty.latest(offset)
    assert alone.positions == {A: 280}
    world.unknown, world.ends[B] = set(), ends
    assert hasty.latest(alone).positions == {A: 280, B: goes_on_at}


def test_latest_returns_the_same_offset_if_nothing_is_new(new_planner: NewPlanner) -> None:
    """Spark compares the offsets as text."""
    planner = new_planner()
    end = planner.latest(planner.initial())
    assert planner.latest(end) == end


def test_group_follows_commits(new_planner: NewPlanner, world: World) -> None:
    planner = new_planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    assert world.group == {A: 28, B: 0}
    world.ends = {A: 308, B: 56}
    following = planner.latest(end)
    assert world.group == {A: 280, B: 56}
    planner.plan(end, following)
    planner.commit(end)  # Spark calls `commit` after it has planned the next batch
    assert world.group == {A: 280, B: 56}
    planner.commit(following)
    assert world.group == {A: 308, B: 56}


def test_run_begins_by_moving_the_group_to_the_checkpoint(new_planner: NewPlanner, world: World) -> None:
    """A killed task or an administrator may have left the group elsewhere."""
    world.group = {A: 280, B: 28}
    new_planner().latest(StreamOffset("q", {A: 140, B: 56}))
    assert world.group == {A: 140, B: 56}


def test_group_never_moves_back_within_a_run(new_planner: NewPlanner, world: World) -> None:
    planner = new_planner()
    planner.latest(StreamOffset("q", {A: 140, B: 56}))
    planner.commit(StreamOffset("q", {A: 84, B: 28}))
    assert world.group == {A: 140, B: 56}


def test_stop_within_a_batch_restores_the_group_to_its_start(new_planner: NewPlanner, world: World) -> None:
    """A killed task left the group elsewhere."""
    planner = new_planner()
    start = StreamOffset("q", {A: 140, B: 56})
    planner.plan(start, planner.latest(start))
    world.group[A] = 224
    planner.stop()
    assert world.group == {A: 140, B: 56}


def test_offset_emptied_by_losses_is_not_a_new_query(new_planner: NewPlanner, world: World) -> None:
    """Partitions that appear then are read from their earliest position."""
    planner = new_planner(starting="latest")
    entered = planner.latest(StreamOffset("q", {}))
    assert entered == StreamOffset("q", {A: 28, B: 0}, counted=ALL_SOLE)
    assert ranges_of(planner, StreamOffset("q", {}), entered) == {}
    assert ranges_of(planner, entered, planner.latest(entered)) == {A: (28, 280), B: (0, 56)}


def test_restarted_query_commits_the_end_of_its_last_run(new_planner: NewPlanner, world: World) -> None:
    world.group = {A: 28, B: 0}
    new_planner().latest(StreamOffset("q", {A: 280, B: 56}))
    assert world.group == {A: 280, B: 56}


@pytest.mark.parametrize(("interval", "times"), [(1000.0, 1), (0.0, 3)])
def test_brokers_are_asked_at_most_every_interval(
    new_planner: NewPlanner, world: World, interval: float, times: int
) -> None:
    planner = new_planner(poll_interval=interval)
    start = StreamOffset("q", {A: 280, B: 56})
    assert [planner.latest(start) for _ in range(3)] == [start] * 3
    assert world.asked == times
    assert planner.log_ends == start


def test_idle_query_asks_less_often(new_planner: NewPlanner, world: World) -> None:
    clock = ManualClock()
    query = new_planner(poll_interval=0.1, clock=clock)
    start = StreamOffset("q", {A: 280, B: 56})

    def asked_in_a_minute() -> int:
        before = world.asked
        for _ in range(6000):
            clock.advance(0.01)
            assert query.latest(start) == start
        return world.asked - before

    assert 80 <= asked_in_a_minute() <= 100
    assert 59 <= asked_in_a_minute() <= 61
    world.ends[A] = 308
    clock.advance(1.0)
    end = query.latest(start)
    assert end.positions[A] == 308
    query.plan(start, end)
    start = end
    assert 80 <= asked_in_a_minute() <= 100


def test_commit_moves_the_group_at_once(new_planner: NewPlanner, world: World) -> None:
    """This does not depend on how often the brokers are asked."""
    planner = new_planner(poll_interval=1000.0)
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    planner.latest(end)
    assert world.group == end.positions


def test_new_partitions_are_read_from_their_earliest_position(new_planner: NewPlanner, world: World) -> None:
    """They enter at their earliest position, so that the checkpoint has both ends of their first range."""
    planner = new_planner()
    end = planner.latest(planner.initial())
    new = Partition(3, "t", 0)
    world.ends[new], world.earliest[new] = 140, 84
    entered = planner.latest(end)
    assert entered == StreamOffset(end.query, {**end.positions, new: 84}, counted={"t": frozenset({1, 2, 3})})
    assert ranges_of(planner, end, entered) == {}
    following = planner.latest(entered)
    assert ranges_of(planner, entered, following) == {new: (84, 140)}


def test_new_partitions_are_discovered_at_most_every_interval(new_planner: NewPlanner, world: World) -> None:
    planner = new_planner(metadata_interval=1000.0)
    end = planner.latest(planner.initial())
    new = Partition(3, "t", 0)
    world.ends[new], world.earliest[new] = 140, 84
    assert planner.latest(end) == end


def test_run_with_available_now_ends_although_stores_grow(new_planner: NewPlanner, world: World) -> None:
    """It reads what the stores held at first, new partitions included."""
    planner = new_planner()
    planner.prepare_for_available_now()
    offset = StreamOffset("q", {A: 28})
    ends = []
    while (end := planner.latest(offset)) != offset:
        ends.append(end.positions)
        planner.plan(offset, end)
        offset = end
        world.ends = {partition: position + 28 for partition, position in world.ends.items()}
        world.ends[Partition(4 + len(ends), "t", 0)] = 28
        world.earliest[Partition(4 + len(ends), "t", 0)] = 0
    assert ends == [{A: 280, B: 0}, {A: 280, B: 56}]
    assert world.group == {A: 280, B: 56}


def test_stop_may_be_called_twice(new_planner: NewPlanner) -> None:
    planner = new_planner()
    planner.latest(planner.initial())
    planner.stop()
    planner.stop()
