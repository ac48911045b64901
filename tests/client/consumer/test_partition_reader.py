# SPDX-License-Identifier: Apache-2.0
"""How long a partition reader tries, and when it proves its claim; tests/simulation proves that its rows are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.peers import refused_address
from tests.real.topics import TopicSpec
from tests.sending import settings
from tests.without_spark.query import Query
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import FencedError, PartitionOccupiedError, PositionMovedError, ServerError, TransportError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK
from tubemq_spark.protocol.log_fingerprint import UNKNOWN_IDS, Fingerprint, KnownIds
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

COUNT = 300
Reader = Callable[..., PartitionReader]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    config = ServerConfig(transfer_size=1000, mem_cache_flush_interval=3600.0)  # about 20 messages with one fetch
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1, config=config) as running:
        messages.send(running, messages.numbered(messages.partitions(running, "demo"), COUNT))
        running.tubemq.flush("demo")
        yield running


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def reader(cluster: EmbeddedCluster, clock: SkippingClock, use_timings: UseTimings) -> Reader:
    use_timings(heartbeat_period=3600.0)

    def reader(
        broker: Broker | None = None,
        *,
        retry_for: float = 30.0,
        start: int = 0,
        ids: KnownIds = UNKNOWN_IDS,
        **others: object,
    ) -> PartitionReader:
        (partition,) = messages.partitions(cluster, "demo")
        return PartitionReader(
            settings(cluster, clock=clock, retry_for=retry_for),
            "g",
            reading.next_claim(),
            replace(reading.wanted(cluster, partition, start, COUNT * reading.UNIT), ids=ids),
            PartitionSnapshot(broker or messages.broker(cluster, 1), look_group="g_look"),
            claim_timeout=0.0,
            **others,  # type: ignore[arg-type]
        )

    return reader


def test_after_a_long_pause_the_claim_is_proven_before_a_delivery(
    cluster: EmbeddedCluster, clock: SkippingClock, reader: Reader
) -> None:
    batches = reader().batches()
    proofs = cluster.tubemq.on("partition_heartbeat").count()
    list(islice(batches, 2))  # some fetches are under way then
    assert proofs.fired == 0
    clock.advance(10)
    next(batches)
    assert proofs.fired == 1
    clock.advance(3600)
    cluster.tubemq.clock.advance(60)  # the claim expires
    with pytest.raises(FencedError, match="does not hold the partition any more"):
        next(batches)


def test_fetches_of_a_second_reading_count_as_progress(
    cluster: EmbeddedCluster, clock: SkippingClock, reader: Reader
) -> None:
    """The connection breaks again before the second reading comes to anything new, which takes longer than a reader
    tries without progress."""
    fetches = cluster.tubemq.on("get_message").run(partial(clock.advance, 0.2))
    for number in (6, 11):
        cluster.tubemq.on("get_message", nth=number, times=1).close_connection()
    assert len(reading.rows_of(reader(retry_for=0.5).batches())) == COUNT
    assert fetches.fired > 15


def test_the_reader_fails_if_the_connection_always_breaks_at_the_same_place(
    cluster: EmbeddedCluster, reader: Reader
) -> None:
    def break_fifth_fetch() -> None:
        cluster.tubemq.on("get_message", nth=5, times=1).close_connection()

    cluster.tubemq.on("partition_register").run(break_fifth_fetch)
    with pytest.raises(TransportError, match=r"gave up after 2 s .* the connection broke \d+ times before .* Check"):
        reading.rows_of(reader(retry_for=2.0).batches())


@pytest.mark.parametrize("is_late", [True, False])
def test_a_partition_of_a_killed_attempt_is_read_twice_and_compared(is_late: bool) -> None:
    """A late fetch moves the cursor over messages of the first reading, and no reply shows that."""
    config = ServerConfig(transfer_size=1000)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}, brokers=1, config=config) as cluster:
        partition, _ = partitions = messages.partitions(cluster, "demo")
        messages.send(cluster, messages.numbered(partitions, COUNT))
        fetches = cluster.tubemq.on("get_message").count()
        of_range = partition, 0, COUNT * reading.UNIT
        query = reading.new_query()
        killed = reading.reader(cluster, "g", *of_range, claim=reading.next_claim(query)).batches()
        next(killed)
        alone, claim = fetches.fired, reading.next_claim(query)
        batches = reading.reader(cluster, "g", *of_range, claim=claim).batches()
        next(batches)
        if is_late:
            broker = messages.broker(cluster, partition.broker_id)
            fetch = reading.calls(cluster, "g").fetch(broker, partition, str(claim))
            send_requests(messages.settings(cluster), [fetch])
            with pytest.raises(PositionMovedError, match="two readings differ"):
                list(batches)
        else:
            first = len(list(batches))
            assert fetches.fired - alone > 2 * first
        killed.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_the_mark_of_the_store_proves_that_messages_were_replaced(
    cluster: EmbeddedCluster, reader: Reader, is_there: bool
) -> None:
    """The last id of the range is only a suspicion: another id was planned."""
    last = cluster.tubemq.messages("demo")[-1]
    mark = Fingerprint(last.offset, 0, last.message_id + (not is_there), 0)
    planned = reader(ids=KnownIds(last=last.message_id + 1, mark=mark))
    if is_there:
        assert len(reading.rows_of(planned.batches())) == COUNT
    else:
        with pytest.raises(PositionMovedError, match="have other ids"):
            reading.rows_of(planned.batches())


def test_messages_before_a_loss_were_replaced(cluster: EmbeddedCluster, reader: Reader) -> None:
    """The broker loses its disk twice. Between the two losses, a reading has delivered messages that were not planned,
    and after the second one nothing is left to read."""
    mark = Fingerprint((COUNT - 1) * reading.UNIT, 0, 1, 0)
    batches = reader(ids=KnownIds(last=1, mark=mark), loss_policy=LossPolicy(fail=False)).batches()
    next(batches)
    cluster.tubemq.stop_broker(1)
    cluster.tubemq.lose_disk(1)
    cluster.tubemq.start_broker(1)
    with pytest.raises(PositionMovedError, match="have other ids"):
        list(batches)


def test_a_mark_before_the_range_may_have_expired(cluster: EmbeddedCluster, reader: Reader) -> None:
    """What retention removed had been flushed: no crash has taken its place."""
    cluster.tubemq.expire("demo", 10)
    ids = KnownIds(mark=Fingerprint(0, 0, 1, 0))
    planned = reader(start=(COUNT - 10) * reading.UNIT, ids=ids)
    assert len(reading.rows_of(planned.batches())) == 10


def test_the_reader_asks_for_the_address_of_a_broker_that_has_moved(
    cluster: EmbeddedCluster, clock: SkippingClock, reader: Reader
) -> None:
    """It does not ask after each broken connection."""
    asked: list[Broker] = []
    here, there = Broker(1, refused_address()), messages.broker(cluster, 1)

    def find(broker: Broker) -> Broker:
        asked.append(broker)
        return broker if len(asked) == 1 else there

    assert len(reading.rows_of(reader(here, find_broker=find).batches())) == COUNT
    assert asked == [here, here]
    assert sum(clock.pauses) > 3.0


def test_a_forged_name_of_a_claims_holder_is_cut_and_escaped(cluster: EmbeddedCluster, reader: Reader) -> None:
    forged = "x\n2026-01-01 ERROR somebody\x1b[2J\r\u202e" + "y" * 100_000  # forges a line of a log
    held = f"[Duplicated Register] Partition 1#g:demo:0 has been registered by {forged}"
    cluster.tubemq.on("partition_register").fail(410, held)
    with pytest.raises(PartitionOccupiedError, match="another consumer of group g") as told:
        list(reader(retry_for=0.0).batches())
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 1200
    assert len(told.value.holder) < 700


# Messages that a broker does not return while they are in its memory, because they are too long to be read there


LONGEST = 1024 + MESSAGE_SIZE_SLACK  # the longest message a producer may send; the broker's reader adds 52 bytes
CONFIG = ServerConfig(max_msg_size=1024, mem_cache_flush_interval=3600.0)
SOLE = Partition(1, "one", 0)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"one": 1}, config=CONFIG) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def send(tubemq: EmbeddedTubeMQ, *sizes: int) -> None:
    for number, size in enumerate(sizes):
        tubemq.send("one", (b"%d " % number).ljust(size, b"."), 0)


@pytest.mark.parametrize("sizes", [
    (9, 9, LONGEST, 9, 9),
    (LONGEST, 9, 9),
    (9, LONGEST, LONGEST - 52, LONGEST - 51, 9),
])  # fmt: skip
def test_long_messages_are_read_after_they_are_flushed(tubemq: EmbeddedTubeMQ, sizes: tuple[int, ...]) -> None:
    send(tubemq, *sizes)
    query = Query(tubemq, "one", retry_for=30.0)
    asked = tubemq.on("partition_register", client="_p0_", nth=4, times=1).run(lambda: tubemq.flush("one"))
    query.run()
    assert asked.fired == 1
    assert [len(row.body) for row in query.rows[SOLE]] == list(sizes)
    assert [row.offset for row in query.rows[SOLE]] == [28 * number for number in range(len(sizes))]


@pytest.mark.parametrize("sizes", [(9, 9, LONGEST), (LONGEST, LONGEST)])
def test_a_store_that_ends_with_a_long_message_is_read_after_the_flush(
    tubemq: EmbeddedTubeMQ, sizes: tuple[int, ...]
) -> None:
    """Nobody knows whose message that is. It may be of a partition that the master does not list yet."""
    send(tubemq, *sizes)
    query = Query(tubemq, "one", retry_for=30.0)
    query.run()
    assert [row.offset for row in query.rows[SOLE]] == [28 * number for number, size in enumerate(sizes) if size == 9]
    tubemq.flush("one")
    query.run()
    assert [row.offset for row in query.rows[SOLE]] == [28 * number for number in range(len(sizes))]


def test_task_fails_while_a_long_message_is_in_memory(tubemq: EmbeddedTubeMQ) -> None:
    send(tubemq, 9, 9, LONGEST, 9)
    query = Query(tubemq, "one", retry_for=0.3)
    with pytest.raises(ServerError, match=r"1:one:0 at .* not every entry of \[0, 112\) gave a message .* lower that"):
        query.run()
    tubemq.flush("one")
    query.run()
    assert len(query.rows[SOLE]) == 4


def test_a_message_in_memory_that_ignores_the_limit_is_missed_in_a_shared_store(tubemq: EmbeddedTubeMQ) -> None:
    """Brokers take up to 10 240 bytes more than the limit, and deliver 52 less from memory. No reply distinguishes such
    a message from an entry of the other partition. No producer of TubeMQ's Java client or of this connector sends it;
    for topics that may have longer messages see tests/source/test_long_messages.py."""
    tubemq.create_topic("pair", partitions=2)
    query = Query(tubemq, "pair", retry_for=30.0)
    for size in (9, LONGEST, 9):
        tubemq.send("pair", b"." * size, 0)
    query.run()
    tubemq.send("pair", b"." * LONGEST, 0)
    tubemq.flush("pair")
    query.run()
    assert [len(row.body) for row in query.rows[Partition(1, "pair", 0)]] == [9, 9, LONGEST]


@pytest.mark.parametrize(("late", "proofs"), [(1, 2), (2, 3), (9, 3)])
def test_a_late_reply_does_not_prove_the_claim(
    cluster: EmbeddedCluster, clock: SkippingClock, reader: Reader, late: int, proofs: int
) -> None:
    """If all replies are late, the reader goes on with the newest proof that it can get."""
    batches = reader().batches()
    list(islice(batches, 2))
    asked = cluster.tubemq.on("partition_heartbeat").count()
    cluster.tubemq.on("partition_heartbeat", times=late).run(lambda: clock.advance(2))
    clock.advance(2)
    next(batches)
    assert asked.fired == proofs
