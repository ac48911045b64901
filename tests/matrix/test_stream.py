# SPDX-License-Identifier: Apache-2.0
"""Streaming queries from one topic to another: triggers, stops, restarts and limits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.matrix.pipeline import HAS_READ_LIMITS, Pipeline
from tubemq_spark.testing import EmbeddedTubeMQ

ENTRY = 28  # bytes of a message in the index, the unit of positions


@pytest.fixture(autouse=True)
def _topics(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("sole", partitions=1)
    pipe.tubemq.create_topic("shared", partitions=3)
    pipe.tubemq.create_topic("out")


def texts(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


@pytest.mark.quick
def test_repeated_runs_with_available_now(pipe: Pipeline) -> None:
    sent = pipe.send("sole", *texts(0, 40)) + pipe.send("shared", *texts(100, 130))
    pipe.run_to_the_end(pipe.stream("sole,shared"), "out")
    assert pipe.bodies("out") == sent

    pipe.run_to_the_end(pipe.stream("sole,shared"), "out")
    assert pipe.bodies("out") == sent

    sent += pipe.send("sole", *texts(40, 60)) + pipe.send("shared", *texts(130, 150))
    pipe.run_to_the_end(pipe.stream("sole,shared"), "out")
    assert pipe.bodies("out") == sent
    last = pipe.numbers("commits")[-1]
    assert pipe.end(last) == {"shared": everywhere(50), "sole": {"1:0": 60 * ENTRY}}
    # Before 4.2 Spark passes the end of such a run to the next one.
    assert group(pipe) == everywhere(50 if HAS_READ_LIMITS else 30)


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}], ids=["default", "processingTime"])
def test_a_stopped_query_continues(pipe: Pipeline, trigger: dict[str, str]) -> None:
    """Each message arrives once, and the group follows the committed micro-batches."""
    sent: Counter[bytes] = Counter()
    for run in (100, 200, 300):
        query = pipe.copy(pipe.stream("shared"), "out", **trigger)
        for end in (run - 50, run):
            sent += pipe.send("shared", *texts(end - 50, end))
            pipe.wait_for_copies("out", sent)
        # The group is at the end of the last committed micro-batch, and not beyond.
        pipe.wait_for(lambda: group(pipe) == everywhere(run), f"the group at message {run}")  # noqa: B023
        query.stop()
        assert query.exception() is None
        assert group(pipe) == everywhere(run)


def group(pipe: Pipeline) -> dict[str, int | None]:
    """Return the group's positions in the topic `shared`."""
    return {f"1:{number}": pipe.tubemq.group_offset("matrix", "shared", 1, number) for number in range(3)}


def everywhere(count: int) -> dict[str, int]:
    """Return the positions of all partitions of `shared` after that many messages; they share a store."""
    return dict.fromkeys(("1:0", "1:1", "1:2"), count * ENTRY)


@pytest.mark.parametrize("batch_id", [0, pytest.param(1, marks=pytest.mark.quick)])
def test_a_batch_that_was_logged_but_not_committed_is_read_again(pipe: Pipeline, batch_id: int) -> None:
    """The same rows, although more messages have arrived."""
    once: Counter[bytes] = Counter()
    sent: Counter[bytes] = Counter()
    for run in range(batch_id + 1):
        once = pipe.send("shared", *texts(50 * run, 50 * run + 40)) + pipe.send("sole", *texts(900 + run, 901 + run))
        sent += once
        pipe.run_to_the_end(pipe.stream("sole,shared"), "out")
    assert pipe.forget_commit() == batch_id
    logged = pipe.end(batch_id)
    later = pipe.send("shared", *texts(2000, 2030))

    query = pipe.copy(pipe.stream("sole,shared"), "out")
    pipe.wait_for(lambda: pipe.bodies("out") == sent + once + later, "the batch once more, and what came later")
    query.stop()
    assert pipe.end(batch_id) == logged
    # The first batch of the new run was exactly the repeated one.
    assert pipe.end(batch_id + 1)["shared"] == {key: at + 30 * ENTRY for key, at in logged["shared"].items()}


@pytest.mark.quick
def test_a_query_continues_with_other_columns(pipe: Pipeline) -> None:
    """The checkpoint does not depend on them."""
    sent: Counter[bytes] = Counter()
    for run, schema in enumerate((None, "value BINARY", "topic STRING, value BINARY, msg_type STRING")):
        sent += pipe.send("sole", *texts(10 * run, 10 * run + 10))
        pipe.run_to_the_end(pipe.stream("sole", schema=schema), "out")
        assert pipe.bodies("out") == sent
    with pytest.raises(PySparkException, match=r"ConfigError: the schema asks for value string; expected any of"):
        pipe.run_to_the_end(pipe.stream("sole", schema="value STRING"), "out")


@pytest.mark.quick
def test_the_largest_limit_is_a_limit(pipe: Pipeline) -> None:
    """Other sources' users write it for "no limit"."""
    sent = pipe.send("sole", *texts(0, 10))
    largest: Any = dict.fromkeys(("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"), 2**63 - 1)
    pipe.run_to_the_end(pipe.stream("sole", maxTriggerDelay="1s", **largest), "out")
    assert pipe.bodies("out") == sent


@pytest.mark.quick
def test_a_query_waits_for_the_end_of_a_killed_consumer(pipe: Pipeline) -> None:
    """The master takes a killed consumer with the servers' balance for a member of the group for a while."""
    sent = pipe.send("sole", *texts(0, 10))
    pipe.tubemq.on("consumer_register_v2", times=4).fail(424)
    pipe.run_to_the_end(pipe.stream("sole"), "out")
    assert pipe.bodies("out") == sent


@pytest.mark.quick
def test_a_query_does_without_a_deleted_topic(spark: SparkSession, tmp_path: Path) -> None:
    """Also after a failover of the master, which refuses a registration that names the topic, and in the next run."""
    with EmbeddedTubeMQ(topics={"stays": 1, "goes": 1, "out": 1}, masters=2) as tubemq:
        pipe = Pipeline(spark, tubemq, tmp_path)
        options: Any = {"failOnDataLoss": "false", "metadataIntervalMs": 100, "tubemq.retry.maxElapsedMs": 3000}
        sent = pipe.send("stays", *texts(0, 10)) + pipe.send("goes", *texts(10, 20))
        query = pipe.copy(pipe.stream("stays,goes", **options), "out")
        pipe.wait_for_copies("out", sent)
        tubemq.delete_topic("goes")
        sent += pipe.send("stays", *texts(20, 30))
        pipe.wait_for_copies("out", sent)
        tubemq.switch_master()
        sent += pipe.send("stays", *texts(30, 40))
        pipe.wait_for_copies("out", sent)
        query.stop()

        pipe.copy(pipe.stream("stays,goes", **options), "out")
        tubemq.create_topic("goes", partitions=1)
        sent += pipe.send("goes", *texts(40, 50))
        pipe.wait_for_copies("out", sent)
        pipe.stop()


@pytest.mark.quick
@pytest.mark.skipif(HAS_READ_LIMITS, reason="this Spark has read limits")
def test_limits_are_ignored(pipe: Pipeline) -> None:
    sent = pipe.send("sole", *texts(0, 60))
    pipe.run_to_the_end(pipe.stream("sole", maxOffsetsPerTrigger=10, maxBytesPerTrigger=10), "out")
    assert pipe.bodies("out") == sent
    assert len(pipe.numbers("commits")) == 1


@pytest.mark.quick
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark has no read limits")
def test_limits_apply(pipe: Pipeline) -> None:
    """In each micro-batch, without losing a row."""
    sent = pipe.send("sole", *texts(0, 60)) + pipe.send("shared", *texts(100, 140))
    pipe.run_to_the_end(pipe.stream("sole,shared", maxOffsetsPerTrigger=30), "out")
    assert pipe.bodies("out") == sent
    ends = [pipe.end(number) for number in pipe.numbers("commits")]
    # The three partitions share one store and so one range.
    places = [(0, 0), *((end["sole"]["1:0"] // ENTRY, end["shared"]["1:0"] // ENTRY) for end in ends)]
    read = [sum(end) - sum(begin) for begin, end in pairwise(places)]
    assert sum(read) == 100
    assert max(read) <= 30
    assert len([count for count in read if count]) == 4


@pytest.mark.quick
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark has no read limits")
def test_a_limit_in_bytes_applies(pipe: Pipeline) -> None:
    sent = pipe.send("sole", *(b"%d" % number * 1000 for number in range(10, 40)))
    pipe.run_to_the_end(pipe.stream("sole", maxBytesPerTrigger=20_000), "out")
    assert pipe.bodies("out") == sent
    assert len(pipe.numbers("commits")) == 3


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark has no read limits")
def test_a_limit_can_be_removed_from_a_checkpoint(pipe: Pipeline) -> None:
    """A query that stopped half-way with a limit continues without one, in one micro-batch."""
    sent = pipe.send("sole", *texts(0, 200))
    query = pipe.copy(pipe.stream("sole", maxOffsetsPerTrigger=10), "out", processingTime="1 hour")
    pipe.wait_for(lambda: pipe.numbers("commits"), "the first micro-batch")
    query.stop()
    assert pipe.bodies("out") != sent
    batches = len(pipe.numbers("offsets"))
    pipe.run_to_the_end(pipe.stream("sole"), "out")
    assert pipe.bodies("out").keys() == sent.keys()
    assert len(pipe.numbers("offsets")) <= batches + 1


def test_errors_of_the_driver_and_of_tasks(pipe: Pipeline) -> None:
    with pytest.raises(StreamingQueryException, match=r"UnknownTopicError: .*nowhere"):
        pipe.run_to_the_end(pipe.stream("nowhere", tubemq_retry_maxElapsedMs=100), "out")

    pipe.send("sole", b"a")
    frame = pipe.stream("sole").selectExpr("CAST(NULL AS BINARY) AS value")
    with pytest.raises(StreamingQueryException, match="column 'value': it is null"):
        pipe.run_to_the_end(frame, "out")
