# SPDX-License-Identifier: Apache-2.0
"""Batch reads and writes, and errors of options at load."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from tests.matrix.pipeline import Pipeline
from tests.matrix.queries import run_to_the_end
from tubemq_spark.columns import READ
from tubemq_spark.inlong import parse_csv, parse_kv, unpack

SCHEMA = StructType([StructField(column.name, column.kind.spark) for column in READ if column.needs is None])


@pytest.mark.quick
def test_columns(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("sole", partitions=1)
    pipe.tubemq.create_topic("shared", partitions=3)
    full = pipe.tubemq.send("sole", b"\x00\xff", attributes={"ключ": "値"}, msg_type="order", msg_time="202402292359")
    plain = pipe.tubemq.send("shared", b"plain", partition=2)

    frame = pipe.batch("sole,shared")
    assert frame.schema == SCHEMA
    assert pipe.stream("sole,shared").schema == SCHEMA
    rows = frame.selectExpr("*", "unix_micros(msg_time) AS micros").orderBy("topic").collect()
    nothing = {"attributes": None, "msg_type": None, "micros": None, "offset": None}
    moment = int(datetime(2024, 2, 29, 23, 59, tzinfo=timezone.utc).timestamp()) * 1_000_000
    something = {"attributes": {"ключ": "値"}, "msg_type": "order", "micros": moment, "offset": 0}
    expected = [
        {"value": sent.body, "topic": topic, "broker_id": 1, "partition": p, "message_id": sent.message_id, **others}
        for sent, topic, p, others in ((plain, "shared", 2, nothing), (full, "sole", 0, something))
    ]
    assert [{name: row[name] for name in cells} for row, cells in zip(rows, expected, strict=True)] == expected


@pytest.mark.quick
def test_columns_of_a_schema(pipe: Pipeline) -> None:
    """Rows are checked by a column that is not there, and copied."""
    pipe.tubemq.create_topic("from", partitions=2)
    pipe.tubemq.create_topic("into", partitions=1)
    for number in range(30):
        kind = ("order", "click")[number % 2]
        pipe.tubemq.send("from", b"%d" % number, number % 2, attributes={"n": f"{number}"}, msg_type=kind)
    frame = pipe.batch(
        "from", schema="message_id BIGINT, value BINARY, attributes MAP<STRING, STRING>", filters="order"
    )
    assert frame.columns == ["message_id", "value", "attributes"]
    found = {bytes(row.value): row.attributes for row in frame.collect()}
    assert found == {b"%d" % number: {"n": f"{number}"} for number in range(0, 30, 2)}
    pipe.write(frame, "into")
    assert [(m.body, m.attributes) for m in pipe.tubemq.messages("into")] == list(found.items())
    with pytest.raises(PySparkException) as caught:
        pipe.batch("from", schema="value STRING, body BINARY").collect()
    assert "ConfigError: the schema asks for value string, body binary; expected any of" in str(caught.value)


@pytest.mark.quick
def test_write(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("one")
    pipe.tubemq.create_topic("other")
    moment = datetime(2024, 2, 29, 23, 59, tzinfo=timezone.utc)
    rows: list[tuple[Any, ...]] = [
        (b"\x00\xff", "one", {"ключ": "値"}, "order", moment),
        (b"plain", "other", None, None, moment),
        (b"empty", "other", {}, None, moment),
    ]
    columns = "value binary, topic string, attributes map<string,string>, msg_type string, msg_time timestamp"
    pipe.write(pipe.spark.createDataFrame(rows, columns))
    stored = {
        m.body: (m.attributes or {}, m.msg_type, m.msg_time)
        for topic in ("one", "other")
        for m in pipe.tubemq.messages(topic)
    }
    assert pipe.bodies("one").keys() == {b"\x00\xff"}
    assert stored == {
        b"\x00\xff": ({"ключ": "値"}, "order", "202402292359"),
        b"plain": ({}, None, "202402292359"),
        b"empty": ({}, None, "202402292359"),
    }


@pytest.mark.quick
def test_packs_as_columns(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("packs")
    rows = pipe.spark.sql("SELECT 'a=1&b=2' AS value, 'g' AS inlong_group, 's' AS inlong_stream")
    pipe.write(rows, "packs", messageFormat="inlongmsg")
    inside = pipe.batch("packs").select(sf.inline(unpack("value")))
    assert inside.select("inlong_group", "inlong_index", parse_kv("value"), parse_csv("value", "&")).collect() == [
        ("g", 0, {"a": "1", "b": "2"}, ["a=1", "b=2"])
    ]
    assert inside.selectExpr("inlong_time <= now() AND inlong_attributes['streamId'] = 's'").first() == (True,)


@pytest.mark.quick
def test_subscribe_pattern(pipe: Pipeline) -> None:
    for topic in ("orders_1", "orders_2", "items"):
        pipe.tubemq.create_topic(topic)
        pipe.send(topic, topic.encode())
    given: Any = {"tubemq.admin.address": pipe.tubemq.web_master, "metadataIntervalMs": 100, "subscribe": None}
    given["subscribePattern"] = "orders_.*"
    assert {bytes(row.value) for row in pipe.batch(**given).collect()} == {b"orders_1", b"orders_2"}
    pipe.tubemq.create_topic("copies")
    query = pipe.copy(pipe.stream(**given), "copies")
    pipe.wait_for(lambda: pipe.bodies("copies").total() == 2, "the topics that are there")
    pipe.tubemq.create_topic("orders_3")
    pipe.send("orders_3", b"orders_3")
    pipe.wait_for_copies("copies", Counter([b"orders_1", b"orders_2", b"orders_3"]))
    query.stop()


@pytest.mark.quick
def test_rows_that_were_read_can_be_written(pipe: Pipeline) -> None:
    """By a batch and by a stream; no row returns to the topic it came from."""
    pipe.tubemq.create_topic("from", partitions=3)
    pipe.tubemq.create_topic("into", partitions=1)
    for number in range(10):
        pipe.tubemq.send("from", b"%d" % number, partition=number % 3, attributes={"n": "1"}, msg_time="202402292359")
    pipe.write(pipe.batch("from"), "into")
    query = pipe.start(pipe.stream("from"), {"topic": "into"}, availableNow=True)
    run_to_the_end(query)
    assert pipe.bodies("into") == Counter(b"%d" % number for number in range(10) for _ in range(2))
    assert pipe.bodies("from").total() == 10
    assert {m.msg_time for m in pipe.tubemq.messages("into")} == {"202402292359"}
    assert [m.attributes for m in pipe.tubemq.messages("into")] == [{"n": "1"}] * 20


def test_more_rows_than_an_arrow_batch_holds(pipe: Pipeline) -> None:
    """Write and read more than 10 000 rows, the size of an Arrow batch."""
    pipe.tubemq.create_topic("many")
    pipe.write(pipe.spark.range(0, 25_000, 1, 2).selectExpr("CAST(id AS STRING) AS value"), "many")
    wanted = Counter(b"%d" % number for number in range(25_000))
    assert pipe.bodies("many") == wanted
    assert Counter(bytes(row.value) for row in pipe.batch("many").collect()) == wanted


@pytest.mark.quick
def test_filters(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("typed")
    for number in range(60):
        pipe.tubemq.send("typed", b"%d" % number, msg_type=("order", "click", None)[number % 3])
    rows = pipe.batch("typed", filters="order").collect()
    assert {bytes(row.value) for row in rows} == {b"%d" % number for number in range(0, 60, 3)}
    assert len(rows) == 20

    pipe.tubemq.create_topic("orders")
    pipe.run_to_the_end(pipe.stream("typed", filters={"typed": ["order"]}), "orders")
    assert pipe.bodies("orders") == Counter(bytes(row.value) for row in rows)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tubemq.grup": "g"}, "option 'tubemq.grup' is unknown; did you mean 'tubemq.group'?"),
        ({"headsIntervalMs": "soon"}, "option 'headsIntervalMs' is 'soon'"),
        ({"startingOffsets": "never"}, "option 'startingOffsets' is 'never'"),
    ],
    ids=["unknown", "number", "offsets"],
)
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_bad_options(pipe: Pipeline, kind: str, options: dict[str, str], error: str) -> None:
    """At load; with Connect at the first action."""
    with pytest.raises(AnalysisException) as caught:
        _ = getattr(pipe, kind)("demo", **options).schema
    assert f"ConfigError: {error}" in str(caught.value)


def test_only_append_mode_is_accepted(pipe: Pipeline) -> None:
    pipe.tubemq.create_topic("demo")
    frame = pipe.spark.sql("SELECT 'a' AS value").write.format("tubemq").option("tubemq.master", pipe.tubemq.master)
    with pytest.raises(AnalysisException, match="TubeMQ only appends"):
        frame.option("topic", "demo").mode("overwrite").save()
    assert not pipe.bodies("demo")


@pytest.mark.quick
def test_tables_and_views_of_sql(pipe: Pipeline) -> None:
    """A view of a table reads what the topic holds now; a view with columns of its own takes rows."""
    pipe.tubemq.create_topic("rows")
    names = ("tubemq.master", "tubemq.group", "subscribe")
    options = ", ".join(f"`{name}` = '{text}'" for name, text in pipe.options("rows").items() if name in names)
    sql = pipe.spark.sql
    sql("DROP TABLE IF EXISTS rows_topic")
    sql("CREATE TABLE rows_topic (value BINARY, msg_type STRING) USING tubemq")
    sql(f"CREATE OR REPLACE TEMPORARY VIEW rows AS SELECT * FROM rows_topic WITH ({options})")
    sink = f"`tubemq.master` '{pipe.tubemq.master}', topic 'rows'"
    sql(f"CREATE OR REPLACE TEMPORARY VIEW target (value STRING) USING tubemq OPTIONS ({sink})")
    for count in (1, 2):
        sql(f"INSERT INTO target VALUES ('{count}')")
        assert sql("SELECT * FROM rows").count() == count
    sql("DROP TABLE rows_topic")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingOffsets": "latest"}, "where a batch read would read nothing"),
        ({"startingTimestamp": "2026-02-01", "endingTimestamp": "2026-01-01"}, "later than 'endingTimestamp'"),
    ],
    ids=["latest", "behind its end"],
)
def test_a_batch_that_would_read_nothing_is_refused(pipe: Pipeline, options: dict[str, str], error: str) -> None:
    pipe.tubemq.create_topic("demo")
    with pytest.raises(AnalysisException, match=error):
        pipe.batch("demo", **options).count()
