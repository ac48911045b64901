# SPDX-License-Identifier: Apache-2.0
"""The sink in Spark: stamps, receipts, retries and dead letters, read back by the source."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import MapType, StringType, StructType

from tests.clusters import Cluster
from tests.sink_options.test_documentation_examples import lines_of, run
from tests.spark.queries import Queries, Source, run_to_the_end
from tubemq_spark import restore
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import plan_write

STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")
ROWS, TASKS = 1500, 2  # rows of each task of the retried write, and tasks


def options(cluster: Cluster, topic: str | None = None, **others: str) -> dict[str, str]:
    given = {"tubemq.master": cluster.master, "tubemq.rpc.framing": cluster.framing, **others}
    return given if topic is None else {"topic": topic, **given}


def save(rows: DataFrame, cluster: Cluster, topic: str | None = None, **others: str) -> None:
    rows.write.format("tubemq").options(**options(cluster, topic, **others)).mode("append").save()


def stamp(row: Row) -> tuple[str, ...]:
    return tuple(row.attributes[name] for name in STAMP)


def place(row: Any) -> tuple[Any, ...]:
    return row["topic"], row["broker_id"], row["partition"], row["message_id"]


# Stamps and receipts


def test_a_batch_write_with_stamps_and_receipts(source: Source, tmp_path: Path) -> None:
    """Stamps and receipts agree, and a task's rows are numbered in their order."""
    topic = source.cluster.new_topic("three")
    rows = source.spark.range(0, 3000, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    save(rows, source.cluster, topic, stampRows="true", receipts=str(tmp_path))

    found = {stamp(row): row for row in source.batch(topic).collect()}
    (name,) = {key[0] for key in found}
    assert {key[1:]: bytes(row.value) for key, row in found.items()} == {
        ("0", str(task), str(number)): b"%d" % (1000 * task + number) for task in range(3) for number in range(1000)
    }
    told = pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
    assert [(one["spark_partition"], one["spark_row"]) for one in told] == [
        (t, n) for t in range(3) for n in range(1000)
    ]
    for one in told:
        assert one["spark_batch"] is None
        assert place(one) == place(found[name, "0", str(one["spark_partition"]), str(one["spark_row"])])
        assert one["offset"] is not None
        assert one["append_time"] is not None


def test_each_write_in_foreach_batch_has_its_own_id(source: Source, queries: Queries, tmp_path: Path) -> None:
    """The query's id is not used, because one micro-batch may write more than once."""
    cluster = source.cluster
    topic = cluster.new_topic("one")
    (tmp_path / "in").mkdir()
    for file in range(2):
        (tmp_path / "in" / f"{file}.txt").write_text("a\nb\nc")

    def twice(frame: DataFrame, batch: int) -> None:
        for turn in range(2):
            save(frame.selectExpr(f"concat('{batch} {turn} ', value) AS value"), cluster, topic, stampRows="true")

    frame = source.spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = queries.start(frame, twice, tmp_path / "checkpoint", availableNow=True)
    run_to_the_end(query)

    of_a_write = defaultdict(list)
    for row in source.batch(topic).collect():
        of_a_write[row.attributes["spark_id"]].append((bytes(row.value).decode(), *stamp(row)[1:]))
    assert str(query.id) not in of_a_write
    assert sorted(map(sorted, of_a_write.values())) == [
        [(f"{batch} {turn} {letter}", "0", "0", str(row)) for row, letter in enumerate("abc")]
        for batch in range(2)
        for turn in range(2)
    ]


# Copies


def test_rows_in_another_order_are_not_copies(source: Source) -> None:
    """Rows may be equal but for their stamps, or have equal values: none is lost."""
    topic = source.cluster.new_topic("three")
    texts = MapType(StringType(), StringType())
    columns = StructType().add("value", StringType()).add("attributes", texts).add("msg_type", StringType())
    shapes = [
        ("a", None, None),
        ("a", None, "news"),
        ("a", {"n": "1"}, "news"),
        ("a", {"n": "2"}, "news"),
        ("b", None, None),
    ]
    made = plan_write(options(source.cluster, topic, stampRows="true"), columns, False, "one-write")
    arrow = pa.schema(
        [("value", pa.string()), ("attributes", pa.map_(pa.string(), pa.string())), ("msg_type", pa.string())]
    )
    for order in (shapes[:4], shapes[::-1]):
        rows = [dict(zip(arrow.names, shape, strict=True)) for shape in order]
        write_batches(made, [pa.RecordBatch.from_pylist(rows, arrow)])

    left = without_copies(source, topic)
    names = {(bytes(row.value).decode(), (row.attributes or {}).get("n"), row.msg_type) for row in left}
    assert names == {(value, (attributes or {}).get("n"), msg_type) for value, attributes, msg_type in shapes}


def without_copies(source: Source, topic: str) -> list[Row]:
    """Return the rows without copies, by the documented query."""
    lines = lines_of("sink.md", "dropDuplicates")
    left: DataFrame = run(lines, spark=source.spark, options=source.options(topic))
    return left.collect()


# Dead letters


def test_dead_letters_are_restored(source: Source) -> None:
    """These are the three lines of docs/dead-letters.md."""
    cluster, spark = source.cluster, source.spark
    topic, dead_letters = cluster.new_topic("three"), cluster.new_topic("one")
    rows = spark.range(0, 300, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value",
        "map('n', CAST(id AS STRING)) AS attributes",
        "IF(id % 3 = 0, ' news', 'news') AS msg_type",  # TubeMQ refuses a blank at the start
        "CAST(id % 7 AS STRING) AS key",
    )
    save(rows, cluster, topic, failedRows="deadLetter", deadLetterTopic=dead_letters)
    bad = {b"%d" % number for number in range(0, 300, 3)}
    assert {bytes(row.value) for row in source.batch(topic).collect()} == {b"%d" % n for n in range(300)} - bad
    tubemq = {**options(cluster), "tubemq.group": source.group}

    dead = spark.read.format("tubemq").options(**tubemq).option("subscribe", dead_letters).load()
    again = restore(dead).withColumn("msg_type", F.trim("msg_type"))
    again.write.format("tubemq").options(**tubemq).mode("append").save()

    found = source.batch(topic).collect()
    assert Counter(bytes(row.value) for row in found) == dict.fromkeys((b"%d" % n for n in range(300)), 1)
    assert all(row.attributes == {"n": bytes(row.value).decode()} for row in found)
    assert {row.msg_type for row in found} == {"news"}
    assert len({(int(row.value) % 7, row.broker_id, row.partition) for row in found}) == 7, "keys are keys again"
