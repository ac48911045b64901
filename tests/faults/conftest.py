# SPDX-License-Identifier: Apache-2.0
"""A cluster for each test, and a client that soon gives up lost requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clocks import UseTimings
from tests.faults.engine import SMALL_FETCHES, TOPICS
from tests.faults.kinds import UNHURRIED
from tests.faults.unanswered import patience
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """One broker."""
    with EmbeddedTubeMQ(topics=TOPICS, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture(autouse=True)
def _patient_client(use_timings: UseTimings) -> Iterator[None]:
    """It gives up what nobody answers, and nothing else. There a reader that was busy is not slow, so that a request
    is given up when its time is up."""
    use_timings(slow_peer_grace=0.05, reader_close_timeout=UNHURRIED, claims_close_timeout=UNHURRIED)
    with patience():
        yield
