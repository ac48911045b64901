# SPDX-License-Identifier: Apache-2.0
"""The producer against brokers that fail: no record is lost, and only stored records count as acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.waiting import wait_until
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, ServerError
from tubemq_spark.testing import ServerConfig


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions."""
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}) as running:
        yield running


@pytest.fixture(autouse=True)
def all_are_waited_for(use_timings: UseTimings) -> None:
    """Records for any partition wait for connections to all brokers. Otherwise the broker that is connected first would
    get all of them."""
    use_timings(connect_batching=600.0)


def bodies(count: int) -> list[bytes]:
    return [b"body %d" % n for n in range(count)]


def send_all(producer: Producer, count: int, topic: str = "demo") -> list[bytes]:
    for row, body in enumerate(bodies(count)):
        producer.send(topic, body, row=row)
    return bodies(count)


def test_answers_to_a_failed_producer_reach_no_other() -> None:
    with embedded_cluster(topics={"demo": TopicSpec()}, brokers=1) as cluster:
        failing = Producer(settings(cluster))
        failing.send("demo", b"one")
        failing.flush()
        failing.send("demo", b"two")
        failing._dispatch()
        (channel,) = failing._sender.connected.values()

        def is_answered() -> bool:
            channel.flush()
            return bool(channel.connection._rpc._outcomes)

        wait_until(is_answered)
        failing.close()
        with Producer(settings(cluster)) as another:
            another.send("demo", b"three")
        assert bodies_in(cluster) == Counter([b"one", b"two", b"three"])


# Failures that end the producer


def test_the_delivery_timeout_reports_the_last_answer(cluster: EmbeddedCluster) -> None:
    refusals = [cluster.tubemq.on("send_message", broker=n).fail(419) for n in cluster.broker_ids]
    with (
        pytest.raises(
            ServerError,
            match="row 0 for topic demo was not acknowledged within .* tries .*419 SERVER_REC.*"
            r"tubemq.retry.maxElapsedMs",
        ) as caught,
        Producer(settings(cluster, retry_for=1.0, clock=SkippingClock())) as producer,
    ):
        producer.send("demo", b"a", row=0)
    assert caught.value.code == 419
    assert min(fault.fired for fault in refusals) > 0
    assert sum(fault.fired for fault in refusals) <= 10  # there are pauses in between


def test_retry_for_zero_means_one_try(cluster: EmbeddedCluster) -> None:
    refusal = cluster.tubemq.on("send_message").fail(500)
    with pytest.raises(ServerError, match="in 1 tries"), Producer(settings(cluster, retry_for=0)) as producer:
        producer.send("demo", b"a")
    assert refusal.fired == 1


def test_a_broker_that_does_not_know_the_new_token_is_avoided(cluster: EmbeddedCluster) -> None:
    """The master gave a new token; other brokers get the records meanwhile."""
    refusal = cluster.tubemq.on("send_message", broker=2).fail(415)
    with Producer(settings(cluster)) as producer:
        for _ in range(3):
            send_all(producer, 100)
            assert {partition.broker_id for partition in producer.flush()} == {1}
    assert 0 < refusal.fired <= 100
    assert bodies_in(cluster) == dict.fromkeys(bodies(100), 3)


@pytest.mark.parametrize(
    ("body", "attributes", "error"),
    [
        (b"", b"", "value and attributes are empty"),
        (bytes(1001), b"", "value has 1001 bytes, and topic demo takes 1000 at most"),
        (bytes(1000), b"a=" + b"x" * 10_240, "value and attributes have 11242 bytes"),
        (bytes(1000), b"a=" + b"x" * (10_240 - 52 - 4 - 2 + 1), "value and attributes have 11185 bytes"),
    ],
    ids=["empty", "value", "attributes", "more than memory gives out"],
)
def test_a_record_of_a_wrong_size_is_refused(body: bytes, attributes: bytes, error: str) -> None:
    config = ServerConfig(max_msg_size=1000)
    with (
        embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, config=config) as cluster,
        Producer(settings(cluster)) as producer,
    ):
        with pytest.raises(ConfigError, match=f"row 3: {error}"):
            producer.send("demo", body, attributes, row=3)
        producer.send("demo", bytes(1000), b"a=" + b"x" * 10_000)
        producer.send("demo", b"", b"a=b")
        assert sum(producer.flush().values()) == 2


@pytest.mark.parametrize(("framing", "limit"), [("standard", 10 << 20), ("prefixed", 5_219_828)])
def test_a_body_is_no_longer_than_a_frame_takes(framing: Literal["standard", "prefixed"], limit: int) -> None:
    config = ServerConfig(max_msg_size=10 << 20)
    with (
        embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, framing=framing, config=config) as cluster,
        Producer(settings(cluster)) as producer,
    ):
        assert producer.limit("demo") == limit
        with pytest.raises(ConfigError, match=f"row 3: value has {limit + 1} bytes, and topic demo takes {limit} at"):
            producer.send("demo", bytes(limit + 1), row=3)
        producer.send("demo", bytes(limit), b"a=" + b"x" * 10_000)
        assert sum(producer.flush().values()) == 1
