"""Producers in tests, and what of theirs an embedded cluster holds."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from tests import messages
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.testing import EmbeddedTubeMQ, Fault


def settings(
    cluster: EmbeddedCluster,
    *,
    rpc_timeout: float = 10.0,
    retry_for: float = 30.0,
    idle_for: float = 180.0,
    clock: Clock = SYSTEM_CLOCK,
) -> ClientSettings:
    """Return the settings of a client of this cluster. Times are in seconds."""
    return replace(
        messages.settings(cluster), rpc_timeout=rpc_timeout, retry_for=retry_for, idle_for=idle_for, clock=clock
    )


def seeds(count: int, fast: int) -> list[ParameterSet]:
    """Return seeds of random runs as parameters; those behind the first `fast` are thorough."""
    return [pytest.param(seed, marks=() if seed < fast else pytest.mark.thorough) for seed in range(count)]


def bodies_in(cluster: EmbeddedCluster) -> Counter[bytes]:
    """How often each body is stored, in whatever topic."""
    return Counter(message.body for topic in cluster.topics for message in cluster.tubemq.messages(topic))


def counted(cluster: EmbeddedCluster, method: str) -> Fault:
    """Does no harm: its `fired` says how many calls of `method` there are from now on."""
    return cluster.tubemq.on(method).count()


def connect(cluster: Cluster, producers: int = 1) -> None:
    """As many producers of this process as that, at the same time, find connections to all brokers in the pool. Else
    rows for anywhere go to the brokers that a producer is connected with first."""
    settings = messages.settings(cluster)
    with ExitStack() as leases:
        for broker_id in cluster.broker_ids:
            for _ in range(producers):
                leases.enter_context(POOL.lease(messages.broker(cluster, broker_id).address, settings))


def let_go(tubemq: EmbeddedTubeMQ) -> None:
    """Whatever idle clients of this process have sent was handled afterwards, or never will be."""
    forget_servers()
    wait_until(lambda: not connections_to(tubemq), "that nothing more comes of clients")


def connections_to(tubemq: EmbeddedTubeMQ) -> int:
    """How many its masters and brokers have. What comes over one is handled before its end is noticed."""
    servers = tubemq._servers
    listeners = [server.plain for server in servers.masters] + [server.plain for server in servers.brokers.values()]
    return tubemq._on_thread(lambda: sum([len(listener.connections) for listener in listeners]))
