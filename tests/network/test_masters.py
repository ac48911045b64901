# SPDX-License-Identifier: Apache-2.0
"""Two real masters: a stream and a sink survive the death of either, and need none for partitions that they know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.network.jobs import Jobs
from tests.network.scenarios import seconds
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.waiting import wait_until
from tubemq_spark.cli.topics import configure_topic, deployments, is_ready, remove_topic
from tubemq_spark.client import forget_servers
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.protocol.metadata import parse_master_addresses

pytestmark = [pytest.mark.real, pytest.mark.thorough]

USES = ("running", "starting", "standby_first", "none", "deleted")
OUTAGE = seconds(20, 600)  # seconds without a master
LOOKS = seconds(5, 30)  # for new partitions; 30 s is the default of metadataIntervalMs


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    topics = {f"masters_{use}": TopicSpec(partitions=2, settings=FLUSH_SOON) for use in USES}
    with needs_tools():
        cluster = RealCluster(topics=topics, masters=2)
    with cluster:
        yield cluster
        forget_servers()


def kill_active(cluster: RealCluster) -> int:
    number = cluster.active_master
    cluster.kill_master(number)
    return number


def wait_for_active(cluster: RealCluster) -> None:
    def answers() -> bool:
        try:
            return bool(cluster.active_master)
        except OSError:
            return False

    wait_until(answers, "an active master")


def test_the_active_master_dies_while_queries_run(cluster: RealCluster) -> None:
    with Jobs(cluster, "masters_running") as jobs:
        jobs.wait_for_more(200)
        killed = kill_active(cluster)
        jobs.wait_for_more(200)
        wait_for_active(cluster)
        assert cluster.active_master != killed
        cluster.start_master(killed)  # it is the standby now
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"active master killed: {jobs.summary()}")
    assert jobs.failures == []


def test_the_active_master_dies_while_queries_start(cluster: RealCluster) -> None:
    killed = kill_active(cluster)
    with Jobs(cluster, "masters_starting") as jobs:  # the other one is not active yet
        jobs.wait_for_more(200)
        cluster.start_master(killed)
        jobs.finish()
        jobs.check()
    print(f"active master killed at the start: {jobs.summary()}")
    assert jobs.failures == []


def test_the_standby_is_listed_first(cluster: RealCluster) -> None:
    active = cluster.active_master
    addresses = cluster.master.split(",")
    listed = [*(address for number, address in enumerate(addresses, 1) if number != active), addresses[active - 1]]
    with Jobs(cluster, "masters_standby_first", **{"tubemq.master": ",".join(listed)}) as jobs:
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"standby listed first: {jobs.summary()}")
    assert jobs.failures == []


def test_a_topic_is_deleted_before_the_active_master_dies(cluster: RealCluster) -> None:
    """The stream goes on with the other topic, also after it registered at the next master."""
    admin = AdminApi(parse_master_addresses(cluster.web_masters), cluster.admin_token)
    configure_topic(admin, "masters_gone", partitions=1, stores=1, brokers=(), retention=None)
    wait_until(lambda: is_ready(admin, "masters_gone"), "the topic", 120.0)
    both = {"subscribe": "masters_deleted,masters_gone", "failOnDataLoss": False, "metadataIntervalMs": 1000}
    with Jobs(cluster, "masters_deleted", **both) as jobs:
        jobs.wait_for_more(200)
        remove_topic(admin, "masters_gone")
        wait_until(lambda: not deployments(admin, "masters_gone"), "the end of the topic")
        jobs.wait_for_more(200)
        killed = kill_active(cluster)
        jobs.wait_for_more(200)
        wait_for_active(cluster)
        cluster.start_master(killed)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"topic deleted, active master killed: {jobs.summary()}")
    assert jobs.failures == []


def test_known_partitions_are_read_and_written_without_any_master(cluster: RealCluster) -> None:
    """Heartbeats fail, and the stream looks for new partitions in vain."""
    with Jobs(cluster, "masters_none", metadataIntervalMs=int(1000 * LOOKS)) as jobs:
        jobs.wait_for_more(200)
        for number in (1, 2):
            cluster.kill_master(number)
        begin = len(jobs.read)
        jobs.wait_for_more(400)
        jobs.pass_time(OUTAGE)
        jobs.wait_for_more(200)
        print(f"rows read without a master: {len(jobs.read) - begin}, failures meanwhile: {jobs.failures}")
        for number in (1, 2):
            cluster.start_master(number)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"no master for {OUTAGE:g} s: {jobs.summary()}")
    assert jobs.failures == []
