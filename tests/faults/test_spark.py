# SPDX-License-Identifier: Apache-2.0
"""Faults under Spark: its queries and jobs continue, or fail with the connector's error."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.faults.engine import (
    GROUP,
    SMALL_FETCHES,
    TOPICS,
    Row,
    Rows,
    bodies,
    counts,
    fill,
    stored,
)
from tests.faults.test_servers import crash, flush_and_crash, restart_master, stop, switch_master
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ

ROWS = bodies(2000)


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """Two masters and one broker."""
    with EmbeddedTubeMQ(topics=TOPICS, masters=2, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def options(tubemq: EmbeddedTubeMQ) -> dict[str, str]:
    # Spark's processes are not told what gets no answer: the others must come in time on a slow machine too.
    return {"tubemq.master": tubemq.master, "tubemq.rpc.framing": "standard", "tubemq.rpc.timeoutMs": "4000"}


def reading(spark: SparkSession, tubemq: EmbeddedTubeMQ) -> DataFrame:
    reader = spark.readStream.format("tubemq").options(**options(tubemq))
    return reader.options(**{"tubemq.group": GROUP, "subscribe": "one,pair", "startingOffsets": "earliest"}).load()


class Collected:
    """A sink that keeps what it was given."""

    def __init__(self) -> None:
        self.rows: Rows = defaultdict(list)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        for row in frame.collect():
            partition = Partition(row["broker_id"], row["topic"], row["partition"])
            self.rows[partition].append(Row(row["offset"], row["message_id"], bytes(row["value"])))

    @property
    def count(self) -> int:
        return sum(map(len, self.rows.values()))


def start(frame: DataFrame, sink: Collected, checkpoint: Path, **trigger: bool) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def run(frame: DataFrame, sink: Collected, checkpoint: Path) -> None:
    """Reads all there is; raises what the query fails with."""
    query = start(frame, sink, checkpoint, availableNow=True)
    try:
        assert query.awaitTermination(120), query.status
    finally:
        query.stop()


def wait_for_rows(query: StreamingQuery, sink: Collected, count: int) -> None:
    wait_until(lambda: sink.count >= count or not query.isActive, f"{count} rows", patience=90.0)
    assert query.isActive, query.exception()


@pytest.mark.thorough  # the other tests of this folder prove each fault without Spark
def test_a_query_under_many_faults(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    fill(tubemq, 900)
    faults = [
        tubemq.on("consumer_register_v2", times=1).close_mid_frame(),
        tubemq.on("get_partition_meta", times=1).run(tubemq.switch_master),
        tubemq.on("partition_register", client="_driver_", nth=2, times=1).drop_reply(),
        tubemq.on("commit_offset", client="_p1_", times=1).close_mid_frame(),
        tubemq.on("partition_register", client="_p0_", times=1).fail(503),
        tubemq.on("get_message", client="_p0_", nth=5, times=1).run(lambda: crash(tubemq)),
        tubemq.on("get_message", client="_p1_", nth=3, times=1).drop_reply(),
        tubemq.on("get_message", client="_p2_", nth=2, times=1).close_mid_frame(),
    ]
    sink = Collected()
    run(reading(spark, tubemq), sink, tmp_path)
    assert [fault.fired for fault in faults] == [1] * len(faults)
    assert sink.rows == stored(tubemq)


def test_a_query_continues_while_servers_restart(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    sink = Collected()
    query = start(reading(spark, tubemq), sink, tmp_path)
    try:
        for number, event in enumerate([flush_and_crash, switch_master, stop, restart_master], 1):
            fill(tubemq, 120)
            wait_for_rows(query, sink, 120 * number)
            event(tubemq)
        assert sink.rows == stored(tubemq)
    finally:
        query.stop()


def test_a_query_reports_a_refusal_and_reads_when_it_is_allowed(
    spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path
) -> None:
    fill(tubemq, 90)
    sink = Collected()
    with (
        tubemq.on("consumer_register_v2").fail(450, "not authorized") as fault,
        pytest.raises(
            StreamingQueryException,
            match=r"AuthError: registering group .* failed with 450 .*authorise the group",
        ),
    ):
        run(reading(spark, tubemq), sink, tmp_path)
    assert fault.fired
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).fail(400, "bad luck") as fault,
        pytest.raises(
            StreamingQueryException, match=r"ServerError: reading 1:\w+:\d at broker 1 .* 400 BAD_REQUEST: bad luck"
        ),
    ):
        run(reading(spark, tubemq), sink, tmp_path)
    assert fault.fired
    assert not sink.rows
    run(reading(spark, tubemq), sink, tmp_path)
    assert sink.rows == stored(tubemq)


def write(spark: SparkSession, tubemq: EmbeddedTubeMQ, **others: str) -> None:
    frame = spark.createDataFrame([(row,) for row in ROWS], "value binary").coalesce(1)
    frame.write.format("tubemq").options(topic="pair", **options(tubemq), **others).mode("append").save()


@pytest.mark.thorough  # as above
def test_a_job_under_many_faults(spark: SparkSession, tubemq: EmbeddedTubeMQ) -> None:
    """The rows whose answers were lost stand twice, and no others."""
    lost = tubemq.on("send_message", nth=20, times=3).drop_reply()
    faults = [
        tubemq.on("producer_register", times=1).close_mid_frame(),  # a silent master is soon given up at first
        tubemq.on("producer_heartbeat", times=1).fail(411),
        tubemq.on("send_message", nth=200, times=5).fail(503),
        tubemq.on("send_message", nth=400, times=5).fail(419),
        tubemq.on("send_message", nth=600, times=1).drop_request(),
    ]
    write(spark, tubemq)
    assert [fault.fired for fault in (lost, *faults)] == [3, 1, 1, 5, 5, 1]
    found = counts(tubemq)
    assert set(found) == set(ROWS)
    assert found.total() == len(ROWS) + lost.fired


def test_a_job_that_fails_names_the_row(spark: SparkSession, tubemq: EmbeddedTubeMQ) -> None:
    with (
        tubemq.on("send_message", nth=50, times=1).fail(400, "bad luck") as fault,
        pytest.raises(
            PySparkException, match=r"ServerError: sending row 49 of task partition 0 to broker 1 .*: bad luck"
        ),
    ):
        write(spark, tubemq, **{"tubemq.producer.maxInFlight": "1"})  # so that nothing comes later
    assert fault.fired == 1
    assert counts(tubemq) == Counter(ROWS[:49])
    write(spark, tubemq)
    assert counts(tubemq) == Counter(ROWS + ROWS[:49])
