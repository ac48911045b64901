# SPDX-License-Identifier: Apache-2.0
"""The producer sessions of a process: shared by producers, and closed when unused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, counted, settings
from tests.waiting import wait_until
from tubemq_spark.client.cluster import producer_session
from tubemq_spark.client.cluster.producer_session import NotListedError
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.testing import request_checks


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}) as running:
        yield running


def test_the_next_producer_needs_no_master(cluster: EmbeddedCluster) -> None:
    calls = [counted(cluster, method) for method in ("producer_register", "producer_heartbeat")]
    same = settings(cluster)
    with Producer(same) as producer:
        producer.send("demo", b"1")
    before = [counter.fired for counter in calls]
    assert min(before) > 0
    with Producer(same) as producer:
        producer.send("demo", b"2")
    assert [counter.fired for counter in calls] == before
    assert set(bodies_in(cluster)) == {b"1", b"2"}


@pytest.fixture
def few_topics(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> EmbeddedCluster:
    """The cluster, with topics `t0` to `t11`, of which its master takes 4 from a producer."""
    monkeypatch.setattr(request_checks, "_MAX_TOPICS", 4)
    monkeypatch.setattr(producer_session, "MAX_TOPICS", 4)
    for number in range(12):
        cluster.tubemq.create_topic(f"t{number}", 1)
    return cluster


def bodies_of(cluster: EmbeddedCluster) -> set[bytes]:
    return {message.body for number in range(12) for message in cluster.tubemq.messages(f"t{number}")}


def test_a_process_may_write_to_any_number_of_topics(few_topics: EmbeddedCluster) -> None:
    same = settings(few_topics)
    beats = counted(few_topics, "producer_heartbeat")
    for number in range(12):
        with Producer(same) as producer:
            producer.send("t0", b"same")  # as in each task
            producer.send(f"t{number}", b"%d" % number)
    assert beats.fired == 12, "the topics used last are kept"
    with SESSIONS().lease(same) as session:
        assert {topic for topic, _ in session.cluster.layouts} == {"t0", "t9", "t10", "t11"}
    assert bodies_of(few_topics) == {b"same", *(b"%d" % number for number in range(12))}


def test_a_producer_may_write_to_more_topics_than_the_master_takes(few_topics: EmbeddedCluster) -> None:
    with Producer(settings(few_topics)) as producer:
        for turn in range(2):
            for number in range(12):
                producer.send(f"t{number}", b"%d %d" % (turn, number))
            producer.flush()
    assert len(bodies_of(few_topics)) == 2 * 12


def test_an_unknown_topic_takes_no_longer_after_topics_were_forgotten(few_topics: EmbeddedCluster) -> None:
    """A topic that a master lists no more otherwise makes a session wait for a list that fills up."""
    clock = SkippingClock()
    with SESSIONS().lease(settings(few_topics, clock=clock)) as session:
        for number in range(12):
            session.add_topics([f"t{number}"])
        began = len(clock.pauses)
        session.refresh()
        with pytest.raises(NotListedError):
            session.add_topics(["unknown"])
        assert clock.pauses[began:] == []


def test_an_unused_session_is_closed(cluster: EmbeddedCluster) -> None:
    registers, closes = counted(cluster, "producer_register"), counted(cluster, "producer_close")
    same = settings(cluster, idle_for=0.0)
    with Producer(same) as producer:
        producer.send("demo", b"1")
        producer.flush()
        SESSIONS().close_idle()
        assert closes.fired == 0
    SESSIONS().close_idle()
    assert closes.fired == 1
    with Producer(same) as producer:
        producer.send("demo", b"2")
    assert registers.fired == 2


def test_an_unused_session_is_closed_although_no_master_answers(
    cluster: EmbeddedCluster, use_timings: UseTimings
) -> None:
    """A worker process outlives its cluster, and would log that for ever."""
    use_timings(heartbeat_period=0.01)
    SESSIONS().close()
    with Producer(settings(cluster, idle_for=0.1)) as producer:
        producer.send("demo", b"1")
        cluster.tubemq.stop_master()
        SESSIONS().close_idle()
        assert "ProducerSession " in repr(SESSIONS()), "a producer still uses it"

    def is_closed() -> bool:
        SESSIONS().close_idle()
        return "ProducerSession " not in repr(SESSIONS())

    wait_until(is_closed)
