"""Looking finds exactly what stands in a range, takes turns, and says when that cannot be told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context

import pytest

from tests import messages, reading
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.clusters.servers import BOTH, EACH_FRAMING, running
from tests.messages import bring_into_files
from tests.reading import UNIT
from tests.real.topics import FLUSH_NEVER
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.bookmarks import move_bookmarks, read_bookmarks
from tubemq_spark.client.consumer.partition_scan import MARGIN, ScannedMessage, entries, scan_group, scan_partition
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import DataLossError, FencedError, PartitionOccupiedError, PositionMovedError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import Origin, Stamp, encode, parse

STRANGER = "some_java_consumer"
STAMP = Stamp(Origin("q", 7, 0), 5, None)
KINDS = (b"$msgType$=a,kind=b", b"", encode(STAMP.origin) + b"5")
MANY = 30_000  # messages, so many that a look has not asked for all of them when it gives out the first
LAYOUT_NAMES: tuple[Layout, ...] = ("one", "three", "stores")


class Shelf:
    """A topic, and all that was sent to it with the positions where it stands."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = messages.partitions(cluster, topic)
        self._stored: dict[Partition, list[tuple[int, ScannedMessage]]] = {
            partition: [] for partition in self.partitions
        }

    def send(self, count: int, attributes: bytes = b"", partitions: Sequence[Partition] = (), size: int = 40) -> None:
        wanted = messages.numbered(partitions or self.partitions, count, size)
        for partition, sent in messages.send(self.cluster, wanted, attributes=attributes).items():
            sole = reading.owns_store(self.cluster, partition)
            for one in sent:
                seen = ScannedMessage(attributes, one.message_id, one.position if sole else None)
                self._stored[partition].append((one.position, seen))

    def end(self, partition: Partition) -> int:
        """Of the partition's store."""
        places = (
            place
            for other, stored in self._stored.items()
            for place, _ in stored
            if (other.broker_id, other.store_id) == (partition.broker_id, partition.store_id)
        )
        return max(places, default=-UNIT) + UNIT

    def rows(self, partition: Partition, start: int = 0, end: int | None = None) -> list[ScannedMessage]:
        end = self.end(partition) if end is None else end
        return [seen for place, seen in self._stored[partition] if start <= place < end]

    def lose(self, partition: Partition, end: int) -> int:
        """What stood from `end` on is gone; how much."""
        left = [(place, seen) for place, seen in self._stored[partition] if place < end]
        lost = len(self._stored[partition]) - len(left)
        self._stored[partition] = left
        return lost


@dataclass(frozen=True)
class Looker:
    """Who looks at a shelf, in groups of its own."""

    session: ProducerSession
    base: str
    shelf: Shelf

    def scan_partition(
        self,
        partition: Partition,
        since: int = 0,
        until: int | None = None,
        margin: int = MARGIN,
        claim: ClaimId | None = None,
        retry_for: float | None = None,
    ) -> Iterator[ScannedMessage]:
        return scan_partition(
            self.session, self.base, partition, since, until=until, margin=margin, claim=claim, retry_for=retry_for
        )

    def claim(self, client_id: object, partition: Partition) -> int:
        """The error code."""
        cluster = self.shelf.cluster
        return reading.register(cluster, scan_group(self.base), partition, str(client_id)).errCode

    def free(self, client_id: object, partition: Partition) -> int:
        cluster = self.shelf.cluster
        return reading.unregister(cluster, scan_group(self.base), partition, str(client_id)).errCode


Open = Callable[..., Looker]


@pytest.fixture
def looker(group: str) -> Iterator[Open]:
    """Makes lookers; they wait for `retry_for` seconds, by default for longer than it takes until it is their turn."""
    with ExitStack() as stack:

        def make(shelf: Shelf, retry_for: float = 300.0) -> Looker:
            settings = replace(messages.settings(shelf.cluster), retry_for=retry_for)
            session = stack.enter_context(SESSIONS.lease(settings))
            session.add_topics([shelf.topic])
            return Looker(session, group, shelf)

        yield make


@pytest.fixture(scope="module")
def shelves() -> Callable[[Cluster, Layout], Shelf]:
    """Shelves for all tests, each of its layout filled when it is asked for first; one partition of each is empty."""
    filled: dict[tuple[str, Layout], Shelf] = {}

    def give(cluster: Cluster, layout: Layout) -> Shelf:
        if (cluster.master, layout) not in filled:
            shelf = filled[cluster.master, layout] = Shelf(cluster, cluster.new_topic(layout))
            for kind in KINDS * 2:
                shelf.send(1000, kind, shelf.partitions[1:] or shelf.partitions)
        return filled[cluster.master, layout]

    return give


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_look_finds_what_stands_in_the_range(
    cluster: Cluster,
    layout: Layout,
    shelves: Callable[[Cluster, Layout], Shelf],
    looker: Open,
    rng: random.Random,
) -> None:
    shelf = shelves(cluster, layout)
    eyes = looker(shelf)
    for partition in shelf.partitions:
        end = shelf.end(partition)
        assert list(eyes.scan_partition(partition)) == shelf.rows(partition)
        assert list(eyes.scan_partition(partition, end, margin=0)) == []
        assert list(eyes.scan_partition(partition, end + 5 * UNIT, margin=10)) == shelf.rows(partition, end - 10 * UNIT)
        for _ in range(3):
            since, until = sorted(UNIT * rng.randint(0, end // UNIT) for _ in range(2))
            margin = rng.choice((0, 1, 100, MARGIN))
            start = max(0, since - margin * UNIT)
            assert list(eyes.scan_partition(partition, since, until, margin)) == shelf.rows(partition, start, until)
    assert len(shelf.partitions) == 1 or shelf.rows(shelf.partitions[0]) == []
    kinds = {seen.attributes for partition in shelf.partitions for seen in eyes.scan_partition(partition)}
    assert [parse(kind) for kind in sorted(kinds)] == [None, None, STAMP]


def test_what_comes_after_a_look_began_is_not_seen(cluster: Cluster, looker: Open) -> None:
    shelf = Shelf(cluster, cluster.new_topic("one"))
    partition = shelf.partitions[0]
    eyes = looker(shelf)
    assert list(eyes.scan_partition(partition)) == []
    shelf.send(20, KINDS[0], [partition])
    before = shelf.rows(partition)
    looking = eyes.scan_partition(partition)
    first = next(looking)
    shelf.send(20, KINDS[0], [partition])
    assert [first, *looking] == before
    assert list(eyes.scan_partition(partition)) == shelf.rows(partition)


def test_messages_that_nobody_gets_do_not_stop_a_look(cluster: Cluster, looker: Open) -> None:
    """They have entries in the index, but headers that do not fit."""
    shelf = Shelf(cluster, cluster.new_topic("one"))
    partition = shelf.partitions[0]
    shelf.send(5, KINDS[0], [partition])
    messages.send(cluster, [(partition, b"\x7f\xff\xff\xff too long")] * 3, flag=1)
    shelf.send(5, KINDS[2], [partition])
    eyes = looker(shelf)
    assert list(eyes.scan_partition(partition)) == shelf.rows(partition)
    assert shelf.end(partition) == 13 * UNIT


# Several at once


@pytest.fixture(scope="module")
def big() -> Callable[[Cluster], Shelf]:
    """A shelf whose first partition takes several fetches to read."""
    filled: dict[str, Shelf] = {}

    def give(cluster: Cluster) -> Shelf:
        if cluster.master not in filled:
            shelf = filled[cluster.master] = Shelf(cluster, cluster.new_topic("one"))
            shelf.send(MANY, KINDS[2], shelf.partitions[:1])
        return filled[cluster.master]

    return give


def look_in_a_process(settings: ClientSettings, base: str, partition: Partition) -> list[ScannedMessage]:
    try:
        with SESSIONS.lease(settings) as session:
            session.add_topics([partition.topic])
            return list(scan_partition(session, base, partition, 0))
    finally:
        forget_servers()


def test_looks_take_turns(cluster: Cluster, big: Callable[[Cluster], Shelf], looker: Open) -> None:
    shelf = big(cluster)
    partition = shelf.partitions[0]
    eyes = looker(shelf)
    with ExitStack() as stack:
        pools = (
            stack.enter_context(ThreadPoolExecutor(2)),
            stack.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn"))),
        )
        asked = [
            pool.submit(look_in_a_process, eyes.session.settings, eyes.base, partition)
            for pool in pools
            for _ in range(2)
        ]
        asked.append(pools[0].submit(lambda: list(eyes.scan_partition(partition))))
        for one in asked:
            assert one.result() == shelf.rows(partition)


def test_a_look_is_not_disturbed_by_others(cluster: Cluster, big: Callable[[Cluster], Shelf], looker: Open) -> None:
    shelf = big(cluster)
    partition = shelf.partitions[0]
    looking = looker(shelf).scan_partition(partition)
    first = next(looking)
    eyes = looker(shelf, retry_for=0.1)
    for claim in (None, ClaimId("another", run=9, batch=9, task=9, attempt=9)):
        with pytest.raises(PartitionOccupiedError, match=r"spark_look-.* scans .* longer than 0\.1 s") as raised:
            next(eyes.scan_partition(partition, claim=claim))
        assert not isinstance(raised.value, FencedError)
        assert raised.value.holder.startswith("spark_look-")
    assert [first, *looking] == shelf.rows(partition)


def test_a_look_that_is_given_up_leaves_the_partition(
    cluster: Cluster, big: Callable[[Cluster], Shelf], looker: Open
) -> None:
    shelf = big(cluster)
    partition = shelf.partitions[0]
    eyes = looker(shelf)
    looking = eyes.scan_partition(partition)
    next(looking)
    assert eyes.claim(STRANGER, partition) == 410
    looking.close()  # type: ignore[attr-defined]
    assert eyes.claim(STRANGER, partition) == 200

    with pytest.raises(PartitionOccupiedError, match=f"{partition} at .*: {STRANGER} scans .* than 0.1 s") as raised:
        next(eyes.scan_partition(partition, retry_for=0.1))
    assert raised.value.holder == STRANGER
    assert eyes.free(STRANGER, partition) == 200
    assert sum(1 for _ in eyes.scan_partition(partition)) == MANY


def test_a_task_tried_again_does_not_wait_for_the_try_before(
    cluster: Cluster, big: Callable[[Cluster], Shelf], looker: Open
) -> None:
    shelf = big(cluster)
    partition = shelf.partitions[0]
    eyes = looker(shelf, retry_for=10.0)  # less than the broker waits for the dead one
    dead = ClaimId("query-3", run=1, batch=5, task=3, attempt=1)
    assert eyes.claim(dead, partition) == 200
    assert list(eyes.scan_partition(partition, claim=replace(dead, attempt=2))) == shelf.rows(partition)

    looking = eyes.scan_partition(partition, claim=replace(dead, attempt=3))
    next(looking)
    assert sum(1 for _ in eyes.scan_partition(partition, claim=replace(dead, attempt=4))) == MANY
    with pytest.raises(FencedError):
        list(looking)


# Crashes


@pytest.fixture(scope="module", params=BOTH)
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker for this file alone."""
    names: tuple[Layout, ...] = ("one", "three")
    topics = {
        f"{use}_{layout}": replace(LAYOUTS[layout], settings=FLUSH_NEVER)  # or tails are not lost
        for use in ("lost", "meanwhile")
        for layout in names
    }
    with running(request.param, brokers=1, topics=topics) as cluster:
        yield cluster


def test_a_look_begins_before_what_a_crash_has_put_in_place_of_others(broker: Cluster, looker: Open) -> None:
    shelves = [Shelf(broker, f"lost_{layout}") for layout in ("one", "three")]
    eyes = [looker(shelf) for shelf in shelves]
    for shelf, eye in zip(shelves, eyes, strict=True):
        shelf.send(600)
        read_bookmarks(eye.session, eye.base, shelf.partitions)
    bring_into_files(broker, [shelf.topic for shelf in shelves])
    ends = []
    for shelf, eye in zip(shelves, eyes, strict=True):
        shelf.send(300)
        move_bookmarks(eye.session, eye.base, 0, shelf.partitions)
        ends.append(read_bookmarks(eye.session, eye.base, shelf.partitions)[shelf.partitions[0]].before(1))
    broker.kill_broker(1)
    broker.start_broker(1)
    for shelf, eye, since in zip(shelves, eyes, ends, strict=True):
        assert since == 900 * UNIT
        lost = sum(shelf.lose(partition, 600 * UNIT) for partition in shelf.partitions)
        assert lost == 300
        shelf.send(120, KINDS[2])
        for partition, mark in read_bookmarks(eye.session, eye.base, shelf.partitions).items():
            assert mark.end == 720 * UNIT, "the tail was not lost, so this proves nothing"
            assert mark.before(1) in (since, 600 * UNIT)
            assert mark.before(2) == 600 * UNIT
            for until in (None, since, 720 * UNIT, 700 * UNIT):
                seen = list(eye.scan_partition(partition, since, until))
                assert seen == shelf.rows(partition, 0, min(until or since, 720 * UNIT))
            assert list(eye.scan_partition(partition, since, since, margin=200)) == shelf.rows(partition, 520 * UNIT)


def test_what_was_seen_and_then_lost_fails_the_look(broker: Cluster, looker: Open) -> None:
    shelves = [Shelf(broker, f"meanwhile_{layout}") for layout in ("one", "three")]
    for shelf in shelves:
        shelf.send(12_000, KINDS[0], shelf.partitions[:1])
    bring_into_files(broker, [shelf.topic for shelf in shelves])
    begun = []
    for shelf in shelves:
        partition = shelf.partitions[0]
        shelf.send(5000, KINDS[2], [partition], size=200)
        looking = looker(shelf).scan_partition(partition)
        seen = list(islice(looking, 12_001))
        assert seen == shelf.rows(partition)[:12_001]
        begun.append((shelf, looking))
    broker.kill_broker(1)
    broker.start_broker(1)
    for shelf, looking in begun:
        with pytest.raises(PositionMovedError, match=f"{shelf.partitions[0]}: the broker lost messages during a scan"):
            list(looking)
        assert shelf.lose(shelf.partitions[0], 12_000 * UNIT) == 5000
        shelf.send(300, KINDS[2], shelf.partitions[:1])
        assert list(looker(shelf).scan_partition(shelf.partitions[0])) == shelf.rows(shelf.partitions[0])


# Retention: a real server takes minutes over it


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_retention_before_the_bookmark_is_nothing_to_worry_about(
    own: EmbeddedCluster, layout: Layout, looker: Open
) -> None:
    shelf = Shelf(own, own.new_topic(layout))
    shelf.send(1200)
    own.tubemq.expire(shelf.topic, keep=100)
    eyes = looker(shelf)
    for partition in shelf.partitions:
        low = shelf.end(partition) - 100 * UNIT
        for since in (low, low + 50 * UNIT, shelf.end(partition), shelf.end(partition) + UNIT):
            assert list(eyes.scan_partition(partition, since)) == shelf.rows(partition, low)


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize("until", [None, 300 * UNIT])
def test_retention_behind_the_bookmark_is_a_loss(
    own: EmbeddedCluster, layout: Layout, until: int | None, looker: Open
) -> None:
    shelf = Shelf(own, own.new_topic(layout))
    shelf.send(1200)
    own.tubemq.expire(shelf.topic, keep=100)
    eyes = looker(shelf)
    for partition in shelf.partitions:
        low = shelf.end(partition) - 100 * UNIT
        for since in (0, 200 * UNIT, min(low, until or low) - UNIT):
            with pytest.raises(
                DataLossError, match=rf"^{partition}: .* removed messages in \[{since}, {low}\)$"
            ) as raised:
                list(eyes.scan_partition(partition, since, until))
            assert (raised.value.asked, raised.value.offered) == (since, low)


def test_retention_while_looking(own: EmbeddedCluster, looker: Open) -> None:
    """What is left comes, some of it maybe a second time."""
    shelf = Shelf(own, own.new_topic("one"))
    partition = shelf.partitions[0]
    shelf.send(MANY, KINDS[2])
    eyes = looker(shelf)
    harmless, harmful = (eyes.scan_partition(partition, since, claim=None) for since in (MANY * UNIT, 0))
    seen = [next(harmless)]
    own.tubemq.expire(shelf.topic, keep=10_000)
    seen += harmless
    assert list(dict.fromkeys(seen))[-10_000:] == shelf.rows(partition, (MANY - 10_000) * UNIT)
    assert set(seen) <= set(shelf.rows(partition))
    with pytest.raises(DataLossError):
        list(harmful)


# Counting before reading


@pytest.mark.parametrize(
    ("since", "end", "margin", "count"),
    [
        (0, 0, MARGIN, 0),
        (0, 10, MARGIN, 10),
        (10, 10, MARGIN, 10),
        (10, 10, 0, 0),
        (10, 10, 4, 4),
        (10, 15, 4, 9),
        (15, 10, 4, 4),
        (100_000, 100_000, MARGIN, MARGIN),
        (100_000, 100_001, MARGIN, MARGIN + 1),
    ],
)
def test_entries_are_counted_before_they_are_read(since: int, end: int, margin: int, count: int) -> None:
    assert entries(since * UNIT, end * UNIT, margin=margin) == count
