# SPDX-License-Identifier: Apache-2.0
"""A real broker dies, hangs, stops, loses its disk or fills it, while a stream and a sink run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.trials.scenarios import FULL_TIMES, seconds
from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.without_spark.jobs import RETRY_FOR, Jobs
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import DataLossError

USES = ("killed", "hangs", "hangs_long", "stops", "loses")
LONG = 300.0  # seconds


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    topics = {f"brokers_{use}": TopicSpec(partitions=2, settings=FLUSH_SOON) for use in USES}
    with needs_tools():
        cluster = RealCluster(topics=topics, brokers=2)
    with cluster:
        yield cluster
        forget_servers()


def test_one_of_two_brokers_is_killed(cluster: RealCluster) -> None:
    """It loses what it had not flushed. The stream reports that; all else is there once."""
    with Jobs(cluster, "brokers_killed", failOnDataLoss="false") as jobs:
        jobs.wait_for_more(200)
        cluster.kill_broker(1)
        jobs.pass_time(seconds(10, 60))
        cluster.start_broker(1)
        jobs.wait_for_more(200)
        jobs.finish()
        lost = jobs.check(crashed=1)
    print(f"broker killed: {jobs.summary()}, {lost} messages lost by the broker")


def test_a_broker_hangs(cluster: RealCluster) -> None:
    pause = seconds(15, 40)
    with Jobs(cluster, "brokers_hangs") as jobs:
        jobs.wait_for_more(200)
        cluster.pause_broker(1)
        jobs.pass_time(pause)
        cluster.resume_broker(1)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"broker hangs for {pause:g} s: {jobs.summary()}")
    assert jobs.failures == []


@pytest.mark.skipif(not FULL_TIMES, reason="takes 6 minutes: set TUBEMQ_FULL_TIMES to 1")
def test_a_broker_hangs_for_longer_than_queries_retry(cluster: RealCluster) -> None:
    """The stream fails and begins again until the broker is back. The sink writes to the other one."""
    with Jobs(cluster, "brokers_hangs_long") as jobs:
        jobs.wait_for_more(200)
        cluster.pause_broker(1)
        before = len(jobs.written)
        jobs.pass_time(LONG)
        written = len(jobs.written) - before
        cluster.resume_broker(1)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"broker hangs for {LONG:g} s: {jobs.summary()}; meanwhile {written} rows written")
    assert written
    assert len(jobs.failures) <= LONG / RETRY_FOR


def test_a_broker_stops_in_order(cluster: RealCluster) -> None:
    """It confirms for the group what is in flight, and the next run of the stream still begins at its checkpoint."""
    with Jobs(cluster, "brokers_stops") as jobs:
        for _ in range(2):
            jobs.wait_for_more(200)
            cluster.stop_broker(1)
            cluster.start_broker(1)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"broker stopped twice: {jobs.summary()}")


def test_a_broker_loses_its_data_folder(cluster: RealCluster) -> None:
    with Jobs(cluster, "brokers_loses") as jobs:
        jobs.wait_for_rows_of(1)  # the sink may still avoid it, because it was away in another test
        cluster.kill_broker(1)
        cluster.remove_data(1)
        cluster.start_broker(1)
        with pytest.raises(DataLossError, match=r"brokers_loses.*failOnDataLoss") as told:
            jobs.wait_for_more(100_000)
    print(f"data folder lost: {told.value}")
    assert told.value.broker_id == 1
    assert told.value.offered < told.value.asked
