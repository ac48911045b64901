"""Sources and queries for the tests that run Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.spark.queries import Queries, Source


@pytest.fixture
def source(spark: SparkSession, cluster: Cluster, group: str) -> Source:
    return Source(spark, cluster, group)


@pytest.fixture
def chance() -> random.Random:
    """The same in each run in CI, another one elsewhere."""
    seed = 0 if os.environ.get("CI") == "true" else random.SystemRandom().getrandbits(32)
    print(f"the moments come from random.Random({seed})")
    return random.Random(seed)


@pytest.fixture
def queries() -> Iterator[Queries]:
    started = Queries()
    yield started
    started.stop()
