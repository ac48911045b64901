# SPDX-License-Identifier: Apache-2.0
"""Records that differ only in their bodies are sent together, with the promises of records that are sent alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tubemq_spark.client.producer.record_run import RecordRun

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, connect, settings
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import OVERHEAD
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import ServerConfig

ATTRIBUTES = encode_attributes(None, "news", "202611210830")


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
