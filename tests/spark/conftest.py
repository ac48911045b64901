# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY
from tests.spark.queries import Queries, Source
from tubemq_spark.client import forget_servers


# The server's behaviour is proven without Spark (tests/contract, tests/client). So most tests with Spark run on a real
# cluster in `make test-all` only; a few name ALL and run there always.
@pytest.fixture(scope="session", params=[EMBEDDED, *REAL_THOROUGHLY])
def cluster(request: pytest.FixtureRequest, _clusters: Callable[[str], Cluster]) -> Iterator[Cluster]:
    yield _clusters(request.param)
    forget_servers()


@pytest.fixture
def source(spark: SparkSession, cluster: Cluster, group: str) -> Source:
    return Source(spark, cluster, group)


@pytest.fixture
def chance() -> random.Random:
    """Random numbers: the same in each run on CI, others elsewhere."""
    seed = 0 if os.environ.get("CI") == "true" else random.SystemRandom().getrandbits(32)
    print(f"the moments come from random.Random({seed})")
    return random.Random(seed)


@pytest.fixture
def queries() -> Iterator[Queries]:
    started = Queries()
    yield started
    started.stop()
