"""Producers in tests, and what of theirs an embedded cluster holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests import messages
from tests.clusters.embedded import EmbeddedCluster
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.testing import EmbeddedTubeMQ, Fault


def settings(
    cluster: EmbeddedCluster, *, rpc_timeout: float = 10.0, retry_for: float = 30.0, idle_for: float = 180.0
) -> ClientSettings:
    """Of a client of this cluster. All times are in seconds."""
    return replace(messages.settings(cluster), rpc_timeout=rpc_timeout, retry_for=retry_for, idle_for=idle_for)


def bodies_in(cluster: EmbeddedCluster) -> Counter[bytes]:
    """How often each body is stored, in whatever topic."""
    return Counter(message.body for topic in cluster.topics for message in cluster.tubemq.messages(topic))


def counted(cluster: EmbeddedCluster, method: str) -> Fault:
    """Does no harm: its `fired` says how many calls of `method` there are from now on."""
    return cluster.tubemq.on(method).count()


def connections_to(tubemq: EmbeddedTubeMQ) -> int:
    """How many its masters and brokers have. What comes over one is handled before its end is noticed."""
    servers = tubemq._servers
    listeners = [server.plain for server in servers.masters] + [server.plain for server in servers.brokers.values()]
    return tubemq._on_thread(lambda: sum([len(listener.connections) for listener in listeners]))
