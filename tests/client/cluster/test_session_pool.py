# SPDX-License-Identifier: Apache-2.0
"""The producer sessions of a process: shared by producers, and closed when unused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, counted, settings
from tests.waiting import wait_until
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.producer import Producer


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
