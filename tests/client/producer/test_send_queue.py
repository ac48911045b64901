# SPDX-License-Identifier: Apache-2.0
"""The order and the place of records with a key or an explicit partition, also when brokers fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import Record
from tubemq_spark.client.producer.send_queue import LaneId, SendLimits, SendQueue
from tubemq_spark.protocol.key_partitioner import KeyMap
from tubemq_spark.protocol.metadata import Partition

SPEC = TopicSpec(partitions=3)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings) -> None:
    """Timeouts are not extended."""
    use_timings(slow_peer_grace=0.05)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions."""
    with embedded_cluster(topics={"demo": SPEC}) as running:
        yield running


Lines = dict[Partition, dict[str, list[int]]]  # the stored rows of each partition and key, in their order


def stored_lines(cluster: EmbeddedCluster) -> Lines:
    found: Lines = defaultdict(lambda: defaultdict(list))
    for message in cluster.tubemq.messages("demo"):
        key, row = message.body.decode().rsplit(" ", 1)
        found[Partition(message.broker_id, "demo", message.partition)][key].append(int(row))
    return found


def body(key: str, row: int) -> bytes:
    return f"{key} {row}".encode()


# Keys


def test_a_key_goes_to_the_partition_of_its_hash(cluster: EmbeddedCluster) -> None:
    """In every task, whatever other records it sends."""
    owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
    for _ in range(2):
        with Producer(settings(cluster)) as producer:
            for row in range(60):
                producer.send("demo", body("none", row))
                producer.send("demo", body(f"key {row}", row), key=b"key %d" % row)
    for partition, keys in stored_lines(cluster).items():
        assert {owners.partition(key.encode()) for key in keys if key != "none"} <= {partition}


def test_a_lane_whose_records_have_moved_takes_others() -> None:
    old, new = Partition(1, "demo", 0), Partition(1, "demo", 1)
    place = [old]
    queue = SendQueue(lambda *_: place[0])
    for row in range(2):
        place[0] = old
        queue.put("demo", None, Record(b"", b"%d" % row, (None, None), row, key=b"%d" % row))
        place[0] = new
        queue.reroute()
    taken = [queue.take(queue.lane(LaneId("demo", new, by_key=True)), 10) for _ in range(2)]
    assert [batch and batch.rows for batch in taken] == [[0], [1]]


# Memory


@pytest.mark.parametrize(("size", "stored"), [(100, 2), (63_000, 1)], ids=["small records", "a large record"])
def test_a_caller_waits_for_a_64th_of_the_memory_or_for_one_large_record(size: int, stored: int) -> None:
    queue, place = SendQueue(lambda *_: Partition(1, "demo", 0), SendLimits(size=64_000)), Partition(1, "demo", 0)
    while not queue.is_full:
        queue.put("demo", place, Record(b"", bytes(size), (None, None)))
    before, released = queue.bytes, 0
    batch = queue.take(queue.lanes()[0], 1000)
    while batch is not None and not queue.has_room(before):
        queue.release(batch, released, released + 1)
        released += 1
    assert released == stored


# Explicit partitions


def test_explicit_partitions_keep_the_order_without_failures(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        for row in range(2000):
            producer.send("demo", body(f"target {row % 2}", row), target=(1, row % 2))
    assert stored_lines(cluster) == {
        Partition(1, "demo", number): {f"target {number}": list(range(number, 2000, 2))} for number in (0, 1)
    }


@pytest.mark.parametrize("keyed", [False, True])
def test_a_failing_partition_does_not_delay_others(cluster: EmbeddedCluster, keyed: bool) -> None:
    """Not even on the same broker. The partition fails until all other records are stored."""
    sends = cluster.tubemq.on("send_message").count()
    failing = cluster.tubemq.on("send_message", broker=1, partition=0).fail(500)
    cluster.tubemq.on("send_message", broker=1, partition=1, nth=100, times=1).run(failing.remove, after=True)
    key = b"key" if keyed else None
    with Producer(settings(cluster), SendLimits(in_flight=20)) as producer:
        for row in range(100):
            producer.send("demo", body("zero", row), row=row, target=(1, 0), key=key)
            producer.send("demo", body("one", row), row=row, target=(1, 1), key=key)
    assert failing.fired > 0
    assert sends.fired == 200 + failing.fired
    assert failing.fired < (20 if keyed else 100), "records behind the failing one wait"
    found = stored_lines(cluster)
    assert found[Partition(1, "demo", 1)]["one"] == list(range(100))
    zero = found[Partition(1, "demo", 0)]["zero"]
    assert zero == list(range(100)) if keyed else set(zero) == set(range(100))
