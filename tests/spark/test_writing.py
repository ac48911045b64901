# SPDX-License-Identifier: Apache-2.0
"""The sink in Spark: stamps, receipts, retries and dead letters, read back by the source."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import MapType, StringType, StructType

from tests.clusters import Cluster
from tests.messages import partitions
from tests.reading import group_position
from tests.sink_options.test_documentation_examples import lines_of, run
from tests.spark.queries import Queries, Source, forget_commit, run_to_the_end, wait_for
from tests.spark.test_restart import ROOT
from tests.spark_jvm import quick_start
from tubemq_spark import restore
from tubemq_spark.datasource import TubeMQDataSource
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


def test_receipts_have_the_offset_that_the_source_reads(source: Source, tmp_path: Path) -> None:
    topic = source.cluster.new_topic("one")
    save(source.spark.range(0, 500, 1, 2).selectExpr("CAST(id AS STRING) AS value"), source.cluster, topic,
         receipts=str(tmp_path))  # fmt: skip
    told = pq.read_table(str(tmp_path)).to_pylist()
    assert Counter((*place(one), one["offset"]) for one in told) == Counter(
        (*place(row), row.offset) for row in source.batch(topic).collect()
    )


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


# Rows and Arrow


@pytest.fixture
def by_rows(spark: SparkSession) -> str:
    """The name of a sink that writes rows, as in Spark 4.0, which has no Arrow writer for streams."""

    class OlderSpark(TubeMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "tubemq_of_older_spark"

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            from tubemq_spark.sink.writers import TubeMQStreamRowWriter

            return TubeMQStreamRowWriter(plan_write(self.options, schema, overwrite))

    spark.dataSource.register(OlderSpark)
    return OlderSpark.name()


SHAPES = """
    SELECT * FROM VALUES
    ('plain', NULL, NULL, NULL, NULL, NULL, NULL),
    ('attributes', map('city', 'Zürich', 'e', '', '日', '語'), NULL, TIMESTAMP '2026-11-21 08:30:59', NULL, NULL, NULL),
    ('no attributes', CAST(map() AS map<string,string>), NULL, NULL, 'k', NULL, NULL),
    ('typed', NULL, 'news', TIMESTAMP '1969-12-31 23:59:59', 'k', NULL, NULL),
    ('binary key', NULL, NULL, TIMESTAMP '2026-01-01 00:00:00', '語', NULL, NULL),
    ('explicit', map('a', '1'), 'news', TIMESTAMP '2026-11-21 08:30:00', NULL, {broker}, {partition}),
    ('explicit with key', NULL, 'x', TIMESTAMP '2026-11-21 08:30:00', 'k', {broker}, {partition})
    AS rows (value, attributes, msg_type, msg_time, key, broker_id, partition)
"""


@pytest.mark.parametrize("once", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["plain", "once"])
def test_rows_and_arrow_give_the_same_messages(
    source: Source, queries: Queries, by_rows: str, tmp_path: Path, once: bool
) -> None:
    """All columns are compared, and the targets of messages with a key or an explicit target."""
    cluster = source.cluster
    topic = cluster.new_topic("three")
    target = partitions(cluster, topic)[-1]
    shapes = SHAPES.format(broker=target.broker_id, partition=target.partition_id)
    table = source.spark.sql(shapes).selectExpr(
        "CAST(value AS BINARY) AS value", "* EXCEPT (value, key)", "CAST(key AS BINARY) AS key"
    )
    folder = str(tmp_path / "in")
    table.coalesce(1).write.parquet(folder)
    found: dict[str, list[tuple[Any, ...]]] = {}
    for sink in ("tubemq", by_rows):
        checkpoint = str(tmp_path / sink)
        given = options(cluster, topic, stampRows="true", checkpointLocation=checkpoint)
        if once:
            given["effectivelyOnce"] = "true"
        before = {place(row) for row in source.batch(topic).collect()}
        frame = source.spark.readStream.schema(table.schema).parquet(folder)
        run_to_the_end(queries.add(frame.writeStream.format(sink).options(**given).trigger(availableNow=True).start()))
        rows = [row for row in source.batch(topic).collect() if place(row) not in before]
        times = {"attributes", "typed", "binary key", "explicit", "explicit with key"}
        found[sink] = sorted(
            (
                bytes(row.value),
                sorted((name, text) for name, text in row.attributes.items() if name != "spark_id"),
                row.msg_type,
                row.msg_time if bytes(row.value).decode() in times else None,
                (row.broker_id, row.partition) if "k" in bytes(row.value).decode().split()[-1] else None,
            )
            for row in rows
        )
        of_target = {bytes(row.value) for row in rows if (row.broker_id, row.partition) == target[::2]}
        assert {b"explicit", b"explicit with key"} <= of_target
        with_key = [row for row in rows if bytes(row.value) in (b"no attributes", b"typed")]
        assert len({(row.broker_id, row.partition) for row in with_key}) == 1
    assert len(found["tubemq"]) == 7
    assert found["tubemq"] == found[by_rows]


# Copies


def write_with_retries(cluster: Cluster, topic: str, folder: Path, **others: str) -> None:
    """Write rows; the first attempt of each task fails after the brokers have stored some rows."""
    gate, said = folder / "gate", folder / "said.txt"
    given = {
        "gate": str(gate),
        "sink": options(cluster, topic, **others),
        "tasks": TASKS,
        "rows": ROWS,
        "java": quick_start(),
    }
    command = [sys.executable, "-m", "tests.spark.retried_write", json.dumps(given)]
    observers = f"o_{uuid.uuid4().hex[:12]}"

    def is_begun() -> bool:
        return any(group_position(cluster, observers, partition).end > 0 for partition in partitions(cluster, topic))

    with open(said, "w") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as process:
        try:
            wait_for(lambda: process.poll() is not None or is_begun(), "the first rows at the brokers")
            gate.touch()
            assert process.wait(300) == 0, said.read_text()[-3000:]
        finally:
            process.kill()


def of_the_write() -> Iterator[str]:
    return (f"{task} {number}" for task in range(TASKS) for number in range(ROWS))


def name_of(row: Row) -> str:
    return " ".join(bytes(row.value).decode().split(" ")[:2])


@pytest.mark.thorough  # in `make test`: the example of the documentation, in tests/sink_options
@pytest.mark.parametrize("cluster", ["embedded", pytest.param("real", marks=pytest.mark.real)], indirect=True)
def test_reader_drops_copies_of_stamped_rows(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Copies of a retried task and of a repeated batch are dropped. The rows of a key keep their order."""
    cluster = source.cluster
    topic = cluster.new_topic("three")
    write_with_retries(cluster, topic, tmp_path, stampRows="true")
    read = source.batch(topic).collect()
    found = Counter(map(name_of, read))
    assert found.keys() == set(of_the_write())
    assert found.total() > TASKS * ROWS, "no task was tried again"

    in_order: dict[str, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    first: set[str] = set()
    for row in read:
        if name_of(row) not in first:
            task, number = map(int, name_of(row).split())
            in_order[f"{task} {number % 3}"].append(((row.broker_id, row.partition), number))
            first.add(name_of(row))
    for key, messages in in_order.items():
        assert len({where for where, _ in messages}) == 1, key
        assert [number for _, number in messages] == sorted(number for _, number in messages)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n".join(f"repeated {line}" for line in range(100)))
    for turn in range(2):
        query = (
            source.spark.readStream.text(str(tmp_path / "in"))
            .writeStream.format("tubemq")
            .options(**options(cluster, topic, stampRows="true", checkpointLocation=str(tmp_path / "checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        run_to_the_end(queries.add(query))
        if turn == 0:
            forget_commit(tmp_path / "checkpoint", 0)

    rows = source.batch(topic)
    assert rows.count() == found.total() + 200
    left = without_copies(source, topic)
    assert Counter(map(name_of, left)) == Counter([*of_the_write(), *(f"repeated {n}" for n in range(100))])


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
