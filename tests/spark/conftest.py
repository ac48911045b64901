"""Sources and queries for the tests that run Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.spark.queries import Queries, Source


@pytest.fixture
def source(spark: SparkSession, cluster: Cluster, group: str) -> Source:
    return Source(spark, cluster, group)


@pytest.fixture
def queries() -> Iterator[Queries]:
    started = Queries()
    yield started
    started.stop()
