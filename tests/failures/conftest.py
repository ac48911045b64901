# SPDX-License-Identifier: Apache-2.0
"""A cluster for each test. A pause of the client takes no time, so that each retry follows at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clocks import SkippingClock
from tests.without_spark.query import SMALL_FETCHES, TOPICS
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def tubemq(skipping_clock: SkippingClock) -> Iterator[EmbeddedTubeMQ]:
    """One broker."""
    with EmbeddedTubeMQ(topics=TOPICS, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()
