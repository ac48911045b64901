# SPDX-License-Identifier: Apache-2.0
"""Tests of the monitor on running queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from tests.clusters.embedded import EmbeddedCluster
from tests.clusters.servers import EMBEDDED
from tests.matrix.queries import wait_for
from tests.messages import numbered, partitions, send
from tests.spark.queries import Batches, Queries, Source, wait_for_rows
from tests.spark.rivals import foreign_claim
from tubemq_spark import register
from tubemq_spark.monitoring import JsonLines, PrometheusMetrics, Publisher, TubeMQListener
from tubemq_spark.task_counts import task_counts

pytestmark = pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)

Listen = Callable[..., None]


@pytest.fixture
def listen(spark: SparkSession) -> Iterator[Listen]:
    """Let publishers hear of all queries of the session."""
    with ExitStack() as stack:

        def add(*publishers: Publisher) -> None:
            listener = TubeMQListener(*publishers)
            spark.streams.addListener(listener)
            stack.callback(spark.streams.removeListener, listener)

        yield add


def test_metrics_of_a_running_query(source: Source, queries: Queries, listen: Listen, tmp_path: Path) -> None:
    """The lag falls from batch to batch. A wait for another consumer's claim is counted."""
    registry, file = CollectorRegistry(), tmp_path / "lines.jsonl"
    listen(PrometheusMetrics(registry), JsonLines(file))
    cluster, topic = source.cluster, source.cluster.new_topic("one")
    partition = partitions(cluster, topic)[0]
    only = {topic: [f"{partition.broker_id}:{partition.partition_id}"]}
    send(cluster, numbered([partition], 30))
    frame = source.stream(
        subscribe=None, assign=only, startingOffsets="earliest", maxOffsetsPerTrigger=20, tubemq_claim_timeoutMs=60_000
    )
    batches = Batches()

    def lines(event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in found if line["event"] == event]

    assert isinstance(cluster, EmbeddedCluster)
    with (
        foreign_claim(cluster, source.group, partition),
        cluster.tubemq.on("partition_register", broker=partition.broker_id, client="_driver_").count() as refused,
    ):
        writer = frame.writeStream.foreachBatch(batches).queryName(topic)
        query = queries.add(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
        wait_for(lambda: refused.fired > 1, "a claim that is refused", query)
    wait_for_rows(query, batches, 30)
    wait_for(lambda: len(lines("batch")) >= 2, "two reports", query)
    query.stop()
    wait_for(lambda: lines("ended"), "the last report")

    reports = lines("batch")
    assert [one["sources"][0]["rows"] for one in reports] == [20, 10]
    assert [one["sources"][0]["partitions"][0]["lag"] for one in reports] == [10, 0]
    assert reports[-1]["sources"][0]["counters"]["claimWaits"] == 1
    labels = {"query": topic, "source": "0"}
    assert registry.get_sample_value("tubemq_spark_rows_total", labels) == 30
    assert registry.get_sample_value("tubemq_spark_driver_claim_waits_total", labels) == 1
    assert registry.get_sample_value("tubemq_spark_query_active", {"query": topic}) == 0
    assert lines("ended")[0]["error"] is None


def test_tasks_report_what_they_count(
    spark: SparkSession, source: Source, queries: Queries, listen: Listen, tmp_path: Path
) -> None:
    """A message that no pack is is skipped: only its task knows."""
    registry, file = CollectorRegistry(), tmp_path / "lines.jsonl"
    listen(PrometheusMetrics(registry), JsonLines(file))
    register(spark)
    topic = source.cluster.new_topic("one")
    sent = numbered(partitions(source.cluster, topic), 3)
    send(source.cluster, sent)
    frame = source.stream(topic, startingOffsets="earliest", messageFormat="inlongmsg", corruptMessages="skip")
    writer = frame.writeStream.format("noop").queryName(topic).trigger(availableNow=True)
    query = queries.add(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    query.awaitTermination()
    labels = {"query": topic}
    wait_for(lambda: registry.get_sample_value("tubemq_spark_query_active", labels) == 0, "the last report")
    assert registry.get_sample_value("tubemq_spark_task_corrupt_total", labels) == 3
    assert registry.get_sample_value("tubemq_spark_task_losses_total", labels) == 0
    (line,) = [line for line in map(json.loads, file.read_text().splitlines()) if line["event"] == "batch"]
    assert line["taskCounts"] == task_counts(query.id)
    assert line["taskCounts"]["fetchedBytes"] >= sum(len(body) for _, body in sent)


def test_a_failed_task_is_reported_with_the_error_of_the_connector(
    source: Source, queries: Queries, listen: Listen, tmp_path: Path
) -> None:
    """`str(query.exception())` may lack it, because Spark says only that a job failed."""
    file = tmp_path / "lines.jsonl"
    listen(JsonLines(file))
    topic = source.cluster.new_topic("one")
    send(source.cluster, numbered(partitions(source.cluster, topic), 1))
    frame = source.stream(topic, startingOffsets="earliest").selectExpr("nullif(value, value) AS value")
    options = source.options(topic, topic=topic) | {"checkpointLocation": str(tmp_path / "checkpoint")}
    queries.add(frame.writeStream.format("tubemq").options(**options).start())
    wait_for(lambda: '"ended"' in (file.read_text() if file.exists() else ""), "the last report")
    end = json.loads(file.read_text().splitlines()[-1])
    assert end["error"] == "RowError"
    assert "column 'value': it is null" in end["text"]
