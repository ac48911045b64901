"""What all these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tubemq_spark.sink.run_cache import RUNS


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """All that an earlier try has sent was answered here. Runs of other tests are forgotten, as in a new process."""
    RUNS.forget()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr("tubemq_spark.sink.deduplicator.SETTLING", 0.05)
    monkeypatch.setattr("tubemq_spark.client.producer.unresolved_sends.SETTLING", 0.05)
    monkeypatch.setattr("tubemq_spark.sink.commit.AWAY_AFTER", 30.0)  # who is slow is not away
    yield
    RUNS.forget()


@pytest.fixture
def demo(cluster: Cluster) -> str:
    """A topic of this test alone, of three partitions on each broker."""
    return cluster.new_topic("three")
