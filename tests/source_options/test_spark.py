# SPDX-License-Identifier: Apache-2.0
"""Options that need Spark: triggers, progress reports, tasks, pushed filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit, spark_partition_id
from pyspark.sql.types import StructType

from tests.matrix.queries import run_to_the_end, wait_for
from tests.source_options.conftest import Start
from tests.spark.queries import Batches, Queries
from tests.without_spark.source import GROUP, UNIT, fill, options, stored
from tubemq_spark.source.schema import SPARK_SCHEMA
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def queries() -> Iterator[Queries]:
    started = Queries()
    yield started
    started.stop()


def stream(spark: SparkSession, tubemq: EmbeddedTubeMQ, *topics: str, **given: object) -> DataFrame:
    return spark.readStream.format("tubemq").options(**options(tubemq, *topics, **given)).load()


def positions(offset: Any, topic: str = "t") -> int:
    """Return the sum of a topic's positions in an offset of a progress report, which is JSON or its text."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return sum(found["offsets"][topic].values())


@pytest.mark.option("maxOffsetsPerTrigger")
def test_limits_with_each_trigger(spark: SparkSession, queries: Queries, start: Start, tmp_path: Path) -> None:
    """`availableNow` ends at the log ends of its start, although a producer goes on; an endless run reports its lag;
    `once` reads everything."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    batches = Batches()
    frame = stream(spark, tubemq, "t", maxOffsetsPerTrigger=20)

    def sink(rows: DataFrame, number: int) -> None:
        batches(rows, number)
        fill(tubemq, "t", 10)

    query = queries.start(frame, sink, tmp_path / "checkpoint", availableNow=True)
    run_to_the_end(query)
    assert [len(rows) for _, rows in batches.brought] == [20, 20, 10]
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    assert [report["numInputRows"] for report in reports] == [20, 20, 10]
    assert [positions(report["sources"][0]["endOffset"]) for report in reports] == [20 * UNIT, 40 * UNIT, 50 * UNIT]

    query = queries.start(frame, batches, tmp_path / "checkpoint", processingTime="0 seconds")
    wait_for(lambda: len(batches.rows) == 80, "the rest", query)
    wait_for(lambda: len(query.recentProgress) > 1, "its reports", query)
    first, second = query.recentProgress[:2]
    assert [report["numInputRows"] for report in (first, second)] == [20, 10]
    ends = [positions(report["sources"][0]["endOffset"]) // UNIT for report in (first, second)]
    heads = [positions(report["sources"][0]["latestOffset"]) // UNIT for report in (first, second)]
    assert (ends, heads) == ([70, 80], [80, 80])
    query.stop()

    fill(tubemq, "t", 45)
    run_to_the_end(queries.start(frame, batches, tmp_path / "checkpoint", once=True))
    assert len(batches.brought[-1][1]) == 45
    assert [bytes(row.value) for row in batches.rows] == stored(tubemq, "t")
    # Spark does not tell the source that this batch is committed.
    assert tubemq.group_offset(GROUP, "t", 1, 0) == 80 * UNIT
    run_to_the_end(queries.start(frame, batches, tmp_path / "checkpoint", availableNow=True))
    assert tubemq.group_offset(GROUP, "t", 1, 0) == 125 * UNIT


@pytest.mark.option("headsIntervalMs")
@pytest.mark.parametrize("topics", ["t", "tu"], ids=["one source", "two sources"])
def test_process_all_available_returns_after_all_that_was_stored_before(
    spark: SparkSession, queries: Queries, start: Start, tmp_path: Path, topics: str
) -> None:
    """Also if the brokers answered just now and must not be asked for a while."""
    tubemq = start({"t": 1, "u": 1})
    batches = Batches()
    frames = [stream(spark, tubemq, topic, tubemq_group=f"of_{topic}", headsIntervalMs=2000) for topic in topics]
    query = queries.start(reduce(DataFrame.union, frames), batches, tmp_path / "checkpoint")
    query.processAllAvailable()
    for count in (1, 2, 3):
        for topic in topics:
            fill(tubemq, topic, 1)
        query.processAllAvailable()
        assert len(batches.rows) == count * len(topics)


@pytest.mark.option("maxPartitionsPerTask")
@pytest.mark.parametrize(("given", "tasks"), [(None, 6), (3, 2)])
def test_spark_runs_as_many_tasks_as_planned(spark: SparkSession, start: Start, given: int | None, tasks: int) -> None:
    tubemq = start({"t": 3}, brokers=2)
    fill(tubemq, "t", 60)
    frame = spark.read.format("tubemq").options(**options(tubemq, "t", maxPartitionsPerTask=given)).load()
    counts = frame.groupBy(spark_partition_id().alias("task")).count().collect()
    assert len(counts) == tasks
    assert sum(row["count"] for row in counts) == 60


@pytest.mark.option("pushFilters")
def test_pushed_filters_reduce_what_brokers_return(spark: SparkSession, start: Start, served: list[int]) -> None:
    """The rows are the same as without the option, but the brokers return fewer messages."""
    tubemq = start({"a": 1, "b": 2}, brokers=2)
    fill(tubemq, "a", 400)
    for msg_type in ("x", "y"):
        fill(tubemq, "b", 20, msg_type=msg_type)
    conditions: dict[str, tuple[Column, int]] = {
        "topic": (col("topic") == "b", 40),
        "broker_id": ((col("broker_id") == 2) & (col("topic") == "a"), 200),
        "partition": (col("partition") > 0, 20),
        "msg_type": ((col("msg_type") == "x") & (col("topic") == "b"), 20),
        "offset": ((col("topic") == "a") & (col("offset") >= 190 * UNIT), 20),
        "value": (col("value") == lit(b"a 7"), 440),
    }

    def read(push: bool, schema: StructType = SPARK_SCHEMA, **given: object) -> DataFrame:
        raw = options(tubemq, "a", "b", pushFilters=str(push).lower(), **given)
        return spark.read.format("tubemq").options(**raw).schema(schema).load()

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for name, (condition, most) in conditions.items():
            served.clear()
            pushed = read(True).where(condition).collect()
            cost = sum(served)
            assert cost == most, name
            served.clear()
            assert sorted(pushed) == sorted(read(False).where(condition).collect()), name
            assert sum(served) == 440, name
            assert pushed, name
        few = StructType([SPARK_SCHEMA[name] for name in ("partition", "value", "topic")])
        served.clear()
        rows = read(True, few, filters="x").where("topic = 'b' AND partition = 1").collect()
        assert (len(rows), sum(served)) == (10, 10)  # by a type that is not a column
        assert rows[0].asDict().keys() == {"partition", "value", "topic"}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
