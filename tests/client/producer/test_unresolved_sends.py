# SPDX-License-Identifier: Apache-2.0
"""Unresolved sends: with a look-up, each record with unknown outcome is looked up first, and is stored once.
Without one, the records of a key keep their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import RecordId, RecordMetadata, RecordPlaces
from tubemq_spark.client.producer.send_queue import SendLimits
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault

SOON = 0.3  # seconds until a missing answer counts as a timeout
PATIENT = 3600.0  # seconds
ENTRY = 28  # bytes of a message in the store's index


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings) -> None:
    use_timings(slow_peer_grace=0.05, closed_connection_settling=0.05)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions, in one store on each broker."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}) as running:
        yield running


@pytest.fixture
def single() -> Iterator[EmbeddedCluster]:
    """One broker with one partition."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running


class StoreLookup:
    """A `RecordLookup` that sees what the brokers store. A record's id is the number at the end of its body.

    `asked` has all look-ups. The first `failures` look-ups fail.
    """

    def __init__(self, cluster: EmbeddedCluster, *, failures: int = 0) -> None:
        self.asked: list[tuple[Partition, int | None, tuple[int, ...]]] = []
        self.used: list[Partition] = []
        self.failures = failures
        self.check: Callable[[Partition, Collection[int]], None] = lambda partition, record_ids: None
        self._cluster = cluster

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        self.used += partitions
        return partitions

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[Any]
    ) -> Mapping[RecordId, RecordMetadata]:
        assert partition in self.used
        assert record_ids
        self.check(partition, record_ids)
        self.asked.append((partition, start, tuple(record_ids)))
        if self.failures:
            self.failures -= 1
            raise TransportError(f"nobody can tell of {partition}")
        stored_records = self.stored_records(partition)
        found = {record_id: stored_records[record_id] for record_id in record_ids if record_id in stored_records}
        # Records before the start are not found.
        return {record_id: stored for record_id, stored in found.items() if (stored.offset or 0) >= (start or 0)}

    def stored_records(self, partition: Partition) -> dict[RecordId, RecordMetadata]:
        return {
            id_in(message.body): RecordMetadata(partition, message.message_id, message.offset)
            for message in self._cluster.tubemq.messages("demo")
            if (message.broker_id, message.partition) == (partition.broker_id, partition.partition_id)
        }


def id_in(body: bytes) -> int:
    return int(body.split()[-1])


class Task:
    """A producer with a look-up, the records that it sends, and what it reports as stored."""

    def __init__(
        self, cluster: EmbeddedCluster, lookup: StoreLookup, *, max_in_flight: int = 1000, **others: Any
    ) -> None:
        self.reported: dict[int, list[RecordMetadata]] = defaultdict(list)
        self.producer = Producer(
            settings(cluster, **others), SendLimits(max_in_flight), "of the task", lookup=lookup, on_stored=self._note
        )

    def _note(self, rows: Sequence[Any], ids: Sequence[Any], places: RecordPlaces) -> None:
        assert rows == ids
        partition, message_ids, offsets, _ = places
        for record_id, number, offset in zip(ids, message_ids, offsets, strict=True):
            self.reported[record_id].append(RecordMetadata(partition, number, offset))

    def run(self, count: int, keys: int = 0, target: tuple[int, int] | None = None) -> None:
        with self.producer as producer:
            for row in range(count):
                key = b"%d" % (row % keys) if keys else None
                producer.send("demo", b"row %d" % row, row=row, record_id=row, key=key, target=target)


def check_once(cluster: EmbeddedCluster, task: Task, count: int) -> None:
    """Check that each row is stored once, and was reported once with its place."""
    assert bodies_in(cluster) == {b"row %d" % row: 1 for row in range(count)}
    assert task.producer.acknowledged == count
    assert {record_id: len(stored) for record_id, stored in task.reported.items()} == dict.fromkeys(range(count), 1)
    stored_records = {id_in(message.body): message for message in cluster.tubemq.messages("demo")}
    for record_id, (stored,) in task.reported.items():
        message = stored_records[record_id]
        assert stored.partition == Partition(message.broker_id, "demo", message.partition)
        assert (stored.message_id, stored.offset) == (message.message_id, message.offset)


UNKNOWN_OUTCOME: dict[str, Callable[[Calls], Fault]] = {
    "closed": Calls.close_connection,
    "stored and closed": Calls.close_mid_frame,
    "no answer": Calls.drop_request,
    "stored without answer": Calls.drop_reply,
    "late": lambda calls: calls.delay(0.8),
    "silence": Calls.silence,
    "damaged answer": lambda calls: calls.corrupt(0),
    "exception": lambda calls: calls.throw("java.lang.reflect.InvocationTargetException"),
    "500": lambda calls: calls.fail(500),
    "510": lambda calls: calls.fail(510),
}


@pytest.mark.parametrize("is_stored", [True, False])
def test_only_a_record_that_is_not_stored_is_sent_again(single: EmbeddedCluster, is_stored: bool) -> None:
    sends = single.tubemq.on("send_message").count()
    calls = single.tubemq.on("send_message", nth=11, times=1)
    if is_stored:
        calls.close_mid_frame()
    else:
        calls.close_connection()
    lookup = StoreLookup(single)
    task = Task(single, lookup, max_in_flight=1)
    task.run(20)
    assert [record_ids for _, _, record_ids in lookup.asked] == [(10,)]
    assert sends.fired == 20 + (not is_stored)
    check_once(single, task, 20)


def test_a_broker_that_never_answers_a_ping_is_an_error(
    single: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may be stuck with the record still to store, so no look-up is made."""

    def unanswered(*_: object) -> None:
        raise TransportError("nobody answers")

    monkeypatch.setattr(Connection, "ping", unanswered)
    single.tubemq.on("send_message", nth=11, times=1).close_mid_frame()
    lookup = StoreLookup(single)
    task = Task(single, lookup, max_in_flight=1, retry_for=2.0, clock=SkippingClock())
    with pytest.raises(TransportError, match=r"^row 10 of the task .*: nobody answers; .* acknowledged\. "):
        task.run(20)
    assert lookup.asked == []
    assert max(bodies_in(single).values()) == 1


@pytest.mark.parametrize("kind", ["closed", "no answer", "500"])
def test_a_broker_answers_a_ping_before_each_look_up(
    single: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lookup, pings, ping = StoreLookup(single, failures=2), list[int](), Connection.ping

    def seen(connection: Connection, timeout: float) -> None:
        pings.append(len(lookup.asked))
        ping(connection, timeout)

    monkeypatch.setattr(Connection, "ping", seen)
    UNKNOWN_OUTCOME[kind](single.tubemq.on("send_message", nth=11, times=1))
    Task(single, lookup, max_in_flight=1, rpc_timeout=SOON).run(20)
    assert pings == [0, 1, 2]
    assert len(lookup.asked) == 3


@pytest.mark.parametrize("kind", ["closed", "stored and closed", "500"])
def test_successors_wait_for_an_unresolved_record(cluster: EmbeddedCluster, kind: str) -> None:
    """Those of the same key."""
    UNKNOWN_OUTCOME[kind](cluster.tubemq.on("send_message", nth=20, times=1))
    lookup = StoreLookup(cluster, failures=10)  # longer than the backoff of brokers and partitions

    def nobody_has_overtaken(partition: Partition, record_ids: Collection[int]) -> None:
        stored_records = [record_id for record_id in lookup.stored_records(partition) if isinstance(record_id, int)]
        for record_id in record_ids:
            assert not any(other > record_id and other % 2 == record_id % 2 for other in stored_records)

    lookup.check = nobody_has_overtaken
    task = Task(cluster, lookup, max_in_flight=3, retry_for=PATIENT, clock=SkippingClock())
    task.run(200, keys=2, target=(1, 0))
    assert len(lookup.asked) > 10
    check_once(cluster, task, 200)


# Without a look-up, records with a key wait until no late copy can arrive


def test_records_without_a_key_do_not_wait(single: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "ping", None)
    single.tubemq.on("send_message", nth=5, times=1).close_mid_frame()
    with Producer(settings(single)) as producer:
        for row in range(20):
            producer.send("demo", b"row %d" % row)
    assert set(bodies_in(single)) == {b"row %d" % row for row in range(20)}


# Where the look-up starts


def test_the_look_up_starts_behind_acknowledged_records(single: EmbeddedCluster) -> None:
    for nth in (1, 11):  # the second fault does not count the call that meets the first one
        single.tubemq.on("send_message", nth=nth, times=1).close_mid_frame()
    lookup = StoreLookup(single)
    task = Task(single, lookup, max_in_flight=1)
    task.run(20, keys=1)  # so that one record is in flight at a time
    partition = Partition(1, "demo", 0)
    assert lookup.asked == [(partition, None, (0,)), (partition, 11 * ENTRY, (11,))]
    check_once(single, task, 20)


def test_a_crash_resets_where_the_look_up_starts(single: EmbeddedCluster) -> None:
    """The broker lost acknowledged records, and uses their offsets again."""

    def crash() -> None:
        single.tubemq.crash_broker(1)
        single.tubemq.start_broker(1)

    single.tubemq.on("send_message", nth=11, times=1).run(crash)
    single.tubemq.on("send_message", nth=12, times=1).close_mid_frame()
    lookup = StoreLookup(single)
    task = Task(single, lookup, max_in_flight=1)
    task.run(20, keys=1)
    assert [(floor, record_ids) for _, floor, record_ids in lookup.asked] == [(10 * ENTRY, (10,)), (ENTRY, (11,))]
    assert bodies_in(single) == {b"row %d" % row: 1 for row in range(10, 20)}
    assert task.producer.acknowledged == 20
