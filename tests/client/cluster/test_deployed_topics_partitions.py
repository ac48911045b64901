# SPDX-License-Identifier: Apache-2.0
"""All partitions of a topic, as the master lists them for producers and for consumers."""

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
from tubemq_spark.client.cluster.deployed_topics import all_partitions
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.timings import Timings
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
    """A session that soon gives up asking, and asks each time."""
    timings = Timings(topic_partitions_fresh=0.0, slow_peer_grace=0.05)
    session = ProducerSession(replace(messages.settings(cluster), rpc_timeout=0.1, retry_for=0.2, timings=timings))
    yield session
    session.close()


def ids(found: frozenset[object]) -> list[str]:
    return sorted(map(str, found))


def test_an_unknown_topic_is_an_error(session: ProducerSession, group: str) -> None:
    with pytest.raises(ConfigError, match="no topic no_such_topic"):
        all_partitions(session, group, "no_such_topic")


def test_new_partitions_are_listed_when_asked_anew(
    cluster: EmbeddedCluster, session: ProducerSession, group: str
) -> None:
    first = all_partitions(session, group, TOPIC)
    assert ids(first) == ["1:demo:0", "2:demo:0"]
    cluster.tubemq.create_topic(TOPIC, 2)
    assert all_partitions(session, group, TOPIC) == first
    assert ids(all_partitions(session, group, TOPIC, refresh=True)) == ["1:demo:0", "1:demo:1", "2:demo:0", "2:demo:1"]


def test_partitions_of_stopped_brokers_are_listed(
    cluster: EmbeddedCluster, session: ProducerSession, group: str
) -> None:
    cluster.tubemq.create_topic(TOPIC, 2)
    all_partitions(session, group, TOPIC)
    cluster.stop_broker(2)
    assert len(all_partitions(session, group, TOPIC, refresh=True)) == 4
    cluster.start_broker(2)


@pytest.mark.parametrize("method", ["producer_heartbeat", "consumer_register_v2", "get_partition_meta"])
def test_without_a_master_known_partitions_suffice_unless_asked_anew(
    cluster: EmbeddedCluster,
    hasty: ProducerSession,
    group: str,
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = all_partitions(hasty, group, TOPIC)
    with cluster.tubemq.on(method).drop_request(), caplog.at_level(logging.WARNING):
        assert all_partitions(hasty, group, TOPIC) == first
        told = "topic demo: using the partitions known so far, because" in caplog.text
        assert told is (method != "producer_heartbeat")
        with pytest.raises(TransportError):
            all_partitions(hasty, group, TOPIC, refresh=True)
    assert all_partitions(hasty, group, TOPIC, refresh=True) == first


def test_only_so_many_answers_are_kept(
    cluster: EmbeddedCluster, session: ProducerSession, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubemq_spark.client.cluster.deployed_topics._MAX_ANSWERS", 1)
    cluster.tubemq.create_topic("other", 1)
    asked = cluster.tubemq.on("consumer_register_v2").count()
    for topic, count in [(TOPIC, 1), (TOPIC, 1), ("other", 2), (TOPIC, 3)]:
        all_partitions(session, f"{group}_{topic}", topic)
        assert asked.fired == count
