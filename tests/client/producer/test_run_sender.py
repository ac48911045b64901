# SPDX-License-Identifier: Apache-2.0
"""Records that differ only in their bodies are sent together, with the promises of records that are sent alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, connect, seeds, settings
from tests.stored import stored_in
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_run import RecordRun
from tubemq_spark.client.producer.send_queue import OVERHEAD
from tubemq_spark.errors import ServerError
from tubemq_spark.protocol.message import Attributes, encode_attributes, parse_msg_time
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault, ServerConfig

ATTRIBUTES = encode_attributes(None, "news", "202611210830")
FAILURES: dict[str, Callable[[Calls], Fault]] = {
    "busy": lambda calls: calls.fail(419),
    "closed partition": lambda calls: calls.fail(403),
    "exception": lambda calls: calls.throw("java.lang.reflect.InvocationTargetException"),
    "close": Calls.close_connection,
    "store and close": Calls.close_mid_frame,
    "no answer": Calls.drop_request,
    "store without answer": Calls.drop_reply,
}
SILENT = ("no answer", "store without answer")


@pytest.fixture
def cluster(use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions. Records wait until both are connected."""
    use_timings(connect_batching=600.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, config=ServerConfig(max_msg_size=2000)) as running:
        yield running


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many records each run has that is sent."""
    sizes: list[int] = []
    encode = RecordRun.encode

    def counted(run: RecordRun, *arguments: object) -> bytes:
        sizes.append(len(run))
        return encode(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordRun, "encode", counted)
    return sizes


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % n for n in range(start, start + count)]


def send_all(producer: Producer, sent: list[bytes], attributes: bytes = b"", first_row: int = 0) -> None:
    """Send as the sink does: alone what cannot be sent together."""
    for start in range(0, len(sent), 1000):
        part = sent[start : start + 1000]
        taken = producer.send_together("demo", part, attributes, first_row=first_row + start)
        for row, body in enumerate(part[taken:], first_row + start + taken):
            producer.send("demo", body, attributes, row=row)


def ready(cluster: EmbeddedCluster, max_in_flight: int = 1000, **options: object) -> Producer:
    """Return a producer that knows the topic and is connected with both brokers."""
    connect(cluster)
    producer = Producer(settings(cluster), max_in_flight, **options)  # type: ignore[arg-type]
    for body in bodies(6, start=1_000_000):
        producer.send("demo", body)
    producer.flush()
    return producer


def without_first(cluster: EmbeddedCluster) -> Mapping[bytes, int]:
    found = bodies_in(cluster)
    for body in bodies(6, start=1_000_000):
        assert found.pop(body) == 1
    return found


def test_records_have_the_messages_that_they_would_have_alone(cluster: EmbeddedCluster, runs: list[int]) -> None:
    attributes = encode_attributes({"city": "Zürich"}, "news", "202611210830")
    with ready(cluster) as producer:
        taken = producer.send_together("demo", bodies(60), attributes, "news", "202611210830")
    assert (taken, sum(runs)) == (60, 60)
    found = stored_in(cluster, "demo", filters=["news"])
    assert Counter(message.body for message in found) == dict.fromkeys(bodies(60), 1)
    expected = Attributes({"city": "Zürich"}, "news", parse_msg_time("202611210830"))
    assert {message.attributes == expected for message in found} == {True}


def test_partitions_get_equal_shares(cluster: EmbeddedCluster, runs: list[int]) -> None:
    with ready(cluster) as producer:
        before = Counter(producer.flush())
        send_all(producer, bodies(480))
        stored = producer.flush()
    assert sorted((Counter(stored) - before).values()) == [80] * 6
    assert without_first(cluster) == dict.fromkeys(bodies(480), 1)
    assert (sum(runs), producer.acknowledged) == (480, 486)


@pytest.mark.parametrize("name", FAILURES)
def test_records_that_a_broker_refuses_or_loses_are_sent_again(
    cluster: EmbeddedCluster, use_timings: UseTimings, runs: list[int], name: str
) -> None:
    use_timings(slow_peer_grace=0.05, connect_batching=600.0)
    connect(cluster)
    with Producer(settings(cluster, rpc_timeout=0.3 if name in SILENT else 10.0)) as producer:
        send_all(producer, bodies(20))
        producer.flush()
        fault = FAILURES[name](cluster.tubemq.on("send_message", broker=1, nth=101, times=20))
        send_all(producer, bodies(1500, start=20), first_row=20)
        stored = producer.flush()
    assert fault.fired > 0
    assert sum(runs) >= 250
    assert sum(stored.values()) == producer.acknowledged == 1520
    found = bodies_in(cluster)
    assert set(found) == set(bodies(1520))
    if name not in (*SILENT, "store and close"):  # else a record may be stored twice, see docs/delivery.md
        assert set(found.values()) == {1}


@pytest.mark.parametrize("seed", seeds(12, fast=3))
def test_no_record_is_lost_under_random_failures(cluster: EmbeddedCluster, seed: int, runs: list[int]) -> None:
    dice = random.Random(seed)
    kinds = [one for name, one in FAILURES.items() if name not in SILENT]
    with ready(cluster, dice.choice([100, 1000])) as producer:
        for broker_id in cluster.broker_ids:
            for _ in range(4):
                calls = cluster.tubemq.on("send_message", broker=broker_id, nth=dice.randint(1, 1500), times=1)
                dice.choice(kinds)(calls)
        send_all(producer, bodies(3000))
        stored = producer.flush()
    assert sum(stored.values()) == 3006
    assert set(without_first(cluster)) == set(bodies(3000))
    assert runs


def test_a_refusal_names_the_row() -> None:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, brokers=1) as cluster:
        connect(cluster)
        producer = Producer(settings(cluster), rows_of="of task partition 4")
        producer.send("demo", b"first")
        producer.flush()
        cluster.tubemq.on("send_message", nth=78, times=1).fail(400, "as the test wants it")
        with (
            pytest.raises(ServerError, match=r"row 1077 of task partition 4 to broker 1 .* 400 BAD_"),
            producer,
        ):
            send_all(producer, bodies(300), first_row=1000)


@pytest.mark.parametrize("max_in_flight", [64, 100])
def test_connections_have_no_more_in_flight_than_allowed(
    cluster: EmbeddedCluster, runs: list[int], max_in_flight: int
) -> None:
    producer = ready(cluster, max_in_flight)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, *(channel.in_flight for channel in producer._sender.connected.values()))

    with producer, cluster.tubemq.on("send_message").run(look):
        send_all(producer, bodies(1000))
    assert without_first(cluster) == dict.fromkeys(bodies(1000), 1)
    assert sum(runs) > 500
    assert 0 < most <= max_in_flight


def test_unacknowledged_records_take_no_more_memory_than_allowed(cluster: EmbeddedCluster, runs: list[int]) -> None:
    limit = 800 * OVERHEAD
    with ready(cluster, max_bytes=limit) as producer:
        for start in range(0, 3000, 500):
            send_all(producer, bodies(500, start))
            assert producer._queue.bytes <= limit + OVERHEAD + 1000
        producer.flush()
        assert producer._queue.bytes == 0
    assert without_first(cluster) == dict.fromkeys(bodies(3000), 1)
    assert runs


def test_memory_is_released_after_failures(cluster: EmbeddedCluster) -> None:
    with ready(cluster) as producer:
        cluster.tubemq.on("send_message", nth=50, times=30).fail(500)
        cluster.tubemq.on("send_message", broker=2, nth=300, times=1).close_connection()
        send_all(producer, bodies(2000))
        producer.flush()
        assert producer._queue.bytes == 0
        assert not producer._sender.any_in_flight


@pytest.mark.parametrize(
    ("given", "attributes"),
    [
        pytest.param([], b"", id="no records"),
        pytest.param(bodies(15), b"", id="few records"),
        pytest.param([*bodies(20), b""], b"", id="a message without bytes"),
        pytest.param([*bodies(20), bytes(2001)], ATTRIBUTES, id="too long for the topic"),
    ],
)
def test_records_that_must_be_checked_are_not_sent_together(
    cluster: EmbeddedCluster, given: list[bytes], attributes: bytes
) -> None:
    with ready(cluster) as producer:
        assert producer.send_together("demo", given, attributes) == 0
    assert without_first(cluster) == {}


def test_long_bodies_need_frames_of_several_blocks_and_are_sent_alone() -> None:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as cluster, ready(cluster) as producer:
        assert producer.send_together("demo", [bytes(8192)] * 20) == 0
        assert producer.send_together("demo", [bytes(7000)] * 20) == 20


def test_records_of_a_new_topic_are_sent_alone(cluster: EmbeddedCluster) -> None:
    with ready(cluster) as producer:
        assert producer.send_together("other", bodies(20)) == 0


def test_records_are_sent_alone_while_a_broker_fails(cluster: EmbeddedCluster) -> None:
    with ready(cluster) as producer:
        cluster.tubemq.on("send_message", broker=1, times=1).fail(500)
        send_all(producer, bodies(1))
        send_all(producer, bodies(1))
        producer._partitioner.partition_failed(Partition(1, "demo", 0))
        assert producer.send_together("demo", bodies(100)) == 0


def test_records_whose_places_are_needed_are_sent_alone(cluster: EmbeddedCluster) -> None:
    seen: list[object] = []
    with ready(cluster, on_stored=lambda record, stored: seen.append(stored)) as producer:
        assert producer.send_together("demo", bodies(100)) == 0


def test_few_sends_in_flight_are_not_worth_it(cluster: EmbeddedCluster) -> None:
    with ready(cluster, 10) as producer:
        assert producer.send_together("demo", bodies(100)) == 0


def test_the_framing_of_old_servers_is_sent_alone() -> None:
    topics = {"demo": TopicSpec(partitions=1)}
    with embedded_cluster(topics=topics, framing="prefixed") as cluster, ready(cluster) as producer:
        assert producer.send_together("demo", bodies(100)) == 0


def test_records_of_one_run_go_to_many_brokers() -> None:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}, brokers=5) as cluster:
        with ready(cluster) as producer:
            assert producer.send_together("demo", bodies(1000)) == 1000
        assert without_first(cluster) == dict.fromkeys(bodies(1000), 1)
