"""What all these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import UseTimings
from tests.clusters import Cluster
from tubemq_spark.sink.earlier_attempts import RUN_CACHE


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_timings: UseTimings) -> Iterator[None]:
    """Begin as a new driver and worker do, and do not wait for earlier attempts, which have ended here."""
    RUN_CACHE.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    # A slow broker is not away.
    use_timings(task_settling=0.05, closed_connection_settling=0.05, broker_away_after=30.0)
    yield
    RUN_CACHE.clear()


@pytest.fixture
def demo(cluster: Cluster) -> str:
    """A topic of this test alone, of three partitions on each broker."""
    return cluster.new_topic("three")
