# SPDX-License-Identifier: Apache-2.0
"""What SQL statements, and writes through the names of tables, do: the table of docs/howto/sql.md, row by row."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED
from tests.stored import stored_in

pytestmark = pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)

NO_OPTIONS = r"option 'tubemq\.master' is required: .*FROM table WITH"


class Sql:
    """A topic with two messages, and names for statements: its table and views, and the options of both sides."""

    def __init__(self, spark: SparkSession, tubemq: Cluster) -> None:
        self.spark, self.cluster, self.topic = spark, tubemq, tubemq.new_topic("three")
        mark = uuid.uuid4().hex[:8]
        self.sink = {"tubemq.master": tubemq.master, "topic": self.topic}
        self.source = {"tubemq.master": tubemq.master, "tubemq.group": f"sql_{mark}", "subscribe": self.topic}
        names = ("table", "view", "fixed", "writing", "new")
        self.names = {name: f"{name}_{mark}" for name in names} | {
            "source": listed(self.source, "="), "sink": listed(self.sink, "="), "topic": self.topic,
            "as_source": listed(self.source, " "), "as_sink": listed(self.sink, " "),
        }  # fmt: skip
        self("INSERT INTO {writing} VALUES ('a'), ('b')", self.CREATE_WRITING)
        self("CREATE TABLE {table} (msg_type STRING, value BINARY) USING tubemq")
        self("CREATE TEMPORARY VIEW {view} AS SELECT * FROM {table} WITH ({source})")
        self(self.CREATE_FIXED)

    CREATE_WRITING = "CREATE TEMPORARY VIEW {writing} (value STRING) USING tubemq OPTIONS ({as_sink})"
    CREATE_FIXED = "CREATE OR REPLACE TEMPORARY VIEW {fixed} USING tubemq OPTIONS ({as_source}, topic '{topic}')"

    def __call__(self, statement: str, *before: str) -> list[object]:
        """Run the statements; return the first column of the last one."""
        for one in (*before, statement):
            rows = self.spark.sql(one.format_map(self.names)).collect()
        return [row[0] for row in rows]

    @property
    def stored(self) -> list[bytes]:
        return sorted(message.body for message in stored_in(self.cluster, self.topic))


def listed(options: Mapping[str, str], between: str) -> str:
    return ", ".join(f"`{name}`{between}'{text}'" for name, text in options.items())


@pytest.fixture
def sql(spark: SparkSession, cluster: Cluster) -> Iterator[Sql]:
    made = Sql(spark, cluster)
    yield made
    for name in ("table", "new"):
        made(f"DROP TABLE IF EXISTS {{{name}}}")


def test_which_views_show_new_messages(sql: Sql) -> None:
    """A view that gives options to a table is planned anew by each statement; one with `USING tubemq` only once."""
    count = "SELECT count(*) FROM {%s}"
    assert (sql(count % "view"), sql(count % "fixed")) == ([2], [2])
    sql("INSERT INTO {writing} VALUES ('c')")
    assert sql("SELECT count(*) FROM {table} WITH ({source})") == [3]
    assert (sql(count % "view"), sql(count % "fixed")) == ([3], [2])
    assert sql(count % "fixed", "REFRESH TABLE {fixed}") == [2]
    assert sql(count % "fixed", sql.CREATE_FIXED) == [3]
    frame = sql.spark.read.options(**sql.source).table(sql.names["table"])
    assert frame.count() == 3
    sql("INSERT INTO {writing} VALUES ('d')")
    assert (frame.count(), sql(count % "view")) == (3, [4])


def test_which_views_can_be_cached(sql: Sql) -> None:
    """A cache of a view that gives options to a table has no effect."""
    for view, shows_new in (("view", True), ("fixed", False)):
        sql(f"CACHE TABLE {{new}} AS SELECT * FROM {{{view}}}")
        before = len(sql.stored)
        sql("INSERT INTO {writing} VALUES ('c')")
        assert sql("SELECT count(*) FROM {new}") == [before + shows_new]
        sql("DROP VIEW {new}")


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {writing} SELECT 'x'",
        "INSERT INTO {table} WITH ({sink}) VALUES ('click', X'78')",
        "INSERT INTO {table} WITH ({sink}) (value) VALUES (X'78')",
        "INSERT INTO {fixed} (value) SELECT X'78'",
    ],
)
def test_statements_that_write(sql: Sql, statement: str) -> None:
    sql(statement)
    assert sql.stored == [b"a", b"b", b"x"]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT * FROM {table}", NO_OPTIONS),
        ("INSERT INTO {table} VALUES ('click', X'78')", NO_OPTIONS),
        ("CREATE TABLE {new} USING tubemq OPTIONS ({as_sink}) AS SELECT 'x' AS value", NO_OPTIONS),
        ("CREATE TABLE {new} USING tubemq", NO_OPTIONS),
        ("CREATE TEMPORARY VIEW {new} USING tubemq OPTIONS ({as_sink})", "option 'tubemq.group' is required"),
        ("SELECT * FROM {writing}", r"option 'tubemq.group' is required"),
        ("INSERT INTO {fixed} (value) SELECT 'x'", "CANNOT_SAFELY_CAST"),
        ("INSERT INTO {fixed} VALUES (X'78')", "INSERT_COLUMN_ARITY_MISMATCH"),
        ("INSERT OVERWRITE {table} WITH ({sink}) VALUES ('click', X'78')", "TubeMQ only appends"),
        ("SELECT * FROM tubemq.`{topic}`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        ("INSERT INTO {view} VALUES ('click', X'78')", "EXPECT_TABLE_NOT_VIEW"),
        (
            "CREATE OR REPLACE TABLE {new} USING tubemq OPTIONS ({as_sink}) AS SELECT 'x' AS value",
            "TubeMQ only appends",
        ),
    ],
)
def test_statements_that_fail(sql: Sql, statement: str, error: str) -> None:
    with pytest.raises(AnalysisException, match=error):
        sql(statement)
    assert sql.stored == [b"a", b"b"]


WRITES: dict[str, Callable[[DataFrame, Sql, str], object]] = {
    "saveAsTable": lambda rows, sql, table: (
        rows.write.format("tubemq").options(**sql.sink).mode("append").saveAsTable(table)
    ),
    "saveAsTable without a mode": lambda rows, sql, table: (
        rows.write.format("tubemq").options(**sql.sink).saveAsTable(table)
    ),
    "writeTo": lambda rows, sql, table: rows.writeTo(table).using("tubemq").options(**sql.sink).create(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_that_creates_a_table_stores_its_rows_once(
    spark: SparkSession, sql: Sql, write: Callable[[DataFrame, Sql, str], object]
) -> None:
    rows, table = spark.createDataFrame([(b"x",)], "value binary"), sql.names["new"]
    write(rows, sql, table)
    assert sql.stored == [b"a", b"b", b"x"]
    # Spark gives the options of the first write to nobody.
    with pytest.raises(AnalysisException, match=NO_OPTIONS):
        rows.writeTo(table).append()
    with pytest.raises(AnalysisException, match=NO_OPTIONS):
        spark.table(table).count()
    with pytest.raises(AnalysisException, match=NO_OPTIONS):
        rows.write.options(**sql.sink).insertInto(table)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        rows.write.format("tubemq").options(**sql.sink).saveAsTable(table)
    rows.write.format("tubemq").options(**sql.sink).mode("ignore").saveAsTable(table)
    rows.write.format("tubemq").options(**sql.sink).insertInto(table)
    rows.writeTo(table).options(**sql.sink).append()
    assert sql.stored == [b"a", b"b", *[b"x"] * 3]
    with pytest.raises(AnalysisException, match="TubeMQ only appends"):
        rows.write.format("tubemq").options(**sql.sink).mode("overwrite").saveAsTable(table)
    assert not spark.catalog.tableExists(table)  # Spark drops it first


def test_a_stream_to_a_table_stores_its_rows_once(spark: SparkSession, sql: Sql, tmp_path: Path) -> None:
    """And a stream can read from a table."""
    rows = spark.readStream.options(**sql.source, startingOffsets="earliest").table(sql.names["table"])
    options = {**sql.sink, "checkpointLocation": str(tmp_path / "checkpoint")}
    writer = rows.select("value").writeStream.format("tubemq").options(**options).trigger(availableNow=True)
    query = writer.toTable(sql.names["new"])
    query.awaitTermination()
    assert sum(report["sink"]["numOutputRows"] for report in query.recentProgress) == 2
    assert sql.stored == [b"a", b"a", b"b", b"b"]
