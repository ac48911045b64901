# SPDX-License-Identifier: Apache-2.0
"""The disk of a real broker is full for a while, and a stream and a sink run on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.trials.scenarios import seconds
from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.without_spark.jobs import Jobs
from tubemq_spark.client import forget_servers

SIZE = 64  # megabytes of the file system of broker 1
TOPIC = "full_disk"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system at the data folder of broker 1."""
    folder = tmp_path / "data-1"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tubemq-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this test mounts a small file system, which needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def cluster(disk: Path) -> Iterator[RealCluster]:
    with needs_tools():
        topics = {TOPIC: TopicSpec(partitions=2, settings=FLUSH_SOON)}
        cluster = RealCluster(topics=topics, brokers=2, folder=disk.parent)
    with cluster:
        yield cluster
        forget_servers()


def fill(disk: Path) -> Path:
    """Take all that is free, and return the file that does."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_the_disk_of_a_broker_is_full(cluster: RealCluster, disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker acknowledges messages that it cannot store, and then refuses further ones. The sink writes to the
    other broker. There is space again, but the broker accepts messages only after an operator has restarted it and
    lifted the master's ban; it has lost what it could not store. The stream reports that; all else is there once."""
    with Jobs(cluster, TOPIC, failOnDataLoss="false") as jobs:
        jobs.wait_for_more(200)
        ballast = fill(disk)
        jobs.pass_time(seconds(40, 120))
        ballast.unlink()
        full = len(jobs.read)
        cluster.stop_broker(1)
        cluster.admin(
            method="admin_set_broker_read_or_write", brokerId=1, acceptPublish=True, acceptSubscribe=True,
            isAcceptPublish=True, isAcceptSubscribe=True,
        )  # fmt: skip
        cluster.start_broker(1)
        jobs.wait_for_more(200)
        jobs.finish()
        lost = jobs.check(crashed=1)
    print(f"disk full: {full} messages read until it had space again; {jobs.summary()}, {lost} lost by the broker")
    assert full > 1000
    assert f"[data-loss] 1:{TOPIC}:" in caplog.text
