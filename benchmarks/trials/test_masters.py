# SPDX-License-Identifier: Apache-2.0
"""Two real masters: a stream and a sink survive the death of either, and need none for partitions that they know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.trials.scenarios import seconds
from tests import reading
from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.messages import numbered, send
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.waiting import wait_until
from tests.without_spark.jobs import Jobs
from tests.without_spark.source import Stream, bodies
from tubemq_spark.cli.topics import configure_topic, deployments, is_ready, remove_topic
from tubemq_spark.client import forget_servers
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.client.timings import DEFAULT_TIMINGS
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition, parse_addresses

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


def create(cluster: RealCluster, topic: str) -> AdminApi:
    """Create a topic with one partition, and return the API that can remove it."""
    admin = AdminApi(parse_addresses(cluster.web_masters), cluster.admin_token)
    configure_topic(admin, topic, partitions=1, stores=1, brokers=(), retention=None)
    wait_until(lambda: is_ready(admin, topic), "the topic", 120.0)
    return admin


def serves(cluster: RealCluster, partition: Partition) -> bool:
    """Return True while the broker has the topic. It removes a topic some time after the master did."""
    reply = reading.register(cluster, "a_look", partition, "a_look")
    reading.unregister(cluster, "a_look", partition, "a_look")
    return reply.errCode != ErrCode.FORBIDDEN


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
    admin = create(cluster, "masters_gone")
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


@pytest.mark.parametrize("masters", [1, 2], ids=["restarts", "fails over"])
def test_a_master_forgets_a_query_whose_topic_was_deleted(monkeypatch: pytest.MonkeyPatch, masters: int) -> None:
    """The driver asks the master whether the topic is gone, before a heartbeat could register the query again."""
    timings = replace(DEFAULT_TIMINGS, heartbeat_period=3600.0)
    monkeypatch.setattr("tubemq_spark.client.settings.DEFAULT_TIMINGS", timings)
    with needs_tools():
        cluster = RealCluster(topics={"stays": TopicSpec(settings=FLUSH_SOON)}, brokers=1, masters=masters)
    stays, goes = Partition(1, "stays", 0), Partition(1, "goes", 0)
    with cluster:
        admin = create(cluster, "goes")
        stream = Stream(cluster, "stays", "goes", failOnDataLoss="false", tubemq_retry_maxElapsedMs=3000)
        first = send(cluster, numbered([stays, goes], 10))
        with stream.running() as run:
            wait_until(lambda: (run.next(), len(stream.rows) == 10)[1], "the first rows")
            remove_topic(admin, "goes")
            wait_until(lambda: not serves(cluster, goes), "the end of the topic", 120.0)
            killed = kill_active(cluster)
            if masters == 1:
                cluster.start_master(killed)
            else:
                wait_for_active(cluster)
            second = send(cluster, numbered([stays], 10))
            wait_until(lambda: (run.next(), len(stream.rows) == 20)[1], "the rows of the other topic")
    forget_servers()
    expected = [message.body for sent in (first, second) for messages in sent.values() for message in messages]
    assert sorted(bodies(stream.rows)) == sorted(expected)


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
