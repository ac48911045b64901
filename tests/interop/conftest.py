# SPDX-License-Identifier: Apache-2.0
"""The official Java client beside embedded servers of both releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.java_client import JavaClient, java_client
from tests.real.jars import Framing
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.config import ServerConfig

# Each release has its own framing.
RELEASES: dict[str, Framing] = {"1.2": "prefixed", "2.5": "standard"}


@pytest.fixture(scope="session")
def java_at() -> Callable[..., JavaClient]:
    """Return a factory of Java clients. Without Java the test is skipped."""
    return java_client


@pytest.fixture(params=["2.5", pytest.param("1.2", marks=pytest.mark.thorough)])
def embedded(request: pytest.FixtureRequest) -> Iterator[EmbeddedTubeMQ]:
    """One broker; topic `demo` has three partitions."""
    config = ServerConfig(consumer_balance_period=0.5)
    with EmbeddedTubeMQ({"demo": 3}, release=request.param, config=config) as tubemq:
        yield tubemq


@pytest.fixture
def java_here(embedded: EmbeddedTubeMQ, java_at: Callable[..., JavaClient]) -> JavaClient:
    return java_at(embedded.master, RELEASES[embedded.release.value])
