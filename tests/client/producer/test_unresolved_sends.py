"""Sends that were perhaps heard: with a ledger each message is looked for before it is sent again, and stands once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.send_queue import PendingRecord, RecordId, RecordMetadata
from tubemq_spark.errors import ServerError, TransportError
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
    """Two brokers with a topic of three partitions, in one store each."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}) as running:
        yield running


@pytest.fixture
def single() -> Iterator[EmbeddedCluster]:
    """One broker with one partition."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running


class Look:
    """A ledger that sees what stands on the brokers. A message's mark is the number in its body, behind a blank.

    `asked` has all questions; in place of `trouble` many answers, and `deaf` many signs of life, it raises.
    """

    def __init__(self, cluster: EmbeddedCluster, *, trouble: int = 0, deaf: int = 0) -> None:
        self.asked: list[tuple[Partition, int | None, tuple[int, ...]]] = []
        self.used: list[Partition] = []
        self.greeted: list[Partition] = []  # and not asked since
        self.trouble, self.deaf = trouble, deaf
        self.check: Callable[[Partition, Collection[int]], None] = lambda partition, marks: None
        self._cluster = cluster

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        self.used += partitions
        return partitions

    def ping(self, partitions: Sequence[Partition]) -> None:
        self.greeted += partitions
        if self.deaf:
            self.deaf -= 1
            raise TransportError(f"nobody answers for {partitions[0]}")

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[Any]
    ) -> Mapping[RecordId, RecordMetadata]:
        assert partition in self.used
        assert record_ids
        assert partition in self.greeted, "a broker that may be stuck is to give a sign of life before"
        self.greeted.remove(partition)
        self.check(partition, record_ids)
        self.asked.append((partition, start, tuple(record_ids)))
        if self.trouble:
            self.trouble -= 1
            raise TransportError(f"nobody can tell of {partition}")
        standing = self.standing(partition)
        found = {record_id: standing[record_id] for record_id in record_ids if record_id in standing}
        # What stands before the start is not looked at.
        return {record_id: stored for record_id, stored in found.items() if (stored.offset or 0) >= (start or 0)}

    def standing(self, partition: Partition) -> dict[RecordId, RecordMetadata]:
        return {
            mark_of(message.body): RecordMetadata(partition, message.message_id, message.offset, None)
            for message in self._cluster.tubemq.messages("demo")
            if (message.broker_id, message.partition) == (partition.broker_id, partition.partition_id)
        }


def mark_of(body: bytes) -> int:
    return int(body.split()[-1])


class Task:
    """A producer with a ledger, what it was told of, and what it sends."""

    def __init__(self, cluster: EmbeddedCluster, look: Look, *, max_in_flight: int = 1000, **others: Any) -> None:
        self.told: dict[int, list[RecordMetadata]] = defaultdict(list)
        self.producer = Producer(
            settings(cluster, **others), max_in_flight, "of the task", lookup=look, on_stored=self._note
        )

    def _note(self, message: PendingRecord, stored: RecordMetadata) -> None:
        assert isinstance(message.record_id, int)
        self.told[message.record_id].append(stored)

    def run(self, count: int, keys: int = 0, target: tuple[int, int] | None = None) -> None:
        with self.producer as producer:
            for row in range(count):
                key = b"%d" % (row % keys) if keys else None
                producer.send("demo", b"row %d" % row, row=row, record_id=row, key=key, target=target)


def check_once(cluster: EmbeddedCluster, task: Task, count: int) -> None:
    """Each row stands once, and was told of once, as it stands."""
    assert bodies_in(cluster) == {b"row %d" % row: 1 for row in range(count)}
    assert task.producer.acknowledged == count
    assert {mark: len(stored) for mark, stored in task.told.items()} == dict.fromkeys(range(count), 1)
    standing = {mark_of(message.body): message for message in cluster.tubemq.messages("demo")}
    for mark, (stored,) in task.told.items():
        message = standing[mark]
        assert stored.partition == Partition(message.broker_id, "demo", message.partition)
        assert (stored.message_id, stored.offset) == (message.message_id, message.offset)


UNSURE: dict[str, Callable[[Calls], Fault]] = {
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
SILENT = ("no answer", "stored without answer", "late", "silence")


@pytest.mark.parametrize(
    ("kind", "way"),
    [pytest.param(kind, way, marks=() if kind not in SILENT or way == "keys" else pytest.mark.thorough)
     for kind in UNSURE for way in ("anywhere", "keys", "target")],
)  # fmt: skip
def test_a_record_with_unknown_outcome_is_looked_up_and_stored_once(
    cluster: EmbeddedCluster, kind: str, way: str
) -> None:
    faults = [UNSURE[kind](cluster.tubemq.on("send_message", nth=nth, times=1)) for nth in (5, 150)]
    look = Look(cluster)
    task = Task(cluster, look, rpc_timeout=SOON if kind in SILENT else 10.0)
    task.run(300, keys=50 if way == "keys" else 0, target=(2, 1) if way == "target" else None)
    assert all(fault.fired for fault in faults)
    assert look.asked
    check_once(cluster, task, 300)


@pytest.mark.parametrize("stands", [True, False])
def test_only_a_record_that_is_not_stored_is_sent_again(single: EmbeddedCluster, stands: bool) -> None:
    sends = single.tubemq.on("send_message").count()
    calls = single.tubemq.on("send_message", nth=11, times=1)
    if stands:
        calls.close_mid_frame()
    else:
        calls.close_connection()
    look = Look(single)
    task = Task(single, look, max_in_flight=1)
    task.run(20)
    assert [marks for _, _, marks in look.asked] == [(10,)]
    assert sends.fired == 20 + (not stands)
    check_once(single, task, 20)


@pytest.mark.parametrize("kind", ["503", "419", "403", "stopping"])
def test_a_record_that_was_certainly_not_stored_is_not_looked_up(cluster: EmbeddedCluster, kind: str) -> None:
    calls = cluster.tubemq.on("send_message", nth=5, times=5)
    if kind == "stopping":
        calls.throw("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException")
    else:
        calls.fail(int(kind))
    look = Look(cluster)
    task = Task(cluster, look)
    task.run(300)
    assert look.asked == []
    check_once(cluster, task, 300)


def test_a_record_without_an_id_is_sent_again(single: EmbeddedCluster) -> None:
    single.tubemq.on("send_message", nth=1, times=1).close_mid_frame()
    look = Look(single)
    with Producer(settings(single), lookup=look) as producer:
        producer.send("demo", b"row 0")
    assert bodies_in(single) == {b"row 0": 2}
    assert look.asked == []


@pytest.mark.parametrize("kind", ["closed", "stored and closed"])
def test_a_look_up_that_fails_is_repeated(cluster: EmbeddedCluster, kind: str) -> None:
    UNSURE[kind](cluster.tubemq.on("send_message", nth=5, times=1))
    look = Look(cluster, trouble=4, deaf=3)
    task = Task(cluster, look)
    task.run(300)
    assert look.trouble == look.deaf == 0
    assert len(look.asked) > 4
    check_once(cluster, task, 300)


def test_a_look_up_that_always_fails_is_an_error(single: EmbeddedCluster) -> None:
    single.tubemq.on("send_message", nth=11, times=1).close_mid_frame()
    look = Look(single, trouble=10**6)
    task = Task(single, look, max_in_flight=1, retry_for=2.0, clock=SkippingClock())
    with pytest.raises(
        TransportError,
        match=r"^row 10 of the task for topic demo was not acknowledged within .*partition 1:demo:0: nobody can tell "
        r"of 1:demo:0.*; \d+ of 20 rows of the task are acknowledged\. Check .*'tubemq.retry.maxElapsedMs'$",
    ):
        task.run(20)
    assert len(look.asked) > 1
    assert max(bodies_in(single).values()) == 1


def test_a_broker_that_never_answers_a_ping_is_an_error(single: EmbeddedCluster) -> None:
    """It may be stuck, with the message before it: whether that stands is not asked."""
    single.tubemq.on("send_message", nth=11, times=1).close_mid_frame()
    look = Look(single, deaf=10**6)
    task = Task(single, look, max_in_flight=1, retry_for=2.0, clock=SkippingClock())
    with pytest.raises(
        TransportError, match=r"^row 10 of the task .*: nobody answers for 1:demo:0; .* acknowledged\. "
    ):
        task.run(20)
    assert look.asked == []
    assert max(bodies_in(single).values()) == 1


def test_another_error_of_the_look_up_ends_the_producer(single: EmbeddedCluster) -> None:
    single.tubemq.on("send_message", nth=11, times=1).close_mid_frame()
    look = Look(single)

    def fail(partition: Partition, marks: Collection[int]) -> None:
        raise ServerError("the group is forbidden", code=450, name="CONSUME_GROUP_FORBIDDEN", message="")

    look.check = fail
    task = Task(single, look, max_in_flight=1)
    with pytest.raises(ServerError, match="the group is forbidden"):
        task.run(20)
    with pytest.raises(ServerError, match="the group is forbidden"):
        task.producer.flush()


@pytest.mark.parametrize("kind", ["closed", "stored and closed", "500", "stored without answer"])
@pytest.mark.parametrize(
    ("keys", "target", "max_in_flight"), [(1, None, 1000), (7, None, 1000), (0, (1, 0), 3), (5, (1, 0), 1000)]
)
def test_successors_wait_for_an_unresolved_record(
    cluster: EmbeddedCluster, kind: str, keys: int, target: tuple[int, int] | None, max_in_flight: int
) -> None:
    """Of the same key; or of the same partition, but for those that left before the failure was noticed."""
    UNSURE[kind](cluster.tubemq.on("send_message", nth=20, times=1))
    look = Look(cluster, trouble=10)  # it takes longer than brokers and partitions rest
    may_go_by = 0 if keys or "closed" in kind else 200 if kind in SILENT else max_in_flight - 1

    def nobody_has_gone_by(partition: Partition, marks: Collection[int]) -> None:
        standing = [mark for mark in look.standing(partition) if isinstance(mark, int)]
        for mark in marks:
            behind = [other for other in standing if other > mark and (not keys or other % keys == mark % keys)]
            assert len(behind) <= may_go_by

    look.check = nobody_has_gone_by
    timeout = SOON if kind in SILENT else 10.0
    task = Task(
        cluster, look, max_in_flight=max_in_flight, rpc_timeout=timeout, retry_for=PATIENT, clock=SkippingClock()
    )
    task.run(200, keys=keys, target=target)
    assert len(look.asked) > 10
    check_once(cluster, task, 200)
    if keys:
        rows: dict[int, list[int]] = defaultdict(list)
        for message in cluster.tubemq.messages("demo"):
            mark = mark_of(message.body)
            rows[mark % keys].append(mark)
        assert all(found == sorted(found) for found in rows.values())


def test_other_records_do_not_wait_for_an_unresolved_one(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.on("send_message", broker=1, nth=1, times=1).close_connection()
    look = Look(cluster)

    def other_is_not_done(partition: Partition, marks: Collection[int]) -> None:
        look.trouble = sum(message.broker_id == 2 for message in cluster.tubemq.messages("demo")) < 300

    look.check = other_is_not_done
    with Producer(settings(cluster), lookup=look) as producer:
        for row in range(600):
            producer.send("demo", b"row %d" % row, record_id=row, target=(1 + row % 2, 0))
    assert bodies_in(cluster) == {b"row %d" % row: 1 for row in range(600)}


# Where it is looked for


def test_the_look_up_starts_behind_acknowledged_records(single: EmbeddedCluster) -> None:
    for nth in (1, 11):  # the second does not see the call that the first one meets
        single.tubemq.on("send_message", nth=nth, times=1).close_mid_frame()
    look = Look(single)
    task = Task(single, look, max_in_flight=1)
    task.run(20, keys=1)  # so that nothing goes before it is known
    partition = Partition(1, "demo", 0)
    assert look.asked == [(partition, None, (0,)), (partition, 11 * ENTRY, (11,))]
    check_once(single, task, 20)


def test_unresolved_records_of_a_partition_are_looked_up_together(single: EmbeddedCluster) -> None:
    single.tubemq.on("send_message", nth=101, times=1).close_connection()
    look = Look(single)
    task = Task(single, look)
    task.run(300)
    ((_, floor, marks),) = look.asked
    assert min(marks) == 100
    assert len(marks) > 1
    assert floor is None or floor <= 100 * ENTRY
    check_once(single, task, 300)


def test_a_crash_resets_where_the_look_up_starts(single: EmbeddedCluster) -> None:
    """The broker lost what it had acknowledged, and begins anew before that."""

    def crash() -> None:
        single.tubemq.crash_broker(1)
        single.tubemq.start_broker(1)

    single.tubemq.on("send_message", nth=11, times=1).run(crash)
    single.tubemq.on("send_message", nth=12, times=1).close_mid_frame()
    look = Look(single)
    task = Task(single, look, max_in_flight=1)
    task.run(20, keys=1)
    assert [(floor, marks) for _, floor, marks in look.asked] == [(10 * ENTRY, (10,)), (ENTRY, (11,))]
    assert bodies_in(single) == {b"row %d" % row: 1 for row in range(10, 20)}
    assert task.producer.acknowledged == 20
