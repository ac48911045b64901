"""A scan finds exactly the messages of a range, waits for its turn, and fails if its result would not be complete."""

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
from tests.clusters.servers import EACH_FRAMING, EMBEDDED, REAL_THOROUGHLY, running
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
MANY = 18_000  # messages: a scan has not fetched all of them when it returns the first
FLUSHED = 2_000  # messages of a topic before its lost tail
LAYOUT_NAMES: tuple[Layout, ...] = ("one", "three", "stores")


class FilledTopic:
    """A topic, and all messages that were sent to it, with their positions."""

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
        """Return the end of the partition's store."""
        positions = (
            position
            for other, stored in self._stored.items()
            for position, _ in stored
            if (other.broker_id, other.store_id) == (partition.broker_id, partition.store_id)
        )
        return max(positions, default=-UNIT) + UNIT

    def rows(self, partition: Partition, start: int = 0, end: int | None = None) -> list[ScannedMessage]:
        end = self.end(partition) if end is None else end
        return [seen for position, seen in self._stored[partition] if start <= position < end]

    def lose(self, partition: Partition, end: int) -> int:
        """Forget the messages from `end` on. Return how many they are."""
        left = [(position, seen) for position, seen in self._stored[partition] if position < end]
        lost = len(self._stored[partition]) - len(left)
        self._stored[partition] = left
        return lost


@dataclass(frozen=True)
class Scanner:
    """Scans a topic in groups of its own."""

    session: ProducerSession
    base: str
    filled: FilledTopic

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
        """Return the error code."""
        cluster = self.filled.cluster
        return reading.register(cluster, scan_group(self.base), partition, str(client_id)).errCode

    def free(self, client_id: object, partition: Partition) -> int:
        cluster = self.filled.cluster
        return reading.unregister(cluster, scan_group(self.base), partition, str(client_id)).errCode


NewScanner = Callable[..., Scanner]


@pytest.fixture
def new_scanner(group: str) -> Iterator[NewScanner]:
    """Return a factory of scanners. They wait `retry_for` seconds, by default longer than any turn takes."""
    with ExitStack() as stack:

        def make(filled: FilledTopic, retry_for: float = 300.0) -> Scanner:
            settings = replace(messages.settings(filled.cluster), retry_for=retry_for)
            session = stack.enter_context(SESSIONS.lease(settings))
            session.add_topics([filled.topic])
            return Scanner(session, group, filled)

        yield make


@pytest.fixture(scope="module")
def topics() -> Callable[[Cluster, Layout], FilledTopic]:
    """Return the topic of a layout that all tests share, filled on first use. One partition of each topic is empty."""
    cache: dict[tuple[str, Layout], FilledTopic] = {}

    def give(cluster: Cluster, layout: Layout) -> FilledTopic:
        if (cluster.master, layout) not in cache:
            filled = cache[cluster.master, layout] = FilledTopic(cluster, cluster.new_topic(layout))
            for kind in KINDS * 2:
                filled.send(1000, kind, filled.partitions[1:] or filled.partitions)
        return cache[cluster.master, layout]

    return give


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_scan_finds_the_messages_of_its_range(
    cluster: Cluster,
    layout: Layout,
    topics: Callable[[Cluster, Layout], FilledTopic],
    new_scanner: NewScanner,
    rng: random.Random,
) -> None:
    filled = topics(cluster, layout)
    scanner = new_scanner(filled)
    for partition in filled.partitions:
        end = filled.end(partition)
        assert list(scanner.scan_partition(partition)) == filled.rows(partition)
        assert list(scanner.scan_partition(partition, end, margin=0)) == []
        assert list(scanner.scan_partition(partition, end + 5 * UNIT, margin=10)) == filled.rows(
            partition, end - 10 * UNIT
        )
        for _ in range(3):
            since, until = sorted(UNIT * rng.randint(0, end // UNIT) for _ in range(2))
            margin = rng.choice((0, 1, 100, MARGIN))
            start = max(0, since - margin * UNIT)
            assert list(scanner.scan_partition(partition, since, until, margin)) == filled.rows(partition, start, until)
    assert len(filled.partitions) == 1 or filled.rows(filled.partitions[0]) == []
    kinds = {seen.attributes for partition in filled.partitions for seen in scanner.scan_partition(partition)}
    assert [parse(kind) for kind in sorted(kinds)] == [None, None, STAMP]


def test_a_scan_ends_where_the_store_ended_when_it_began(cluster: Cluster, new_scanner: NewScanner) -> None:
    filled = FilledTopic(cluster, cluster.new_topic("one"))
    partition = filled.partitions[0]
    scanner = new_scanner(filled)
    assert list(scanner.scan_partition(partition)) == []
    filled.send(20, KINDS[0], [partition])
    before = filled.rows(partition)
    scan = scanner.scan_partition(partition)
    first = next(scan)
    filled.send(20, KINDS[0], [partition])
    assert [first, *scan] == before
    assert list(scanner.scan_partition(partition)) == filled.rows(partition)


def test_entries_without_a_message_do_not_stop_a_scan(cluster: Cluster, new_scanner: NewScanner) -> None:
    """Brokers do not return messages whose attribute header does not fit."""
    filled = FilledTopic(cluster, cluster.new_topic("one"))
    partition = filled.partitions[0]
    filled.send(5, KINDS[0], [partition])
    messages.send(cluster, [(partition, b"\x7f\xff\xff\xff too long")] * 3, flag=1)
    filled.send(5, KINDS[2], [partition])
    cluster.wait_flushed(filled.topic)  # else the scan waits until the broker flushes
    scanner = new_scanner(filled)
    assert list(scanner.scan_partition(partition)) == filled.rows(partition)
    assert filled.end(partition) == 13 * UNIT


# Several at once


@pytest.fixture(scope="module")
def big() -> Callable[[Cluster], FilledTopic]:
    """Return a topic whose first partition takes several fetches to read."""
    cache: dict[str, FilledTopic] = {}

    def give(cluster: Cluster) -> FilledTopic:
        if cluster.master not in cache:
            filled = cache[cluster.master] = FilledTopic(cluster, cluster.new_topic("one"))
            filled.send(MANY, KINDS[2], filled.partitions[:1])
        return cache[cluster.master]

    return give


def scan_in_a_process(settings: ClientSettings, base: str, partition: Partition) -> list[ScannedMessage]:
    try:
        with SESSIONS.lease(settings) as session:
            session.add_topics([partition.topic])
            return list(scan_partition(session, base, partition, 0))
    finally:
        forget_servers()


def test_scans_take_turns(cluster: Cluster, big: Callable[[Cluster], FilledTopic], new_scanner: NewScanner) -> None:
    filled = big(cluster)
    partition = filled.partitions[0]
    scanner = new_scanner(filled)
    with ExitStack() as stack:
        pools = (
            stack.enter_context(ThreadPoolExecutor(2)),
            stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn"))),
        )
        asked = [
            pool.submit(scan_in_a_process, scanner.session.settings, scanner.base, partition)
            for pool in pools
            for _ in range(2)
        ]
        asked.append(pools[0].submit(lambda: list(scanner.scan_partition(partition))))
        for one in asked:
            assert one.result() == filled.rows(partition)


def test_other_claims_do_not_disturb_a_scan(
    cluster: Cluster, big: Callable[[Cluster], FilledTopic], new_scanner: NewScanner
) -> None:
    filled = big(cluster)
    partition = filled.partitions[0]
    scan = new_scanner(filled).scan_partition(partition)
    first = next(scan)
    scanner = new_scanner(filled, retry_for=0.1)
    for claim in (None, ClaimId("another", run=9, batch=9, task=9, attempt=9)):
        with pytest.raises(PartitionOccupiedError, match=r"spark_look-.* scans .* longer than 0\.1 s") as raised:
            next(scanner.scan_partition(partition, claim=claim))
        assert not isinstance(raised.value, FencedError)
        assert raised.value.holder.startswith("spark_look-")
    assert [first, *scan] == filled.rows(partition)


def test_a_closed_scan_gives_the_partition_back(
    cluster: Cluster, big: Callable[[Cluster], FilledTopic], new_scanner: NewScanner
) -> None:
    filled = big(cluster)
    partition = filled.partitions[0]
    scanner = new_scanner(filled)
    scan = scanner.scan_partition(partition)
    next(scan)
    assert scanner.claim(STRANGER, partition) == 410
    scan.close()  # type: ignore[attr-defined]
    assert scanner.claim(STRANGER, partition) == 200

    with pytest.raises(PartitionOccupiedError, match=f"{partition} at .*: {STRANGER} scans .* than 0.1 s") as raised:
        next(scanner.scan_partition(partition, retry_for=0.1))
    assert raised.value.holder == STRANGER
    assert scanner.free(STRANGER, partition) == 200
    assert sum(1 for _ in scanner.scan_partition(partition)) == MANY


def test_a_repeated_task_does_not_wait_for_its_earlier_attempt(
    cluster: Cluster, big: Callable[[Cluster], FilledTopic], new_scanner: NewScanner
) -> None:
    filled = big(cluster)
    partition = filled.partitions[0]
    scanner = new_scanner(filled, retry_for=10.0)  # less than the time after which the broker drops the dead claim
    dead = ClaimId("query-3", run=1, batch=5, task=3, attempt=1)
    assert scanner.claim(dead, partition) == 200
    assert list(scanner.scan_partition(partition, claim=replace(dead, attempt=2))) == filled.rows(partition)

    scan = scanner.scan_partition(partition, claim=replace(dead, attempt=3))
    next(scan)
    assert sum(1 for _ in scanner.scan_partition(partition, claim=replace(dead, attempt=4))) == MANY
    with pytest.raises(FencedError):
        list(scan)


# Crashes


@pytest.fixture(scope="module", params=[EMBEDDED, REAL_THOROUGHLY])
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker that only this file uses."""
    names: tuple[Layout, ...] = ("one", "three")
    topics = {
        f"{use}_{layout}": replace(LAYOUTS[layout], settings=FLUSH_NEVER)  # else no tail is lost
        for use in ("lost", "meanwhile")
        for layout in names
    }
    with running(request.param, brokers=1, topics=topics) as cluster:
        yield cluster


def test_a_scan_begins_before_positions_that_a_crash_may_have_reused(broker: Cluster, new_scanner: NewScanner) -> None:
    topics = [FilledTopic(broker, f"lost_{layout}") for layout in ("one", "three")]
    scanners = [new_scanner(filled) for filled in topics]
    for filled, scanner in zip(topics, scanners, strict=True):
        filled.send(600)
        read_bookmarks(scanner.session, scanner.base, filled.partitions)
    bring_into_files(broker, [filled.topic for filled in topics])
    ends = []
    for filled, scanner in zip(topics, scanners, strict=True):
        filled.send(300)
        move_bookmarks(scanner.session, scanner.base, 0, filled.partitions)
        ends.append(read_bookmarks(scanner.session, scanner.base, filled.partitions)[filled.partitions[0]].before(1))
    broker.kill_broker(1)
    broker.start_broker(1)
    for filled, scanner, since in zip(topics, scanners, ends, strict=True):
        assert since == 900 * UNIT
        lost = sum(filled.lose(partition, 600 * UNIT) for partition in filled.partitions)
        assert lost == 300
        filled.send(120, KINDS[2])
        for partition, bookmark in read_bookmarks(scanner.session, scanner.base, filled.partitions).items():
            assert bookmark.end == 720 * UNIT, "the tail was not lost, so this proves nothing"
            assert bookmark.before(1) in (since, 600 * UNIT)
            assert bookmark.before(2) == 600 * UNIT
            for until in (None, since, 720 * UNIT, 700 * UNIT):
                seen = list(scanner.scan_partition(partition, since, until))
                assert seen == filled.rows(partition, 0, min(until or since, 720 * UNIT))
            assert list(scanner.scan_partition(partition, since, since, margin=200)) == filled.rows(
                partition, 520 * UNIT
            )


def test_a_scan_fails_if_a_crash_loses_messages_that_it_returned(broker: Cluster, new_scanner: NewScanner) -> None:
    topics = [FilledTopic(broker, f"meanwhile_{layout}") for layout in ("one", "three")]
    for filled in topics:
        filled.send(FLUSHED, KINDS[0], filled.partitions[:1])
    bring_into_files(broker, [filled.topic for filled in topics])
    begun = []
    for filled in topics:
        partition = filled.partitions[0]
        filled.send(5000, KINDS[2], [partition], size=200)
        scan = new_scanner(filled).scan_partition(partition)
        seen = list(islice(scan, FLUSHED + 1))
        assert seen == filled.rows(partition)[: FLUSHED + 1]
        begun.append((filled, scan))
    broker.kill_broker(1)
    broker.start_broker(1)
    for filled, scan in begun:
        with pytest.raises(PositionMovedError, match=f"{filled.partitions[0]}: the broker lost messages during a scan"):
            list(scan)
        assert filled.lose(filled.partitions[0], FLUSHED * UNIT) == 5000
        filled.send(300, KINDS[2], filled.partitions[:1])
        assert list(new_scanner(filled).scan_partition(filled.partitions[0])) == filled.rows(filled.partitions[0])


# Retention. Embedded only, because a real server takes minutes to expire messages


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_scan_ignores_retention_before_the_bookmark(
    own: EmbeddedCluster, layout: Layout, new_scanner: NewScanner
) -> None:
    filled = FilledTopic(own, own.new_topic(layout))
    filled.send(1200)
    own.tubemq.expire(filled.topic, keep=100)
    scanner = new_scanner(filled)
    for partition in filled.partitions:
        low = filled.end(partition) - 100 * UNIT
        for since in (low, low + 50 * UNIT, filled.end(partition), filled.end(partition) + UNIT):
            assert list(scanner.scan_partition(partition, since)) == filled.rows(partition, low)


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
@pytest.mark.parametrize("until", [None, 300 * UNIT])
def test_retention_behind_the_bookmark_fails_a_scan(
    own: EmbeddedCluster, layout: Layout, until: int | None, new_scanner: NewScanner
) -> None:
    filled = FilledTopic(own, own.new_topic(layout))
    filled.send(1200)
    own.tubemq.expire(filled.topic, keep=100)
    scanner = new_scanner(filled)
    for partition in filled.partitions:
        low = filled.end(partition) - 100 * UNIT
        for since in (0, 200 * UNIT, min(low, until or low) - UNIT):
            with pytest.raises(
                DataLossError, match=rf"^{partition}: .* removed messages in \[{since}, {low}\)$"
            ) as raised:
                list(scanner.scan_partition(partition, since, until))
            assert (raised.value.asked, raised.value.offered) == (since, low)


def test_retention_during_a_scan_may_repeat_messages(own: EmbeddedCluster, new_scanner: NewScanner) -> None:
    filled = FilledTopic(own, own.new_topic("one"))
    partition = filled.partitions[0]
    filled.send(MANY, KINDS[2])
    scanner = new_scanner(filled)
    harmless, harmful = (scanner.scan_partition(partition, since, claim=None) for since in (MANY * UNIT, 0))
    seen = [next(harmless)]
    own.tubemq.expire(filled.topic, keep=6_000)
    seen += harmless
    assert list(dict.fromkeys(seen))[-6_000:] == filled.rows(partition, (MANY - 6_000) * UNIT)
    assert set(seen) <= set(filled.rows(partition))
    with pytest.raises(DataLossError):
        list(harmful)


# Counting entries before a scan


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
def test_entries_of_a_scan(since: int, end: int, margin: int, count: int) -> None:
    assert entries(since * UNIT, end * UNIT, margin=margin) == count
