# SPDX-License-Identifier: Apache-2.0
"""`topics alter` gives a topic more partitions and stores while a sink writes it and a stream reads it."""

from __future__ import annotations

import pytest

from tests.clusters.servers import EMBEDDED, PREFIXED_THOROUGHLY, REAL_THOROUGHLY, running
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.waiting import wait_until
from tests.without_spark.jobs import Jobs
from tubemq_spark.cli.topics import change_topic, is_ready
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.protocol.metadata import parse_addresses

SERVERS = [EMBEDDED, *REAL_THOROUGHLY, *PREFIXED_THOROUGHLY]

BEFORE = TopicSpec(partitions=1, settings=FLUSH_SOON)
AFTER = TopicSpec(partitions=3, stores=2, settings=FLUSH_SOON)


@pytest.mark.parametrize("server", SERVERS)
def test_no_row_is_lost_or_read_twice(server: str) -> None:
    with running(server, brokers=1, topics={"growing": BEFORE}) as cluster:
        admin = AdminApi(parse_addresses(cluster.web_master), cluster.admin_token)
        with Jobs(cluster, "growing", metadataIntervalMs=1000) as jobs:
            jobs.wait_for_more(200)
            change_topic(admin, "growing", AFTER.partitions, AFTER.stores, None)
            wait_until(lambda: is_ready(admin, "growing"), "the change", 120.0)
            assert isinstance(cluster.topics, dict)
            cluster.topics["growing"] = AFTER  # for the ledger, which reads all partitions
            wait_until(
                lambda: len({key[:2] for key in jobs.read}) == AFTER.partitions * AFTER.stores,
                "rows of all partitions",
                120.0,
            )
            jobs.wait_for_more(200)
            jobs.finish()
            jobs.check()
        print(f"more partitions: {jobs.summary()}")
        assert jobs.failures == []
