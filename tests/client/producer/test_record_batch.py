# SPDX-License-Identifier: Apache-2.0
"""Records that differ only in their bodies are accepted together, with the promises of records that are sent alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.stored import stored_in
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import OVERHEAD, RecordBatch, RecordId, RecordMetadata
from tubemq_spark.errors import ServerError
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.testing import Calls, Fault, ServerConfig

ATTRIBUTES = encode_attributes(None, "news", "202611210830")


@pytest.fixture
def cluster(use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions. Records wait until both are connected."""
    use_timings(connect_batching=600.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, config=ServerConfig(max_msg_size=2000)) as running:
        yield running


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % n for n in range(start, start + count)]


def test_records_have_attributes_rows_and_places(cluster: EmbeddedCluster) -> None:
    seen: dict[int | None, RecordMetadata] = {}

    def note(topic: str, row: int | None, record_id: RecordId | None, stored: RecordMetadata) -> None:
        assert (topic, record_id) == ("demo", None)
        seen[row] = stored

    with Producer(settings(cluster), on_stored=note) as producer:
        assert producer.send_together("demo", bodies(700), ATTRIBUTES, "news", "202611210830", first_row=1000)
        producer.flush()
    found = {message.body: message for message in stored_in(cluster, "demo", filters=["news"])}
    assert found.keys() == set(bodies(700))
    assert seen.keys() == set(range(1000, 1700))
    for row, body in enumerate(bodies(700), 1000):
        assert seen[row].partition == found[body].partition
        assert found[body].attributes.msg_type == "news"


def test_many_partitions_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to a broker has some records for each of several partitions."""
    sizes: list[int] = []
    encode = RecordBatch.encode

    def counted(batch: RecordBatch, *arguments: object) -> bytes:
        sizes.append(len(batch))
        return encode(batch, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordBatch, "encode", counted)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=40)}, brokers=1) as cluster:
        with Producer(settings(cluster)) as producer:
            assert producer.send_together("demo", bodies(6400))
            stored = producer.flush()
        assert len(stored) == 40
        assert max(stored.values()) - min(stored.values()) <= 16
        assert bodies_in(cluster) == dict.fromkeys(bodies(6400), 1)
    assert max(sizes) <= 16
    assert sum(sizes) / len(sizes) >= 8


@pytest.mark.parametrize(
    ("size", "max_bytes"), [(10, 800 * OVERHEAD), (1500, 50_000), (1500, 1)], ids=["small", "by bytes", "one by one"]
)
def test_unacknowledged_records_take_no_more_memory_than_allowed(
    cluster: EmbeddedCluster, size: int, max_bytes: int
) -> None:
    """Except the last one."""
    most = max_bytes + OVERHEAD + size
    used: list[int] = []
    with Producer(settings(cluster), max_bytes=max_bytes) as producer:
        step = producer.step

        def watched() -> bool:
            used.append(producer._queue.bytes)
            return step()

        producer.step = watched  # type: ignore[method-assign]
        for start in range(0, 900, 300):
            assert producer.send_together("demo", [b"%0*d" % (size, n) for n in range(start, start + 300)])
        producer.flush()
        assert producer._queue.bytes == 0
    assert 0.5 * min(max_bytes, 900 * OVERHEAD) < max(used) <= most
    assert bodies_in(cluster) == {b"%0*d" % (size, n): 1 for n in range(900)}


@pytest.mark.parametrize(
    ("topic", "given", "attributes"),
    [
        pytest.param("demo", [*bodies(20), b""], b"", id="a message without bytes"),
        pytest.param("demo", [*bodies(20), bytes(2001)], ATTRIBUTES, id="too long for the topic"),
        pytest.param("demo", [bytes(2000)], b"a=" + bytes(10_240), id="too long with its attributes"),
        pytest.param("nope", bodies(20), b"", id="an unknown topic"),
    ],
)
def test_records_of_which_one_may_be_refused_are_not_accepted(
    cluster: EmbeddedCluster, topic: str, given: list[bytes], attributes: bytes
) -> None:
    with Producer(settings(cluster, retry_for=0.3)) as producer:
        assert not producer.send_together(topic, given, attributes)
    assert bodies_in(cluster) == {}


@pytest.mark.parametrize("framing", ["standard", "prefixed"])
def test_bodies_of_any_length_are_sent_together(framing: str) -> None:
    """Also if their frames have several blocks, and in the framing of old servers."""
    given = [b"%0*d" % (size, n) for n, size in enumerate([1, 8100, 8192, 30_000, 1_000_000] * 20)]
    config = ServerConfig(max_msg_size=1 << 20)
    topics = {"demo": TopicSpec(partitions=2)}
    with embedded_cluster(topics=topics, brokers=1, framing=framing, config=config) as cluster:  # type: ignore[arg-type]
        with Producer(settings(cluster)) as producer:
            assert producer.send_together("demo", given)
        assert bodies_in(cluster) == dict.fromkeys(given, 1)


@pytest.mark.parametrize(
    ("fail", "may_be_stored_twice"),
    [
        (lambda calls: calls.fail(500), False),
        (lambda calls: calls.fail(419), False),
        (Calls.close_connection, True),
        (Calls.close_mid_frame, True),
    ],
    ids=["500", "419", "closed", "stored and closed"],
)
def test_no_record_is_lost_if_a_broker_fails(
    cluster: EmbeddedCluster, fail: Callable[[Calls], Fault], *, may_be_stored_twice: bool
) -> None:
    for nth in (3, 100, 400):
        fail(cluster.tubemq.on("send_message", broker=1, nth=nth, times=3))
    with Producer(settings(cluster)) as producer:
        for start in range(0, 4000, 1000):
            assert producer.send_together("demo", bodies(1000, start), first_row=start)
    found = bodies_in(cluster)
    assert found.keys() == set(bodies(4000))
    assert producer.acknowledged == 4000
    assert may_be_stored_twice or max(found.values()) == 1


def test_an_error_names_the_row(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.on("send_message", nth=51).fail(400)
    producer = Producer(settings(cluster), max_in_flight=1)
    assert producer.send_together("demo", bodies(100), first_row=1000)
    with pytest.raises(ServerError, match=r"sending row 10\d\d to broker .*; 50 of 100 messages so far are ack"):
        producer.flush()
    producer.close()
