# SPDX-License-Identifier: Apache-2.0
"""What `forget_servers` empties."""

from __future__ import annotations

from tests.clusters.embedded import embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.connection import FRAMINGS
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.producer import Producer


def test_forget_servers_closes_idle_sessions_and_connections() -> None:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}) as cluster:
        closed = counted(cluster, "producer_close")
        with Producer(settings(cluster)) as producer:
            producer.send("demo", b"1")
        forget_servers()
        assert closed.fired == 1
        assert repr(SESSIONS) == "<ProducerSessions []>"
        assert repr(POOL) == "<ConnectionPool idle: {}>"
        assert FRAMINGS == {}
