# SPDX-License-Identifier: Apache-2.0
"""Topics and explicit partitions that a producer does not know: only those that do not exist are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.clocks import ManualClock, SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, counted, settings
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import AuthError, ConfigError, TransportError, TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault

HEARTBEAT = "producer_heartbeat"
STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"
TOPICS = {"demo": TopicSpec(partitions=3), "other": TopicSpec(partitions=1)}
LONG = 60.0  # seconds


@pytest.fixture(autouse=True)
def patient(use_timings: UseTimings) -> None:
    """Producers wait for the lists until a test's fault has completed them."""
    use_timings(topic_lists_fill_up=LONG)


@pytest.fixture
def at_once(use_timings: UseTimings) -> None:
    """Producers do not wait for the lists."""
    use_timings(topic_lists_fill_up=0.0)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics=TOPICS, brokers=2) as running:
        yield running


@contextmanager
def producer_session(
    cluster: EmbeddedCluster, retry_for: float = LONG, clock: SkippingClock | None = None
) -> Iterator[ProducerSession]:
    session = ProducerSession(settings(cluster, retry_for=retry_for, clock=clock or SkippingClock()))
    try:
        yield session
    finally:
        session.close()


@contextmanager
def warm(cluster: EmbeddedCluster, retry_for: float = LONG, clock: Clock = SYSTEM_CLOCK) -> Iterator[Producer]:
    """Yield a producer that has written to topic demo."""
    with Producer(settings(cluster, retry_for=retry_for, clock=clock)) as producer:
        producer.send("demo", b"warm", row=0)
        producer.flush()
        yield producer


# Topics


def test_many_unknown_topics_are_waited_for_once(cluster: EmbeddedCluster, use_timings: UseTimings) -> None:
    use_timings(topic_lists_fill_up=2.0)
    beats, registers = counted(cluster, HEARTBEAT), counted(cluster, "producer_register")
    with producer_session(cluster) as session:
        asked = []
        for n in range(5):
            before = beats.fired
            with pytest.raises(ConfigError, match=rf"^the master {cluster.master} knows no topic nope{n} that accepts"):
                session.add_topics([f"nope{n}"])
            asked.append(beats.fired - before)
    assert asked[0] > 2
    assert asked[1:] == [2] * 4  # because a topic may be listed only with the next heartbeat
    assert registers.fired == 1


def test_unknown_topics_are_not_waited_for_when_the_lists_are_complete(cluster: EmbeddedCluster) -> None:
    with producer_session(cluster) as session:
        session.add_topics(["demo"])
        beats = counted(cluster, HEARTBEAT)
        with pytest.raises(ConfigError, match="knows no topic nope that"):
            session.add_topics(["nope"])
        assert beats.fired == 2


@pytest.mark.usefixtures("at_once")
def test_an_unknown_topic_is_asked_for_again_after_a_while(cluster: EmbeddedCluster) -> None:
    clock = ManualClock()
    with warm(cluster, clock=clock) as producer:
        beats = counted(cluster, HEARTBEAT)
        for row in range(100):
            with pytest.raises(ConfigError, match=rf"^row {row}: the cluster has no topic late"):
                producer.send("late", b"early", row=row)
        assert beats.fired == 2
        cluster.create("late", TopicSpec(partitions=1))
        clock.now += 3.0
        producer.send("late", b"in time")
    assert bodies_in(cluster) == {b"warm": 1, b"in time": 1}


@pytest.mark.parametrize(
    ("how", "error"),
    [(lambda calls: calls.throw(STANDBY), TransportError), (lambda calls: calls.fail(415), AuthError)],
    ids=["no master", "refused"],
)
def test_a_topic_whose_request_failed_is_not_declared(
    cluster: EmbeddedCluster, how: Callable[[Calls], Fault], error: type[TubeMQError]
) -> None:
    with producer_session(cluster, retry_for=0.0) as session:
        session.add_topics(["demo"])
        with how(cluster.tubemq.on(HEARTBEAT)), pytest.raises(error):
            session.add_topics(["demo", "nope"])
        session.add_topics(["demo", "other"])
        assert len(session.cluster.partitions("other")) == 2
        with pytest.raises(ConfigError, match="knows no topic nope that"):
            session.add_topics(["nope", "demo"])


def test_a_removed_topic_is_logged_for_the_next_task(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is not called unknown, because its brokers may be down instead."""

    def says() -> list[str]:
        producer = Producer(settings(cluster))
        producer.send("other", b"row")
        producer.close()
        return [record.message for record in caplog.records if "list of topic other has no partition" in record.message]

    assert says() == []
    cluster.tubemq.delete_topic("other")
    with SESSIONS().lease(settings(cluster)) as session:
        session.refresh_once()
    assert len(says()) == 1


# Targets


@pytest.mark.parametrize("target", [(1, 3), (1, -1), (9, 0)], ids=str)
def test_an_unknown_target_takes_one_request(cluster: EmbeddedCluster, target: tuple[int, int]) -> None:
    """The producer does not wait for the lists of a new master that lists the broker."""
    clock = ManualClock()
    with warm(cluster, clock=clock) as producer:
        beats = counted(cluster, HEARTBEAT)
        for row in range(100):
            with pytest.raises(ConfigError, match=rf"^row {row}: topic demo has no partition {target[1]} on a broker "):
                producer.send("demo", b"wrong", row=row, target=target)
        assert beats.fired == 1
        if target == (1, 3):
            cluster.create("demo", TopicSpec(partitions=4))
            clock.now += 3.0
            producer.send("demo", b"good", target=target)
            assert producer.flush()[Partition(1, "demo", 3)] == 1


def test_many_different_unknown_targets_take_few_requests(cluster: EmbeddedCluster) -> None:
    with warm(cluster, clock=ManualClock()) as producer:
        beats = counted(cluster, HEARTBEAT)
        for row in range(500):
            with pytest.raises(ConfigError, match="has no partition"):
                producer.send("demo", b"wrong", target=(1, 100 + row))
        assert 0 < beats.fired < 100


@pytest.mark.usefixtures("at_once")
def test_unknown_topics_hide_no_new_partition(cluster: EmbeddedCluster) -> None:
    with warm(cluster, clock=ManualClock()) as producer:
        for row in range(60):
            with pytest.raises(ConfigError, match="has no topic"):
                producer.send(f"nope{row}", b"wrong", row=row)
        cluster.create("demo", TopicSpec(partitions=4))
        producer.send("demo", b"good", target=(1, 3))
        assert producer.flush()[Partition(1, "demo", 3)] == 1
