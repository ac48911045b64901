# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of producers: settings, stored bodies, connections."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

from tests import messages
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tubemq_spark.client.clock import Clock
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.record_batch import RecordBatch
from tubemq_spark.client.producer.send_queue import LaneId, SendQueue
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ, Fault


def settings(
    cluster: EmbeddedCluster,
    *,
    rpc_timeout: float = 10.0,
    retry_for: float = 30.0,
    idle_for: float = 180.0,
    clock: Clock | None = None,
) -> ClientSettings:
    """Return the settings of a client of this cluster. Times are in seconds."""
    made = replace(messages.settings(cluster), rpc_timeout=rpc_timeout, retry_for=retry_for, idle_for=idle_for)
    return made if clock is None else replace(made, clock=clock)


def batch_of(*bodies: bytes, partition: Partition) -> RecordBatch:
    """Return records without a key for `partition`."""
    count = len(bodies)
    columns = [b""] * count, list(bodies), [(None, None)] * count, list(range(count)), [None] * count, [None] * count
    batch = RecordBatch(0, SendQueue(lambda *_: partition).lane(LaneId(partition.topic, None)), columns)
    batch.partition = partition
    return batch


def bodies_in(cluster: EmbeddedCluster) -> Counter[bytes]:
    """Return how often each body is stored, in all topics together."""
    return Counter(message.body for topic in cluster.topics for message in cluster.tubemq.messages(topic))


def counted(cluster: EmbeddedCluster, method: str) -> Fault:
    """Count requests of `method` from now on: `fired` of the result is their number."""
    return cluster.tubemq.on(method).count()


def connect(cluster: Cluster, producers: int = 1) -> None:
    """Put connections to all brokers into the pool, so many that `producers` can run at the same time.

    Without them, rows for any partition go to the brokers that a producer is connected with first.
    """
    settings = messages.settings(cluster)
    with ExitStack() as leases:
        for broker_id in cluster.broker_ids:
            for _ in range(producers):
                leases.enter_context(POOL().lease(messages.broker(cluster, broker_id).address, settings))


def connections_to(tubemq: EmbeddedTubeMQ) -> int:
    """Return how many connections the servers have. They handle all requests of one before they notice its end."""
    servers = tubemq._servers
    listeners = [server.plain for server in servers.masters] + [server.plain for server in servers.brokers.values()]
    return tubemq._on_thread(lambda: sum(len(listener.connections) for listener in listeners))
