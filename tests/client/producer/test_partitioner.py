"""Which partition is chosen, by what is known of the cluster, of trouble, and of the connections that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tubemq_spark.client.cluster.broker_health import BrokerHealth
from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.producer.broker_channel import BrokerChannel
from tubemq_spark.client.producer.partitioner import Partitioner, RoundRobin
from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.producer.unresolved_sends import RecordLookup
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.key_partitioner import KeyMap
from tubemq_spark.protocol.metadata import Address, Broker, Partition, TopicOnBroker
from tubemq_spark.protocol.producer_lifecycle import SendEvent

KEYS = [b"key %d" % n for n in range(200)]


def cluster(*broker_ids: int, partitions: int = 2, others: Iterable[int] = ()) -> Cluster:
    """Topic `demo` on these brokers, and `others` without it."""
    brokers = {n: Broker(n, Address("127.0.0.1", 8000 + n)) for n in (*broker_ids, *others)}
    return Cluster(brokers, {("demo", n): TopicOnBroker("demo", n, 1, partitions) for n in broker_ids})


@dataclass
class Session:
    """What a router asks of a session. The master lists the partitions of `listed`."""

    cluster: Cluster
    settings: ClientSettings
    listed: set[Partition] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.listed = set(self.cluster.partitions("demo"))

    def lists(self, partition: Partition) -> bool:
        return partition in self.listed


@dataclass
class Connected:
    """What a router sees of a connection."""

    in_flight: int = 0
    is_full: bool = False
    oldest_in_flight_since: float | None = None


class Bench:
    """A router, its time and its connections. Each `choices` looks at them anew."""

    def __init__(self, clock: ManualClock, known: Cluster) -> None:
        self.clock = clock
        self.session = Session(known, ClientSettings((), clock=clock))
        self.links = {broker_id: Connected() for broker_id in known.brokers}
        self.unavailable: set[Partition] = set()
        self.asked: list[Sequence[Partition]] = []
        self.health = BrokerHealth(clock)
        self.router = Partitioner(cast(ProducerSession, self.session), self.health, cast(RecordLookup, self))

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        self.asked.append(partitions)
        if needed and self.unavailable & set(partitions):
            raise TransportError("not all of them")
        return [one for one in partitions if one not in self.unavailable]

    def begin(self) -> bool:
        return self.router.update(cast(dict[int, BrokerChannel], self.links))

    def choices(self, count: int = 120) -> Counter[Partition | None]:
        self.begin()
        return Counter(self.router.choose("demo") for _ in range(count))

    def brokers(self) -> set[int]:
        """To which messages for anywhere go now."""
        return {one.broker_id for one in self.choices() if one is not None}

    def may_go(self, partition: Partition) -> bool:
        self.begin()
        return self.router.accepts(partition)

    def sent(self, partition: Partition) -> PendingRecord:
        """A message that is on its way there."""
        message = PendingRecord("demo", b"", None)
        message.on(SendEvent.SENT)
        message.partition = partition
        self.router.sent(message)
        return message

    def owners(self) -> dict[bytes, Partition]:
        self.begin()
        return {key: self.router.for_key("demo", key) for key in KEYS}

    def partitions(self) -> list[Partition]:
        return self.session.cluster.partitions("demo")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def pair(clock: ManualClock) -> Bench:
    """Brokers 1 and 2, with two partitions each."""
    return Bench(clock, cluster(1, 2))


BOTH = cluster(1, 2).partitions("demo")
P10, P11, P20, P21 = BOTH


# Round robin


@given(st.lists(st.sampled_from(BOTH), min_size=1, unique=True), st.integers(0, 1 << 30), st.integers(1, 4))
def test_round_robin_gives_each_partition_its_turn(partitions: list[Partition], start: int, rounds: int) -> None:
    deal = RoundRobin(start)
    chosen = [deal.choose(partitions) for _ in range(rounds * len(partitions))]
    assert Counter(chosen) == dict.fromkeys(partitions, rounds)
    assert chosen[: len(partitions)] == chosen[-len(partitions) :]


def test_round_robin_begins_at_a_random_partition() -> None:
    assert len({RoundRobin().choose(BOTH) for _ in range(200)}) > 1


# Without trouble


def test_records_without_a_key_go_to_all_partitions_in_turn(pair: Bench) -> None:
    assert pair.choices(400) == dict.fromkeys([P10, P11, P20, P21], 100)


def test_only_connected_brokers_with_room_are_chosen(pair: Bench) -> None:
    pair.links[1].is_full = True
    assert set(pair.choices()) == {P20, P21}
    assert not pair.may_go(P10)
    del pair.links[2]
    assert set(pair.choices()) == {None}
    pair.links[1].is_full = False
    assert set(pair.choices()) == {P10, P11}


def test_a_channel_that_became_full_is_not_chosen(pair: Bench) -> None:
    pair.begin()
    assert pair.router.choose("demo") is not None
    pair.links[1].is_full = True
    pair.sent(P10)
    assert {pair.router.choose("demo") for _ in range(20)} == {P20, P21}


@pytest.mark.parametrize(("idle", "busy", "chosen"), [
    (0, 256, {1, 2}), (0, 257, {1}), (100, 456, {1, 2}), (100, 457, {1}), (1000, 2000, {1, 2}),
])  # fmt: skip
def test_a_broker_with_far_more_in_flight_is_not_chosen(pair: Bench, idle: int, busy: int, chosen: set[int]) -> None:
    pair.links[1].in_flight, pair.links[2].in_flight = idle, busy
    assert pair.brokers() == chosen
    assert pair.may_go(P20), "what must go there does"


def test_new_partitions_are_used(pair: Bench) -> None:
    assert not pair.begin()
    pair.choices()
    pair.session.cluster = cluster(1, 2, partitions=3)
    assert pair.begin()
    assert set(pair.choices()) == set(pair.partitions()) > {P10, P11, P20, P21}
    assert not pair.begin()


def test_the_lookup_is_asked_before_partitions_are_used(pair: Bench) -> None:
    assert pair.asked == []
    pair.choices()
    pair.owners()
    assert pair.asked == [[P10, P11, P20, P21]]
    pair.session.cluster = cluster(1, 2, partitions=3)
    pair.choices()
    assert pair.asked[1:] == [pair.partitions()]


def test_unavailable_partitions_are_not_used(pair: Bench) -> None:
    pair.unavailable = {P10, P20}
    assert set(pair.choices()) == {P11, P21}
    assert set(pair.owners().values()) == {P11, P21}
    pair.router.require(P11)
    with pytest.raises(TransportError):
        pair.router.require(P20)


def test_no_available_partition_is_an_error(pair: Bench) -> None:
    pair.unavailable = {P10, P11, P20, P21}
    with pytest.raises(TransportError):
        pair.choices()


def test_partitions_of_keys_do_not_depend_on_connections(pair: Bench) -> None:
    expected = {key: KeyMap([P10, P11, P20, P21]).partition(key) for key in KEYS}
    assert pair.owners() == expected
    pair.links.clear()
    assert pair.owners() == expected


def test_the_brokers_of_a_topic(clock: ManualClock) -> None:
    bench = Bench(clock, cluster(1, 3, others=[2, 4]))
    assert bench.router.brokers("demo") == {1, 3}


# A broker that has trouble


@pytest.mark.parametrize(("kind", "seconds"), [("lost", 15.0), ("refused", 50.0), ("full", 3.0)])
def test_a_failed_broker_is_avoided_for_a_while(pair: Bench, clock: ManualClock, kind: str, seconds: float) -> None:
    pair.begin()
    pair.router.broker_failed(1, kind)
    assert pair.brokers() == {2}
    assert not pair.router.may_connect(1, needed=True)
    assert not pair.may_go(P10)
    assert pair.may_go(P20)
    clock.now += 0.11  # it has rested
    assert pair.brokers() == {2}
    assert pair.may_go(P10)
    assert pair.router.may_connect(1, needed=True)
    assert not pair.router.may_connect(1, needed=False)
    clock.now += seconds
    assert pair.brokers() == {1, 2}
    assert pair.router.may_connect(1, needed=False)


def test_a_half_open_broker_gets_one_record(pair: Bench, clock: ManualClock) -> None:
    pair.router.broker_failed(1, "full")
    clock.now += 3.1
    pair.begin()
    assert pair.router.breakers.is_half_open(1)
    assert not pair.router.breakers.is_half_open(2)
    assert pair.router.accepts(P10)
    pair.links[1].in_flight = 1
    pair.sent(P10)
    assert not pair.router.accepts(P11)
    assert {pair.router.choose("demo") for _ in range(20)} == {P20, P21}
    pair.router.succeeded(P10)
    assert pair.brokers() == {1, 2}
    assert pair.may_go(P11)
    assert not pair.router.breakers.any_open


def test_a_failure_after_the_backoff_doubles_it(pair: Bench, clock: ManualClock) -> None:
    for rest in (0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0):
        pair.router.broker_failed(1, "lost")
        clock.now += rest * 0.9
        pair.router.broker_failed(1, "lost")  # the same trouble still: the answers of what was on its way
        assert not pair.may_go(P10)
        clock.now += rest * 0.11
        assert pair.may_go(P10)


def test_a_success_closes_the_breaker(pair: Bench, clock: ManualClock) -> None:
    pair.router.broker_failed(1, "refused")
    pair.router.succeeded(P20)
    assert pair.brokers() == {2}
    pair.router.succeeded(P11)
    assert pair.brokers() == {1, 2}
    pair.router.broker_failed(1, "refused")
    clock.now += 0.11
    assert pair.may_go(P10), "it is counted from the beginning"


def test_the_whole_cluster_is_never_avoided(clock: ManualClock) -> None:
    bench = Bench(clock, cluster(*range(1, 11)))
    for broker_id in range(1, 11):
        bench.router.broker_failed(broker_id, "refused")
    assert bench.brokers() == set(), "all rest"
    clock.now += 0.11
    assert len(bench.brokers()) == 7
    clock.now += 50.0
    assert len(bench.brokers()) == 10


def test_the_only_broker_of_a_topic_is_tried_after_its_backoff(clock: ManualClock) -> None:
    """However many brokers there are without it."""
    bench = Bench(clock, cluster(1, others=range(2, 11)))
    bench.router.broker_failed(1, "refused")
    assert bench.brokers() == set()
    clock.now += 0.11
    assert bench.brokers() == {1}


def test_a_slow_broker_gets_only_records_that_must_go_there(pair: Bench, clock: ManualClock) -> None:
    pair.links[1] = Connected(in_flight=5, oldest_in_flight_since=clock.now - 0.9)
    assert pair.brokers() == {1, 2}
    clock.now += 0.2
    assert pair.brokers() == {2}
    assert pair.may_go(P10)
    clock.now += 100.0
    assert pair.brokers() == {2}
    pair.links[1] = Connected()
    assert pair.brokers() == {1, 2}


def test_a_failed_broker_that_is_not_listed_is_not_connected(pair: Bench) -> None:
    pair.session.listed -= {P10, P11}
    pair.begin()
    assert pair.router.brokers("demo") == {1, 2}
    pair.router.broker_failed(1, "lost")
    assert pair.router.brokers("demo") == {2}


def test_partitioners_of_a_session_share_failures(pair: Bench, clock: ManualClock) -> None:
    other = Partitioner(cast(ProducerSession, pair.session), pair.health)
    assert pair.brokers() == {1, 2}
    other.broker_failed(1, "lost")
    other.partition_failed(P20)
    assert not pair.router.may_connect(1, needed=True)
    assert set(pair.choices()) == {P21}
    clock.now += 0.11
    pair.router.succeeded(P11)
    pair.router.succeeded(P20)
    assert other.may_connect(1, needed=False)
    assert not other.breakers.any_open


def test_a_topic_is_blocked_if_no_broker_is_open_and_none_is_full(pair: Bench) -> None:
    pair.begin()
    assert not pair.router.is_blocked("demo")
    pair.links[1].is_full = pair.links[2].is_full = True
    pair.begin()
    assert not pair.router.is_blocked("demo")
    del pair.links[1]
    pair.links[2].is_full = False
    for partition in (P20, P21):
        assert not pair.router.is_blocked("demo")
        pair.router.partition_failed(partition)
    assert pair.router.is_blocked("demo")


# A partition that has trouble


def test_a_failed_partition_is_avoided_but_not_its_broker(pair: Bench, clock: ManualClock) -> None:
    pair.router.partition_failed(P10)
    assert set(pair.choices()) == {P11, P20, P21}
    assert not pair.may_go(P10)
    assert pair.may_go(P11)
    clock.now += 0.11
    assert pair.may_go(P10)
    assert set(pair.choices()) == {P11, P20, P21}
    clock.now += 3.0
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.router.partition_failed(P10)
    pair.router.succeeded(P11)
    assert set(pair.choices()) == {P11, P20, P21}
    pair.router.succeeded(P10)
    assert set(pair.choices()) == {P10, P11, P20, P21}


def test_partitions_that_all_failed_are_tried_after_the_backoff(pair: Bench, clock: ManualClock) -> None:
    for partition in pair.partitions():
        pair.router.partition_failed(partition)
    assert set(pair.choices()) == {None}
    clock.now += 0.11
    assert set(pair.choices()) == {P10, P11, P20, P21}


def test_a_half_open_partition_gets_one_record(pair: Bench, clock: ManualClock) -> None:
    for partition in (P10, P20, P21):
        pair.router.partition_failed(partition)
    clock.now += 3.1
    pair.begin()
    on_trial = [pair.sent(partition) for partition in (P10, P20)]
    assert set(pair.choices()) == {P11, P21}
    assert not pair.may_go(P10)
    assert pair.may_go(P21)
    on_trial[0].on(SendEvent.FAILED)
    assert set(pair.choices()) == {P10, P11, P21}, "it may have failed for another reason"
    again = pair.sent(P10)
    assert not pair.may_go(P10)
    again.partition = P11  # it failed, and went elsewhere
    assert pair.may_go(P10)
    pair.router.succeeded(P20)
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.sent(P20)
    assert pair.may_go(P20)


def test_records_wait_while_all_partitions_are_probed(pair: Bench, clock: ManualClock) -> None:
    for partition in pair.partitions():
        pair.router.partition_failed(partition)
    clock.now += 0.11
    pair.begin()
    tried = set()
    for _ in range(4):
        chosen = pair.router.choose("demo")
        assert chosen is not None
        tried.add(pair.sent(chosen).partition)
    assert pair.router.choose("demo") is None
    assert tried == {P10, P11, P20, P21}
    assert set(pair.choices()) == {None}


def test_failures_move_no_key(pair: Bench) -> None:
    before = pair.owners()
    pair.router.partition_failed(P10)
    pair.router.broker_failed(2, "lost")
    assert pair.owners() == before


@pytest.mark.parametrize("whose", ["the partition's", "the broker's"])
def test_a_failed_partition_that_is_not_listed_is_gone(pair: Bench, clock: ManualClock, whose: str) -> None:
    before = pair.owners()
    pair.session.listed.remove(P10)
    assert pair.owners() == before, "as long as it works it is used"
    if whose == "the partition's":
        pair.router.partition_failed(P10)
    else:
        pair.router.broker_failed(1, "full")
    assert {key for key, owner in pair.owners().items() if owner != before[key]} == {
        key for key, owner in before.items() if owner == P10
    }
    assert P10 not in pair.owners().values()
    clock.now += 60.0
    assert set(pair.choices()) == {P11, P20, P21}, "it is not even tried"
    pair.session.listed.add(P10)
    assert set(pair.choices()) == {P10, P11, P20, P21}
    pair.router.succeeded(P10)
    assert pair.owners() == before


def test_nothing_is_gone_if_the_master_lists_nothing(pair: Bench, clock: ManualClock) -> None:
    """As one does that has just taken over, or when the topic is closed."""
    before = pair.owners()
    pair.session.listed.clear()
    pair.router.partition_failed(P10)
    pair.router.broker_failed(2, "lost")
    assert pair.owners() == before
    clock.now += 60.0
    assert set(pair.choices()) == {P10, P11, P20, P21}
