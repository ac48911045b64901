# SPDX-License-Identifier: Apache-2.0
"""What all these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sink_options.effectively_once import Start


@pytest.fixture(autouse=True)
def _new_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_timings: UseTimings) -> None:
    """Begin as a new driver does, and do not wait for earlier attempts, which have ended here."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    # A slow broker is not away.
    use_timings(task_settling=0.05, closed_connection_settling=0.05, broker_away_after=30.0)


@pytest.fixture
def demo(cluster: Cluster) -> str:
    """A topic of this test alone, of three partitions on each broker."""
    return cluster.new_topic("three")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of this test alone, of one partition on each broker."""
    return cluster.new_topic("one")


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a cluster with topic `demo`, or the named topics, of `partitions` a broker."""
    with ExitStack() as stack:

        def start(*topics: str, brokers: int = 1, partitions: int = 1) -> EmbeddedCluster:
            specs = {topic: TopicSpec(partitions=partitions) for topic in topics or ("demo",)}
            return stack.enter_context(embedded_cluster(topics=specs, brokers=brokers))

        yield start
