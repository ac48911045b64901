"""All partitions of a topic, as the master tells producers and consumers of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import messages
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.topic_partitions import all_partitions
from tubemq_spark.errors import ConfigError, TransportError

TOPIC = "demo"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={TOPIC: TopicSpec(partitions=1)}) as cluster:
        yield cluster
    forget_servers()


@pytest.fixture
def session(cluster: EmbeddedCluster) -> Iterator[ProducerSession]:
    session = ProducerSession(replace(messages.settings(cluster), clock=SkippingClock()))
    yield session
    session.close()


@pytest.fixture
def hasty(cluster: EmbeddedCluster) -> Iterator[ProducerSession]:
    """Soon knows that nobody answers."""
    session = ProducerSession(
        replace(messages.settings(cluster), rpc_timeout=0.3, retry_for=2.0, clock=SkippingClock())
    )
    yield session
    session.close()


def ids(found: frozenset[object]) -> list[str]:
    return sorted(map(str, found))


def test_a_topic_that_is_not_there(session: ProducerSession, group: str) -> None:
    with pytest.raises(ConfigError, match="no topic no_such_topic"):
        all_partitions(session, group, "no_such_topic")


def test_who_asks_anew_hears_of_new_partitions_at_once(
    cluster: EmbeddedCluster, session: ProducerSession, group: str
) -> None:
    first = all_partitions(session, group, TOPIC)
    assert ids(first) == ["1:demo:0", "2:demo:0"]
    cluster.tubemq.create_topic(TOPIC, 2)
    assert all_partitions(session, group, TOPIC) == first
    assert ids(all_partitions(session, group, TOPIC, anew=True)) == ["1:demo:0", "1:demo:1", "2:demo:0", "2:demo:1"]


def test_closed_and_absent_partitions_are_there(cluster: EmbeddedCluster, session: ProducerSession, group: str) -> None:
    cluster.tubemq.create_topic(TOPIC, 2)
    all_partitions(session, group, TOPIC)
    cluster.stop_broker(2)
    assert len(all_partitions(session, group, TOPIC, anew=True)) == 4
    cluster.start_broker(2)


@pytest.mark.parametrize("method", ["producer_heartbeat", "consumer_register_v2", "get_partition_meta"])
def test_without_a_master_those_that_are_known_will_do_but_not_for_who_asks_anew(
    cluster: EmbeddedCluster,
    hasty: ProducerSession,
    group: str,
    method: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = all_partitions(hasty, group, TOPIC)
    monkeypatch.setattr("tubemq_spark.client.cluster.topic_partitions._FRESH", 0.0)
    with cluster.tubemq.on(method).drop_request(), caplog.at_level(logging.WARNING):
        assert all_partitions(hasty, group, TOPIC) == first
        told = "topic demo: only the partitions known so far, for" in caplog.text
        assert told is (method != "producer_heartbeat")
        with pytest.raises(TransportError):
            all_partitions(hasty, group, TOPIC, anew=True)
    assert all_partitions(hasty, group, TOPIC, anew=True) == first
