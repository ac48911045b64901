# SPDX-License-Identifier: Apache-2.0
"""The producer against brokers that fail: no record is lost, and only stored records count as acknowledged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Literal

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.stored import stored_in
from tests.waiting import wait_until
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, ServerError
from tubemq_spark.protocol.message import Attributes, encode_attributes, parse_msg_time
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


def test_a_message_is_stored_with_its_attributes(cluster: EmbeddedCluster) -> None:
    attributes = encode_attributes({"city": "Zürich"}, "news", "202611210830")
    with Producer(settings(cluster)) as producer:
        producer.send("demo", b"hello", attributes, "news", "202611210830")
        stored = producer.flush()

    (message,) = stored_in(cluster, "demo", filters=["news"])
    expected = Attributes({"city": "Zürich"}, "news", parse_msg_time("202611210830"))
    assert (message.body, message.attributes) == (b"hello", expected)
    assert stored == {message.partition: 1}
    assert stored_in(cluster, "demo", filters=["nothing"]) == []


class MostInFlight:
    """The most sends that a broker has read at once. It answers them before it reads on, so as many were in flight."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.most = 0
        self._now: Counter[int] = Counter()
        for broker_id in cluster.broker_ids:
            cluster.tubemq.on("send_message", broker=broker_id).run(partial(self._count, broker_id))

    def _count(self, broker_id: int) -> None:
        if not self._now[broker_id]:
            asyncio.get_running_loop().call_soon(self._now.pop, broker_id)
        self._now[broker_id] += 1
        self.most = max(self.most, self._now[broker_id])


@pytest.mark.parametrize("max_in_flight", [1, 7, 128])
def test_max_in_flight_limits_unanswered_sends(cluster: EmbeddedCluster, max_in_flight: int) -> None:
    most_in_flight = MostInFlight(cluster)
    with Producer(settings(cluster), max_in_flight) as producer:
        send_all(producer, 700)
    assert bodies_in(cluster) == dict.fromkeys(bodies(700), 1)
    assert 0 < most_in_flight.most <= max_in_flight


# Failures that end the producer


def test_flush_fails_after_an_error(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.on("send_message").fail(400)
    producer = Producer(settings(cluster))
    producer.send("demo", b"a")
    for _ in range(3):
        with pytest.raises(ServerError):
            producer.flush()
    producer.close()


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


def test_an_unknown_topic_does_not_end_the_producer(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster, retry_for=0.3)) as producer:
        producer.send("demo", b"before")
        with pytest.raises(ConfigError, match=r"row 5: the master .* knows no topic nope"):
            producer.send("nope", b"a", row=5)
        producer.send("demo", b"after")
    assert set(bodies_in(cluster)) == {b"before", b"after"}


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


# A caller that pauses


def test_a_pause_of_the_caller_does_not_count_for_the_delivery_timeout(cluster: EmbeddedCluster) -> None:
    """Records that failed before the pause are sent again after it."""
    clock = SkippingClock()
    same = settings(cluster, retry_for=20.0, clock=clock)
    refusals = [cluster.tubemq.on("send_message", broker=n).fail(503) for n in cluster.broker_ids]
    with Producer(same) as producer:
        send_all(producer, 300)

        def both_have_refused() -> bool:
            producer.send("demo", b"more")
            return len(SESSIONS().shared(same).health.failures.brokers) == 2

        wait_until(both_have_refused)
        for _ in range(3):
            clock.advance(60)
            send_all(producer, 300)
        for refusal in refusals:
            refusal.remove()
        clock.advance(60)
        stored = producer.flush()
    assert sum(stored.values()) == bodies_in(cluster).total()
