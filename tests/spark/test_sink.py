# SPDX-License-Identifier: Apache-2.0
"""Spark writes to TubeMQ; plain requests read the messages back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from tests.clusters import Cluster
from tests.clusters.servers import BOTH
from tests.spark.queries import Queries, Source, run_to_the_end
from tests.stored import stored_in
from tubemq_spark import register
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol.message import Attributes

ON_BOTH_SERVERS = pytest.mark.parametrize("cluster", BOTH, indirect=True)

STAMP = ("spark_batch", "spark_partition", "spark_row")  # beside the id of the write
MOMENT = datetime(2026, 11, 21, 8, 30, 59, tzinfo=timezone.utc)
MINUTE = int(MOMENT.timestamp()) // 60 * 60_000_000
COLUMNS = "value binary, attributes map<string,string>, msg_type string, msg_time timestamp"
SHAPES: list[tuple[bytes, Mapping[str, str] | None, str | None, datetime | None]] = [
    (b"plain", None, None, None),
    (b"attributes", {"city": "Zürich", "empty": "", "日本": "語"}, None, MOMENT),
    (b"no attributes", {}, None, MOMENT),
    (b"type", None, "news", None),
    (b"everything", {"a": "1"}, "news", MOMENT),
    (b"", {"a": "2"}, None, MOMENT),
    (bytes(range(256)), None, None, MOMENT),
    (b"x" * 8192, None, None, MOMENT),
    (b"m" * (1 << 20), {"a": "3"}, "long", MOMENT),
]


def save(rows: DataFrame, cluster: Cluster, format: str = "tubemq", **options: str) -> None:
    rows.write.format(format).options(**{"tubemq.master": cluster.master, **options}).mode("append").save()


def by_older_spark() -> type[TubeMQDataSource]:
    """Return a data source that acts as if Spark had no Arrow writers."""

    class OlderSpark(TubeMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "tubemq_by_rows"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            from tubemq_spark.sink.write_plan import plan_write
            from tubemq_spark.sink.writers import TubeMQRowWriter

            return TubeMQRowWriter(plan_write(self.options, schema, overwrite, write_id="a write"))

    return OlderSpark


def test_a_thread_can_write_once_it_has_registered(cluster: Cluster, spark: SparkSession) -> None:
    """Spark looks for sources in Python in the active session of the thread; a new thread has none."""
    rows, topic = spark.createDataFrame([(b"x",)], "value binary"), cluster.new_topic("one")
    save(rows, cluster, topic=topic)  # Spark keeps what its first look finds as long as the JVM lives
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            thread.submit(save, rows, cluster, topic=topic).result()
        thread.submit(register, spark).result()
        thread.submit(save, rows, cluster, topic=topic).result()
    assert [message.body for message in stored_in(cluster, topic)] == [b"x", b"x"]


@ON_BOTH_SERVERS
@pytest.mark.parametrize("by_rows", [False, True], ids=["Arrow", "rows"])
def test_spark_writes_all_columns(cluster: Cluster, spark: SparkSession, by_rows: bool) -> None:
    spark.dataSource.register(by_older_spark())
    topic = cluster.new_topic("three")
    before = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    save(spark.createDataFrame(SHAPES, COLUMNS), cluster, "tubemq_by_rows" if by_rows else "tubemq", topic=topic)
    after = datetime.now(timezone.utc)

    stored = {message.body: message.attributes for message in stored_in(cluster, topic)}
    assert stored.keys() == {body for body, *_ in SHAPES}
    for body, own, msg_type, msg_time in SHAPES:
        found = stored[body]
        assert found == Attributes(own or None, msg_type, MINUTE if msg_time else found.msg_time)
        if msg_time is None:
            assert found.msg_time is not None
            assert before <= datetime.fromtimestamp(found.msg_time / 1e6, timezone.utc) <= after


def test_each_write_in_foreach_batch_has_its_own_id(source: Source, queries: Queries, tmp_path: Path) -> None:
    """The query's id is not used, because one micro-batch may write more than once."""
    cluster = source.cluster
    topic = cluster.new_topic("one")
    (tmp_path / "in").mkdir()
    for file in range(2):
        (tmp_path / "in" / f"{file}.txt").write_text("a\nb\nc")

    def twice(frame: DataFrame, batch: int) -> None:
        for turn in range(2):
            save(frame.selectExpr(f"concat('{batch} {turn} ', value) AS value"), cluster, topic=topic, stampRows="true")

    frame = source.spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = queries.start(frame, twice, tmp_path / "checkpoint", availableNow=True)
    run_to_the_end(query)

    of_a_write = defaultdict(list)
    for row in source.batch(topic).collect():
        of_a_write[row.attributes["spark_id"]].append(
            (bytes(row.value).decode(), *(row.attributes[name] for name in STAMP))
        )
    assert str(query.id) not in of_a_write
    assert sorted(map(sorted, of_a_write.values())) == [
        [(f"{batch} {turn} {letter}", "0", "0", str(row)) for row, letter in enumerate("abc")]
        for batch in range(2)
        for turn in range(2)
    ]


# What users see when it cannot work


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    """All failing tests share one topic."""
    return cluster.new_topic("three")


@pytest.mark.parametrize(
    ("sql", "options", "error"),
    [
        ("select 'a' value, 1 partition", {}, "ConfigError: column 'partition' comes without column 'broker_id'"),
        ("select 1 value", {}, "ConfigError: column 'value' has the type int; expected binary or string"),
        (
            "select 'a' value",
            {"topic": "no_such_topic", "tubemq.retry.maxElapsedMs": "100"},
            "knows no topic no_such_topic",
        ),
        ("select 'a' value", {"tubemq.masters": "a"}, "'tubemq.masters' is unknown; did you mean 'tubemq.master'"),
    ],
    ids=["column", "type", "topic", "option"],
)
def test_impossible_writes_fail_in_the_plan(
    cluster: Cluster, spark: SparkSession, topic: str, sql: str, options: dict[str, str], error: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        save(spark.sql(sql), cluster, **{"topic": topic, **options})
    assert error in str(caught.value)


def test_only_append_mode_is_accepted(cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path) -> None:
    rows = spark.sql("select 'a' value").write.format("tubemq").option("tubemq.master", cluster.master)
    errors = {"overwrite": "TubeMQ only appends", "ignore": '"Ignore" mode', "error": '"ErrorIfExists" mode'}
    for mode, error in errors.items():
        with pytest.raises(AnalysisException, match=error):
            rows.option("topic", topic).mode(mode).save()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .groupBy("value")
        .count()
        .select("value")
        .writeStream.format("tubemq")
        .option("tubemq.master", cluster.master)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .start()
    )
    with pytest.raises(StreamingQueryException, match="TubeMQ only appends"):
        query.awaitTermination()


def test_a_bad_row_reaches_the_user(cluster: Cluster, spark: SparkSession) -> None:
    topic = cluster.new_topic("one")
    rows: list[tuple[Any, ...]] = [(b"a", {"ok": "ok"}), (b"b", {"not": "o,k"}), (b"c", None)]
    with pytest.raises(PythonException) as caught:
        save(
            spark.createDataFrame(rows, "value binary, attributes map<string,string>").coalesce(1), cluster, topic=topic
        )
    assert "ConfigError: row 1 of task partition 0, column 'attributes': the attribute not 'o,k'" in str(caught.value)
    assert {message.body for message in stored_in(cluster, topic)} == {b"a"}


def test_passwords_are_in_no_plan(cluster: Cluster, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    topic = cluster.new_topic("one")
    rows = spark.sql("select 'a' value")
    save(rows, cluster, topic=topic, **{"tubemq.user": "me", "tubemq.password": "geheim"})
    with pytest.raises(PythonException) as caught:
        save(
            spark.sql("select cast(null as string) value"),
            cluster,
            topic=topic,
            **{"tubemq.user": "me", "tubemq.password": "geheim"},
        )
    shown = capfd.readouterr()
    assert "column 'value': it is null" in str(caught.value)
    assert "geheim" not in str(caught.value) + shown.out + shown.err
