"""Batch reads and writes, and what is said of options at load."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.matrix.trying import Tried

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("msg_type", StringType()),
        StructField("msg_time", TimestampType()),
        StructField("topic", StringType()),
        StructField("broker_id", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("message_id", LongType()),
    ]
)


@pytest.mark.quick
def test_columns(tried: Tried) -> None:
    tried.tubemq.create_topic("sole", partitions=1)
    tried.tubemq.create_topic("shared", partitions=3)
    full = tried.tubemq.send("sole", b"\x00\xff", attributes={"ключ": "値"}, msg_type="order", msg_time="202402292359")
    plain = tried.tubemq.send("shared", b"plain", partition=2)

    frame = tried.batch("sole,shared")
    assert frame.schema == SCHEMA
    assert tried.stream("sole,shared").schema == SCHEMA
    rows = frame.selectExpr("*", "unix_micros(msg_time) AS micros").orderBy("topic").collect()
    nothing = {"attributes": None, "msg_type": None, "micros": None, "offset": None}
    moment = int(datetime(2024, 2, 29, 23, 59, tzinfo=timezone.utc).timestamp()) * 1_000_000
    something = {"attributes": {"ключ": "値"}, "msg_type": "order", "micros": moment, "offset": 0}
    assert [{name: cell for name, cell in row.asDict().items() if name != "msg_time"} for row in rows] == [
        {"value": sent.body, "topic": topic, "broker_id": 1, "partition": p, "message_id": sent.message_id, **others}
        for sent, topic, p, others in ((plain, "shared", 2, nothing), (full, "sole", 0, something))
    ]


@pytest.mark.quick
def test_write(tried: Tried) -> None:
    tried.tubemq.create_topic("one")
    tried.tubemq.create_topic("other")
    moment = datetime(2024, 2, 29, 23, 59, tzinfo=timezone.utc)
    rows: list[tuple[Any, ...]] = [
        (b"\x00\xff", "one", {"ключ": "値"}, "order", moment),
        (b"plain", "other", None, None, moment),
        (b"empty", "other", {}, None, moment),
    ]
    columns = "value binary, topic string, attributes map<string,string>, msg_type string, msg_time timestamp"
    tried.write(tried.spark.createDataFrame(rows, columns))
    stored = {
        m.body: (m.attributes or {}, m.msg_type, m.msg_time)
        for topic in ("one", "other")
        for m in tried.tubemq.messages(topic)
    }
    assert tried.bodies("one").keys() == {b"\x00\xff"}
    assert stored == {
        b"\x00\xff": ({"ключ": "値"}, "order", "202402292359"),
        b"plain": ({}, None, "202402292359"),
        b"empty": ({}, None, "202402292359"),
    }


@pytest.mark.quick
def test_what_was_read_is_written_as_it_is(tried: Tried) -> None:
    """By a batch and by a stream; nothing goes back to where it was read."""
    tried.tubemq.create_topic("from", partitions=3)
    tried.tubemq.create_topic("into", partitions=1)
    for number in range(10):
        tried.tubemq.send("from", b"%d" % number, partition=number % 3, attributes={"n": "1"}, msg_time="202402292359")
    tried.write(tried.batch("from"), "into")
    query = tried.start(tried.stream("from"), {"topic": "into"}, availableNow=True)
    assert query.awaitTermination(240), f"it goes on: {query.status}"
    assert tried.bodies("into") == Counter(b"%d" % number for number in range(10) for _ in range(2))
    assert tried.bodies("from").total() == 10
    assert {m.msg_time for m in tried.tubemq.messages("into")} == {"202402292359"}
    assert [m.attributes for m in tried.tubemq.messages("into")] == [{"n": "1"}] * 20


def test_more_rows_than_an_arrow_batch_holds(tried: Tried) -> None:
    """Written and read: Spark brings 10 000 rows at a time."""
    tried.tubemq.create_topic("many")
    tried.write(tried.spark.range(0, 25_000, 1, 2).selectExpr("CAST(id AS STRING) AS value"), "many")
    wanted = Counter(b"%d" % number for number in range(25_000))
    assert tried.bodies("many") == wanted
    assert Counter(bytes(row.value) for row in tried.batch("many").collect()) == wanted


@pytest.mark.quick
def test_filters(tried: Tried) -> None:
    tried.tubemq.create_topic("typed")
    for number in range(60):
        tried.tubemq.send("typed", b"%d" % number, msg_type=("order", "click", None)[number % 3])
    rows = tried.batch("typed", filters="order").collect()
    assert {bytes(row.value) for row in rows} == {b"%d" % number for number in range(0, 60, 3)}
    assert len(rows) == 20

    tried.tubemq.create_topic("orders")
    tried.run_to_the_end(tried.stream("typed", filters={"typed": ["order"]}), "orders")
    assert tried.bodies("orders") == Counter(bytes(row.value) for row in rows)


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
def test_bad_options(tried: Tried, kind: str, options: dict[str, str], error: str) -> None:
    """At load; Connect looks at it with the first question."""
    with pytest.raises(AnalysisException) as caught:
        _ = getattr(tried, kind)("demo", **options).schema
    assert f"ConfigError: {error}" in str(caught.value)


def test_only_append(tried: Tried) -> None:
    tried.tubemq.create_topic("demo")
    frame = tried.spark.sql("SELECT 'a' AS value").write.format("tubemq").option("tubemq.master", tried.tubemq.master)
    with pytest.raises(AnalysisException, match="TubeMQ only appends"):
        frame.option("topic", "demo").mode("overwrite").save()
    assert not tried.bodies("demo")
