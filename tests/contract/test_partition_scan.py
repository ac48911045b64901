# SPDX-License-Identifier: Apache-2.0
"""A scan finds exactly the messages of a range, waits for its turn, and fails if its result would not be complete."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from tests import messages
from tests.clusters import LAYOUTS, Cluster, Layout
from tests.clusters.servers import EACH_FRAMING, EMBEDDED, REAL_THOROUGHLY, running
from tests.messages import bring_into_files
from tests.reading import UNIT
from tests.real.topics import FLUSH_NEVER
from tests.scanning import KINDS, MANY, STAMP, FilledTopic, NewScanner, Scanner, scanners
from tubemq_spark.client.consumer.partition_scan import MARGIN
from tubemq_spark.errors import PartitionOccupiedError, PositionMovedError
from tubemq_spark.protocol.stamp import parse

STRANGER = "some_java_consumer"
FLUSHED = 2_000  # messages of a topic before its lost tail


@pytest.fixture
def new_scanner(group: str) -> Iterator[NewScanner]:
    with scanners(group) as new:
        yield new


@pytest.fixture(scope="module", params=LAYOUTS)
def filled(request: pytest.FixtureRequest, cluster: Cluster) -> FilledTopic:
    """A topic with messages. If it has several partitions, the first one is empty."""
    topic = FilledTopic(cluster, cluster.new_topic(request.param))
    for kind in KINDS * 2:
        topic.send(1000, kind, topic.partitions[1:] or topic.partitions)
    return topic


@pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)
def test_a_scan_finds_the_messages_of_its_range(
    filled: FilledTopic, new_scanner: NewScanner, rng: random.Random
) -> None:
    scanner = new_scanner(filled)
    for partition in filled.partitions:
        end = filled.end(partition)
        assert list(scanner.scan_partition(partition)) == filled.rows(partition)
        assert list(scanner.scan_partition(partition, end, margin=0)) == []
        for until in (None, end + 9 * UNIT):  # as after a crash, which may have moved the end back
            rows = list(scanner.scan_partition(partition, end + 5 * UNIT, until, margin=10))
            assert rows == filled.rows(partition, end - 10 * UNIT)
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


def test_a_scan_takes_the_first_group_in_which_nobody_claims_the_partition(
    cluster: Cluster, new_scanner: NewScanner
) -> None:
    """The partition takes several fetches to read."""
    filled = FilledTopic(cluster, cluster.new_topic("one"))
    partition = filled.partitions[0]
    filled.send(MANY, KINDS[2], [partition])
    scanner = new_scanner(filled)
    scan = scanner.scan_partition(partition)
    next(scan)
    assert scanner.claim(STRANGER, partition) == 410
    scan.close()  # type: ignore[attr-defined]
    assert scanner.claim(STRANGER, partition) == 200

    assert sum(1 for _ in scanner.scan_partition(partition)) == MANY  # in the next group
    groups = range(len(scanner.groups))
    for group in groups[1:]:
        assert scanner.claim(STRANGER, partition, group) == 200
    with pytest.raises(PartitionOccupiedError, match=f"{partition} at .*: {STRANGER} and .* than 0.1 s") as raised:
        next(scanner.scan_partition(partition, retry_for=0.1))
    assert raised.value.holder == STRANGER
    for group in groups:
        assert scanner.free(STRANGER, partition, group) == 200
    assert sum(1 for _ in scanner.scan_partition(partition)) == MANY


# Crashes


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY])
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker that only this file uses."""
    names: tuple[Layout, ...] = ("one", "three")
    topics = {f"meanwhile_{one}": replace(LAYOUTS[one], settings=FLUSH_NEVER) for one in names}  # else no tail is lost
    with running(request.param, brokers=1, topics=topics) as cluster:
        yield cluster


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
    anew = [new_scanner(filled) for filled, _ in begun]
    broker.wait_for_expiry(lambda: all(is_free(scanner) for scanner in anew), beating=())  # the claims of the scans
    for scanner in anew:
        partition = scanner.filled.partitions[0]
        assert list(scanner.scan_partition(partition)) == scanner.filled.rows(partition)


def is_free(scanner: Scanner) -> bool:
    partition = scanner.filled.partitions[0]
    return scanner.claim(STRANGER, partition) == 200 and scanner.free(STRANGER, partition) == 200
