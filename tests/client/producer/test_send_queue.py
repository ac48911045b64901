# SPDX-License-Identifier: Apache-2.0
"""The order and the place of records with a key or an explicit partition, also when brokers fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.waiting import wait_until
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import RecordId, RecordMetadata
from tubemq_spark.client.producer.send_queue import LaneId, SendQueue
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.key_partitioner import KeyMap
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault

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


def check_order(cluster: EmbeddedCluster, sent: dict[str, list[int]]) -> None:
    """Check that each key's rows are stored in one partition and in order, with copies beside the first."""
    homes: dict[str, list[Partition]] = defaultdict(list)
    for partition, keys in stored_lines(cluster).items():
        for key, rows in keys.items():
            homes[key].append(partition)
            assert list(dict.fromkeys(rows)) == sent[key]
            assert rows == sorted(rows)
    assert {key: len(partitions) for key, partitions in homes.items()} == dict.fromkeys(sent, 1)


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


def test_keys_of_a_removed_partition_go_to_others(cluster: EmbeddedCluster) -> None:
    """No other key moves. The broker says that the partition is closed, and the master no longer lists it."""
    owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
    left = KeyMap([Partition(1, "demo", number) for number in (0, 1, 2)])
    with Producer(settings(cluster)) as producer:
        producer.send("demo", b"none 0")
        producer.flush()
        cluster.tubemq.on("send_message", broker=2).fail(403, "closed")
        cluster.tubemq._on_thread(lambda: cluster.tubemq._catalog.topics["demo"].pop(2))
        for row in range(100):
            producer.send("demo", body(f"key {row}", row), key=b"key %d" % row)
        stored = producer.flush()
    assert sum(stored.values()) == 101
    for partition, keys in stored_lines(cluster).items():
        for key in keys.keys() - {"none"}:
            owner = owners.partition(key.encode())
            assert partition == (owner if owner.broker_id == 1 else left.partition(key.encode()))


FAILURES: dict[str, Callable[[Calls], Fault]] = {
    "500": lambda calls: calls.fail(500),
    "503": lambda calls: calls.fail(503),
    "closed": Calls.close_connection,
    "stored and closed": Calls.close_mid_frame,
    "exception": lambda calls: calls.throw("java.lang.reflect.InvocationTargetException"),
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("keys", ["two keys", "a hot key", "many keys"])
def test_each_key_keeps_its_order_while_sends_fail(
    cluster: EmbeddedCluster, use_timings: UseTimings, kind: str, keys: str
) -> None:
    use_timings(closed_connection_settling=0.02)
    for nth in (5, 60, 150):
        FAILURES[kind](cluster.tubemq.on("send_message", nth=nth, times=2))
    sent: dict[str, list[int]] = defaultdict(list)
    with Producer(settings(cluster)) as producer:
        for row in range(400):
            number = {"two keys": row % 2, "a hot key": (row % 10 == 0) * row, "many keys": row % 40}[keys]
            sent[f"key {number}"].append(row)
            producer.send("demo", body(f"key {number}", row), row=row, key=b"%d" % number)
    check_order(cluster, sent)


class Stored:
    """The rows of each key in the order in which they were stored. Records of a key are sent one after the other."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = defaultdict(list)
        self.partitions: dict[int, list[Partition]] = defaultdict(list)

    def note(self, topic: str, row: int | None, record_id: RecordId | None, stored: RecordMetadata) -> None:
        assert row is not None
        self.rows[row % 20].append(row)
        self.partitions[row % 20].append(stored.partition)

    def check(self, count: int) -> None:
        assert self.rows == {key: list(range(key, count, 20)) for key in range(20)}


def send_rows(producer: Producer, start: int, end: int) -> None:
    for row in range(start, end):
        producer.send("demo", b"%d" % row, row=row, key=b"%d" % (row % 20))


def test_waiting_records_follow_their_keys_to_new_partitions(cluster: EmbeddedCluster) -> None:
    stored = Stored()
    with Producer(settings(cluster), on_stored=stored.note) as producer:
        send_rows(producer, 0, 200)
        producer.flush()
        refusals = [cluster.tubemq.on("send_message", broker=n).fail(503) for n in cluster.broker_ids]
        send_rows(producer, 200, 600)
        cluster.create("demo", TopicSpec(partitions=6))
        wait_until(lambda: producer._targets.refresh() and producer._targets.lists(Partition(2, "demo", 5)))
        send_rows(producer, 600, 800)
        for refusal in refusals:
            refusal.remove()
    stored.check(800)
    for count, start, end in ((3, 0, 10), (6, 10, 40)):
        owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in range(count)])
        for key, found in stored.partitions.items():
            assert set(found[start:end]) == {owners.partition(b"%d" % key)}


def test_a_lane_whose_records_have_moved_takes_others() -> None:
    old, new = Partition(1, "demo", 0), Partition(1, "demo", 1)
    queue = SendQueue()
    lane = queue.lane(LaneId("demo", old, by_key=True))
    for row in range(2):
        queue.put(lane, b"", b"%d" % row, (None, None), row, None, b"%d" % row)
        queue.reroute(lambda *_: new)
    taken = [queue.take(queue.lane(LaneId("demo", new, by_key=True)), 10) for _ in range(2)]
    assert [batch and batch.rows for batch in taken] == [[0], [1]]


def test_waiting_records_keep_their_order_if_their_partition_is_removed(cluster: EmbeddedCluster) -> None:
    stored = Stored()
    with Producer(settings(cluster), on_stored=stored.note) as producer:
        send_rows(producer, 0, 200)
        producer.flush()
        cluster.tubemq.on("send_message", broker=2).fail(403, "closed")
        send_rows(producer, 200, 600)
        cluster.tubemq._on_thread(lambda: cluster.tubemq._catalog.topics["demo"].pop(2))
        wait_until(lambda: producer._targets.refresh() and not producer._session.lists(Partition(2, "demo", 0)))
        send_rows(producer, 600, 1000)
    stored.check(1000)


# Explicit partitions


def test_explicit_partitions_keep_the_order_without_failures(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        for row in range(2000):
            producer.send("demo", body(f"target {row % 2}", row), target=(1, row % 2))
    check_order(cluster, {"target 0": list(range(0, 2000, 2)), "target 1": list(range(1, 2000, 2))})


@pytest.mark.parametrize("keyed", [False, True])
def test_a_failing_partition_does_not_delay_others(cluster: EmbeddedCluster, keyed: bool) -> None:
    """Not even on the same broker. The partition fails until all other records are stored."""
    sends = cluster.tubemq.on("send_message").count()
    failing = cluster.tubemq.on("send_message", broker=1, partition=0).fail(500)
    cluster.tubemq.on("send_message", broker=1, partition=1, nth=100, times=1).run(failing.remove, after=True)
    key = b"key" if keyed else None
    with Producer(settings(cluster), max_in_flight=20) as producer:
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


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("target", [(1, 3), (3, 0), (1, 10_000), (-1, -1)], ids=str)
def test_an_unknown_explicit_partition_does_not_end_the_producer(
    cluster: EmbeddedCluster, target: tuple[int, int], key: bytes | None
) -> None:
    with Producer(settings(cluster), rows_of="of task partition 4") as producer:
        producer.send("demo", b"before 0", row=0, target=(1, 2), key=key)
        with pytest.raises(
            ConfigError,
            match=rf"^row 1 of task partition 4: topic demo has no partition {target[1]} on a broker {target[0]}; see ",
        ):
            producer.send("demo", b"wrong 1", row=1, target=target, key=key)
        producer.send("demo", b"after 2", row=2, target=(1, 2), key=key)
    assert set(bodies_in(cluster)) == {b"before 0", b"after 2"}


def test_an_explicit_partition_of_a_broker_that_is_down_is_not_unknown(cluster: EmbeddedCluster) -> None:
    """Option `failedRows` must not drop such a row."""
    cluster.stop_broker(2)
    with Producer(settings(cluster, retry_for=0.3)) as producer:
        with pytest.raises(
            TransportError, match=r"^row 4 cannot be sent to partition 0 on broker 2, .* broker 2 at .*, which is down"
        ):
            producer.send("demo", b"two 4", row=4, target=(2, 0))
        cluster.start_broker(2)
        wait_until(lambda: producer._targets.refresh() and producer._targets.lists(Partition(2, "demo", 0)))
        producer.send("demo", b"two 4", row=4, target=(2, 0))
    assert set(bodies_in(cluster)) == {b"two 4"}


def test_a_new_explicit_partition_is_found(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        producer.send("demo", b"old 0")
        producer.flush()  # before the partition exists, because the record may go there, too
        cluster.create("demo", TopicSpec(partitions=4))
        producer.send("demo", b"new 1", target=(2, 3))
        assert producer.flush()[Partition(2, "demo", 3)] == 1
