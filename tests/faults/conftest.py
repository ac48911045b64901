"""A cluster for each test, and a client that notices soon what is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.bench import SMALL_FETCHES, TOPICS
from tubemq_spark.client import connection, forget_servers, link
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """One broker."""
    with EmbeddedTubeMQ(topics=TOPICS, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture(autouse=True)
def _impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was busy is not slow here, so that a request is given up when its time is up."""
    monkeypatch.setattr(connection, "_GRACE", 0.05)
    monkeypatch.setattr(link, "_GRACE", 0.05)
