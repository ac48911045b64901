# SPDX-License-Identifier: Apache-2.0
"""Which partition the partitioner chooses, given the cluster, its failures, and the connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.clocks import ManualClock
from tests.sending import batch_of
from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import BrokerHealth
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.client.producer.unresolved_sends import RecordLookup
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Address, Broker, Partition, TopicOnBroker

KEYS = [b"key %d" % n for n in range(200)]


def cluster(*broker_ids: int, partitions: int = 2, others: Iterable[int] = ()) -> Cluster:
    """Return a cluster with topic `demo` on these brokers, and `others` without it."""
    brokers = {n: Broker(n, Address("127.0.0.1", 8000 + n)) for n in (*broker_ids, *others)}
    return Cluster(brokers, {("demo", n): TopicOnBroker("demo", n, 1, partitions) for n in broker_ids})


@dataclass
class Session:
    """What a partitioner needs of a session. The master lists the partitions in `listed`."""

    cluster: Cluster
    settings: ClientSettings
    listed: set[Partition] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.listed = set(self.cluster.partitions("demo"))

    def lists(self, partition: Partition) -> bool:
        return partition in self.listed


@dataclass
class Channel:
    """What a partitioner sees of a channel."""

    in_flight: int = 0
    room: int = 1000
    oldest_in_flight_since: float | None = None


class Scene:
    """A partitioner with its clock and channels. Each `choices` updates it first."""

    def __init__(self, clock: ManualClock, known: Cluster) -> None:
        self.clock = clock
        self.session = Session(known, ClientSettings((), clock=clock))
        self.channels = {broker_id: Channel() for broker_id in known.brokers}
        self.unavailable: set[Partition] = set()
        self.asked: list[Sequence[Partition]] = []
        self.health = BrokerHealth(clock)
        self.partitioner = Partitioner(cast(ProducerSession, self.session), self.health, cast(RecordLookup, self))

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        self.asked.append(partitions)
        if needed and self.unavailable & set(partitions):
            raise TransportError("not all of them")
        return [one for one in partitions if one not in self.unavailable]

    def update(self) -> bool:
        return self.partitioner.update(cast(dict[int, BrokerChannel], self.channels))

    def choices(self) -> Counter[Partition]:
        """Return how many records without a key each partition gets now, of several batches."""
        self.update()
        return sum((self.spread(10) for _ in range(60)), Counter())

    def spread(self, count: int) -> Counter[Partition]:
        """Return how many records of a batch each partition gets."""
        given: Counter[Partition] = Counter()
        for partition, part in self.partitioner.spread("demo", count):
            given[partition] += len(range(count)[part])
        return given

    def brokers(self) -> set[int]:
        """Return the brokers that records without a key go to now."""
        return {one.broker_id for one in self.choices()}

    def accepts(self, partition: Partition) -> bool:
        """Whether the partition takes a record that must go there."""
        self.update()
        return self.partitioner.room_for_bound(partition) > 0

    def sent(self, partition: Partition) -> RecordBatch:
        """Return a batch of one record that is in flight to `partition`."""
        batch = batch_of(b"body", partition=partition)
        self.partitioner.sent(batch)
        return batch

    def owners(self) -> dict[bytes, Partition]:
        self.update()
        return {key: self.partitioner.for_key("demo", key) for key in KEYS}

    def partitions(self) -> list[Partition]:
        return self.session.cluster.partitions("demo")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def pair(clock: ManualClock) -> Scene:
    """Brokers 1 and 2, with two partitions each."""
    return Scene(clock, cluster(1, 2))


BOTH = cluster(1, 2).partitions("demo")
P10, P11, P20, P21 = BOTH


# Without failures


def test_only_connected_brokers_with_room_are_chosen(pair: Scene) -> None:
    pair.channels[1].room = 0
    assert set(pair.choices()) == {P20, P21}
    assert not pair.accepts(P10)
    del pair.channels[2]
    assert set(pair.choices()) == set()
    pair.channels[1].room = 7
    assert set(pair.choices()) == {P10, P11}


@pytest.mark.parametrize(("count", "at_a_time"), [(1, 1), (5, 5), (100, 8), (256, 16), (1000, 60)])
def test_partitions_get_records_in_turn(clock: ManualClock, count: int, at_a_time: int) -> None:
    """Some partitions get some records each, so that a request to a broker with many partitions is not small."""
    scene = Scene(clock, cluster(1, 2, 3, partitions=20))
    for channel in scene.channels.values():
        channel.room = 1_000_000
    scene.update()
    total: Counter[Partition] = Counter()
    for _ in range(60):
        given = scene.spread(count)
        assert len(given) == at_a_time
        assert max(given.values()) - min(given.values()) <= 1
        total += given
    assert total.total() == 60 * count
    assert total.keys() == set(scene.partitions())
    assert max(total.values()) - min(total.values()) <= 0.1 * count + 1


@pytest.mark.parametrize("rooms", [(7, 7), (1, 30), (0, 9)])
def test_no_broker_gets_more_records_than_it_has_room_for(pair: Scene, rooms: tuple[int, int]) -> None:
    for broker_id, room in enumerate(rooms, 1):
        pair.channels[broker_id].room = room
    pair.update()
    for _ in range(9):
        given = pair.spread(100)
        assert given.total() > 0
        for broker_id, room in enumerate(rooms, 1):
            assert sum(count for one, count in given.items() if one.broker_id == broker_id) <= room


@pytest.mark.parametrize(("idle", "busy", "chosen"), [
    (0, 256, {1, 2}), (0, 257, {1}), (100, 456, {1, 2}), (100, 457, {1}), (1000, 2000, {1, 2}),
])  # fmt: skip
def test_a_broker_with_far_more_in_flight_is_not_chosen(pair: Scene, idle: int, busy: int, chosen: set[int]) -> None:
    pair.channels[1].in_flight, pair.channels[2].in_flight = idle, busy
    assert pair.brokers() == chosen
    assert pair.accepts(P20), "records that must go there do"


def test_the_lookup_is_asked_before_partitions_are_used(pair: Scene) -> None:
    assert pair.asked == []
    pair.choices()
    pair.owners()
    assert pair.asked == [[P10, P11, P20, P21]]
    pair.session.cluster = cluster(1, 2, partitions=3)
    pair.choices()
    assert pair.asked[1:] == [pair.partitions()]


def test_unavailable_partitions_are_not_used(pair: Scene) -> None:
    pair.unavailable = {P10, P20}
    assert set(pair.choices()) == {P11, P21}
    assert set(pair.owners().values()) == {P11, P21}
    pair.partitioner.require(P11)
    with pytest.raises(TransportError):
        pair.partitioner.require(P20)


# A broker that failed


def test_a_failed_broker_is_avoided_for_a_while(pair: Scene, clock: ManualClock) -> None:
    pair.update()
    pair.health.failed(1)
    assert pair.brokers() == {2}
    assert not pair.partitioner.may_connect(1, has_choice=False)
    assert not pair.accepts(P10)
    assert pair.accepts(P20)
    clock.now += 0.11
    assert pair.brokers() == {2}
    assert pair.accepts(P10)
    assert pair.partitioner.may_connect(1, has_choice=False)
    assert not pair.partitioner.may_connect(1, has_choice=True)
    clock.now += 9.9
    assert pair.brokers() == {1, 2}
    assert pair.partitioner.may_connect(1, has_choice=True)


def test_a_half_open_broker_gets_one_record(pair: Scene, clock: ManualClock) -> None:
    pair.health.failed(1)
    clock.now += 10.1
    pair.update()
    assert pair.partitioner.has_failed(1)
    assert not pair.partitioner.has_failed(2)
    assert pair.partitioner.room_for_bound(P10) == 1
    pair.channels[1].in_flight = 1
    pair.sent(P10)
    assert not pair.partitioner.room_for_bound(P11)
    assert set(pair.choices()) == {P20, P21}
    pair.health.succeeded(P10)
    assert pair.brokers() == {1, 2}
    assert pair.accepts(P11)
    assert not pair.partitioner.any_failing


def test_a_success_closes_the_breaker(pair: Scene, clock: ManualClock) -> None:
    pair.health.failed(1)
    pair.health.succeeded(P20)
    assert pair.brokers() == {2}
    pair.health.succeeded(P11)
    assert pair.brokers() == {1, 2}
    pair.health.failed(1)
    clock.now += 0.11
    assert pair.accepts(P10), "failures are counted from zero"


def test_records_with_a_choice_try_a_failed_broker_soon_if_all_have_failed(clock: ManualClock) -> None:
    scene = Scene(clock, cluster(*range(1, 11)))
    for broker_id in range(1, 11):
        scene.health.failed(broker_id)
    assert scene.brokers() == set()
    clock.now += 0.11
    assert len(scene.brokers()) == 10
    scene.health.succeeded(Partition(3, "demo", 0))
    assert scene.brokers() == {3}, "the others wait for longer"


def test_a_slow_broker_gets_only_records_that_must_go_there(pair: Scene, clock: ManualClock) -> None:
    pair.channels[1] = Channel(in_flight=5, oldest_in_flight_since=clock.now - 0.9)
    assert pair.brokers() == {1, 2}
    clock.now += 0.2
    assert pair.brokers() == {2}
    assert pair.accepts(P10)
    clock.now += 100.0
    assert pair.brokers() == {2}
    pair.channels[2] = Channel(in_flight=1, oldest_in_flight_since=clock.now - 2.0)
    assert pair.brokers() == {1, 2}, "both are slow"
    pair.channels[1] = Channel()
    assert pair.brokers() == {1}


def test_partitioners_of_a_session_share_failures(pair: Scene, clock: ManualClock) -> None:
    other = Partitioner(cast(ProducerSession, pair.session), pair.health)
    assert pair.brokers() == {1, 2}
    other.health.failed(1)
    other.health.failed(P20)
    assert not pair.partitioner.may_connect(1, has_choice=False)
    assert set(pair.choices()) == {P21}
    clock.now += 0.11
    pair.health.succeeded(P11)
    pair.health.succeeded(P20)
    assert other.may_connect(1, has_choice=True)
    assert not other.any_failing


def test_a_topic_is_blocked_if_no_broker_is_open_and_none_is_full(pair: Scene) -> None:
    pair.update()
    assert not pair.partitioner.is_blocked("demo")
    pair.channels[1].room = pair.channels[2].room = 0
    pair.update()
    assert not pair.partitioner.is_blocked("demo")
    del pair.channels[1]
    pair.channels[2].room = 7
    for partition in (P20, P21):
        assert not pair.partitioner.is_blocked("demo")
        pair.health.failed(partition)
        pair.update()
    assert pair.partitioner.is_blocked("demo")


# A partition that failed


def test_a_failed_partition_is_avoided_but_not_its_broker(pair: Scene, clock: ManualClock) -> None:
    pair.health.failed(P10)
    assert set(pair.choices()) == {P11, P20, P21}
    assert not pair.accepts(P10)
    assert pair.accepts(P11)
    clock.now += 0.11
    assert pair.accepts(P10)
    assert set(pair.choices()) == {P11, P20, P21}
    clock.now += 9.9
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.health.failed(P10)
    pair.health.succeeded(P11)
    assert set(pair.choices()) == {P11, P20, P21}
    pair.health.succeeded(P10)
    assert set(pair.choices()) == {P10, P11, P20, P21}


def test_a_half_open_partition_gets_one_record(pair: Scene, clock: ManualClock) -> None:
    for partition in (P10, P20, P21):
        pair.health.failed(partition)
    clock.now += 10.1
    pair.update()
    probes = [pair.sent(partition) for partition in (P10, P20)]
    assert set(pair.choices()) == {P11, P21}
    assert not pair.accepts(P10)
    assert pair.accepts(P21)
    probes[0].answer(1)
    assert set(pair.choices()) == {P10, P11, P21}, "the record may have failed for another reason"
    again = pair.sent(P10)
    assert not pair.accepts(P10)
    again.answer(1)
    assert pair.accepts(P10)
    pair.health.succeeded(P20)
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.sent(P20)
    assert pair.accepts(P20)


def test_records_wait_while_all_partitions_are_probed(pair: Scene, clock: ManualClock) -> None:
    for partition in pair.partitions():
        pair.health.failed(partition)
    clock.now += 0.11
    pair.update()
    tried = set()
    for _ in range(4):
        (chosen,) = pair.spread(1)
        tried.add(pair.sent(chosen).partition)
    assert not pair.spread(1)
    assert tried == {P10, P11, P20, P21}
    assert set(pair.choices()) == set()


@pytest.mark.parametrize("whose", ["the partition's", "the broker's"])
def test_a_failed_partition_that_is_not_listed_is_gone(pair: Scene, clock: ManualClock, whose: str) -> None:
    before = pair.owners()
    pair.session.listed.remove(P10)
    assert pair.owners() == before, "a partition that works is used"
    if whose == "the partition's":
        pair.health.failed(P10)
    else:
        pair.health.failed(1)
    assert {key for key, owner in pair.owners().items() if owner != before[key]} == {
        key for key, owner in before.items() if owner == P10
    }
    assert P10 not in pair.owners().values()
    clock.now += 60.0
    assert set(pair.choices()) == {P11, P20, P21}, "it is not even probed"
    pair.session.listed.add(P10)
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.health.succeeded(P10)
    assert pair.owners() == before


def test_nothing_is_gone_if_the_master_lists_nothing(pair: Scene, clock: ManualClock) -> None:
    """The master has just taken over, or the topic is closed."""
    before = pair.owners()
    pair.session.listed.clear()
    pair.health.failed(P10)
    pair.health.failed(2)
    assert pair.owners() == before
    clock.now += 60.0
    assert set(pair.choices()) == {P10, P11, P20, P21}
