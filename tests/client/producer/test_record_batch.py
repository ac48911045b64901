# SPDX-License-Identifier: Apache-2.0
"""Records that differ only in their bodies are accepted together, with the promises of records that are sent alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.send_frames import SendEncoder
from tubemq_spark.testing import ServerConfig

ATTRIBUTES = encode_attributes(None, "news", "202611210830")


@pytest.fixture
def cluster(use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions. Records wait until both are connected."""
    use_timings(connect_batching=600.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, config=ServerConfig(max_msg_size=2000)) as running:
        yield running


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % n for n in range(start, start + count)]


def test_many_partitions_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to a broker has some records for each of several partitions."""
    sizes: list[int] = []
    encode = SendEncoder.encode

    def counted(encoder: SendEncoder, sends: range, *columns: Any) -> tuple[bytes, list[int]]:
        sizes.append(len(sends))
        return encode(encoder, sends, *columns)

    monkeypatch.setattr(SendEncoder, "encode", counted)
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
