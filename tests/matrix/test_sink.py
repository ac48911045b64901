# SPDX-License-Identifier: Apache-2.0
"""The sink's features beyond storing rows: stamps, receipts, effectively-once, dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from tests.matrix.pipeline import Pipeline
from tests.matrix.queries import run_to_the_end
from tubemq_spark import restore
from tubemq_spark.testing import StoredMessage

STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")


@pytest.fixture(autouse=True)
def _topics(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("in", partitions=2)
    pipe.tubemq.create_topic("out", partitions=2)


def once(pipe: Pipeline, receipts: Path, **trigger: bool) -> StreamingQuery:
    """Copy one topic into the other with `effectivelyOnce`; the key of a row is its partition."""
    frame = pipe.stream("in").selectExpr(
        "value", "CAST(partition AS STRING) AS key", "map('from', CAST(partition AS STRING)) AS attributes"
    )
    return pipe.start(frame, {"topic": "out", "effectivelyOnce": "true", "receipts": str(receipts)}, **trigger)


def stamps(messages: list[StoredMessage]) -> Counter[tuple[str, ...]]:
    return Counter(tuple((message.attributes or {})[name] for name in STAMP) for message in messages)


@pytest.mark.quick
def test_a_repeated_batch_is_stored_once(pipe: Pipeline, tmp_path: Path) -> None:
    """Later rows are stored too, and the receipts list each message."""
    sent: Counter[bytes] = Counter()
    for run in range(3):  # before 4.2 the second run only repeats the batch
        if run < 2:
            sent += pipe.send("in", *(b"%d" % number for number in range(40 * run, 40 * run + 40)))
        run_to_the_end(once(pipe, tmp_path / "receipts", availableNow=True))
        if run == 0:
            pipe.forget_commit()
    assert pipe.bodies("out") == sent

    stored = pipe.tubemq.messages("out")
    assert set(stamps(stored).values()) == {1}
    told = pq.read_table(str(tmp_path / "receipts")).to_pylist()
    assert Counter((one["partition"], one["message_id"]) for one in told) == Counter(
        (message.partition, message.message_id) for message in stored
    )
    assert Counter(tuple(str(one[name]) for name in STAMP) for one in told) == stamps(stored)


def test_a_query_stopped_half_way_continues(pipe: Pipeline, tmp_path: Path) -> None:
    """Each message is stored once, and those of a key in order, while new ones arrive."""
    sent: Counter[bytes] = Counter()
    for run in range(3):
        query = once(pipe, tmp_path / "receipts")
        batches = len(pipe.numbers("offsets"))
        for begin in range(400 * run, 400 * run + 400, 100):
            sent += pipe.send("in", *(b"%d" % number for number in range(begin, begin + 100)))
            if begin == 400 * run:
                pipe.wait_for(lambda: len(pipe.numbers("offsets")) > batches, "a micro-batch")  # noqa: B023
        query.stop()
    for _ in range(2):  # before 4.2 the first run may only repeat a batch
        run_to_the_end(once(pipe, tmp_path / "receipts", availableNow=True))
    assert pipe.bodies("out") == sent

    orders: Mapping[str, list[int]] = {"0": [], "1": []}
    places: Mapping[str, set[int]] = {"0": set(), "1": set()}
    for message in pipe.tubemq.messages("out"):
        key = (message.attributes or {})["from"]
        orders[key].append(int(message.body))
        places[key].add(message.partition)
    assert {len(found) for found in places.values()} == {1}
    assert all(order == sorted(order) for order in orders.values())


@pytest.mark.quick
def test_continuous_processing_commits_no_epoch(pipe: Pipeline) -> None:
    """Spark does not run the tasks of a sink in Python then."""
    rows = pipe.spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = pipe.start(rows, {"topic": "out"}, continuous="100 milliseconds")
    pipe.wait_for(lambda: len(pipe.numbers("offsets")) >= 3, "three epochs")
    query.stop()
    assert pipe.numbers("commits") == []
    assert not pipe.bodies("out")


@pytest.mark.quick
def test_a_stamped_batch_write(pipe: Pipeline, tmp_path: Path) -> None:
    rows = pipe.spark.range(0, 200, 1, 2).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 3 AS STRING) AS key")
    pipe.write(rows, "out", stampRows="true", receipts=str(tmp_path / "receipts"))

    stored = pipe.tubemq.messages("out")
    assert Counter((message.body, *stamp[1:]) for message in stored for stamp in stamps([message])) == Counter(
        (b"%d" % (100 * task + row), "0", str(task), str(row)) for task in range(2) for row in range(100)
    )
    (name,) = {stamp[0] for stamp in stamps(stored)}
    told = pq.read_table(tmp_path / "receipts" / f"{name}.parquet").to_pylist()
    assert Counter((one["partition"], one["message_id"]) for one in told) == Counter(
        (message.partition, message.message_id) for message in stored
    )


@pytest.mark.parametrize("more", [pytest.param("", marks=pytest.mark.quick), ", offset long"], ids=["", "offset"])
def test_targets_of_rows(pipe: Pipeline, more: str) -> None:
    """Null positions, as `INSERT INTO` a view gives them, do not make a row a copy."""
    rows = [(b"%d" % number, 1, number % 2, *([None] if more else [])) for number in range(20)]
    pipe.write(pipe.spark.createDataFrame(rows, f"value binary, broker_id int, partition int{more}"), "out")
    found = Counter((message.body, 1, message.partition) for message in pipe.tubemq.messages("out"))
    assert found == Counter(row[:3] for row in rows)


def test_a_token_in_attributes_is_refused(pipe: Pipeline) -> None:
    rows = pipe.spark.sql("SELECT 'x' AS value, map('note', 'see $msgTime$') AS attributes")
    with pytest.raises(PySparkException, match="msgTime"):
        pipe.write(rows, "out")
    assert pipe.tubemq.messages("out") == []


def test_dead_letters_are_restored(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("dead_letters")
    rows = pipe.spark.range(0, 60, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value",
        "map('n', CAST(id AS STRING)) AS attributes",
        "IF(id % 3 = 0, ' t', 't') AS msg_type",
    )
    pipe.write(rows, "out", failedRows="deadLetter", deadLetterTopic="dead_letters")
    assert pipe.bodies("out") == Counter(b"%d" % number for number in range(60) if number % 3)

    dead = pipe.batch("dead_letters")
    pipe.write(restore(dead).withColumn("msg_type", F.trim("msg_type")))
    assert pipe.bodies("out") == Counter(b"%d" % number for number in range(60))
    assert all(
        (message.attributes, message.msg_type) == ({"n": message.body.decode()}, "t")
        for message in pipe.tubemq.messages("out")
    )
