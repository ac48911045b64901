"""What all these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tubemq_spark.sink.once import RUNS


@pytest.fixture(autouse=True)
def _soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was sent has arrived at once at the embedded server. Runs of other tests are forgotten, as in a new process."""
    RUNS.forget()
    if "cluster" in request.fixturenames and isinstance(request.getfixturevalue("cluster"), EmbeddedCluster):
        monkeypatch.setattr("tubemq_spark.sink.once.SETTLING", 0.05)
        monkeypatch.setattr("tubemq_spark.client.doubts.SETTLING", 0.05)
    yield
    RUNS.forget()


@pytest.fixture
def demo(cluster: Cluster) -> str:
    """A topic of this test alone, of three partitions on each broker."""
    return cluster.new_topic("three")
