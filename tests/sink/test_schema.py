from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.schema import Cells, cells_of_batch, cells_of_row, check_columns

BINARY, STRING, INT, TEXTS = BinaryType(), StringType(), IntegerType(), MapType(StringType(), StringType())


def schema(*names: str, **columns: DataType) -> StructType:
    """Columns of `names` are strings."""
    return StructType(
        [*(StructField(name, STRING) for name in names), *(StructField(name, kind) for name, kind in columns.items())]
    )


@pytest.mark.parametrize(
    "columns",
    [
        schema(value=BINARY),
        schema("value", "topic"),
        schema("topic", "msg_type", value=BINARY, attributes=TEXTS, msg_time=TimestampType()),
        schema("msg_time", "value"),
        schema(value=StringType("UNICODE_CI")),
        StructType([StructField("value", BINARY, nullable=False)]),
        schema(value=BINARY, attributes=MapType(StringType(), StringType(), valueContainsNull=False)),
    ],
    ids=lambda columns: columns.simpleString(),
)
def test_columns_that_are_taken(columns: StructType) -> None:
    check_columns(columns, "demo")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (schema("topic"), "column 'value' .* is missing; there is topic"),
        (schema(), "column 'value' .* is missing; there is none at all"),
        (schema(value=INT), "column 'value' has the type int; expected binary or string"),
        (schema("value", topic=INT), "column 'topic' has the type int; expected string"),
        (schema("value", topic=NullType()), "column 'topic' has the type void; expected string"),
        (schema("value", "attributes"), "column 'attributes' has the type string; expected map<string,string>"),
        (schema("value", attributes=MapType(STRING, INT)), "'attributes' has the type map<string,int>; expected"),
        (schema("value", msg_type=INT), "column 'msg_type' has the type int; expected string"),
        (schema("value", msg_time=LongType()), "column 'msg_time' has the type bigint; expected timestamp, or string"),
        (schema("value", msg_time=TimestampNTZType()), "column 'msg_time' has the type timestamp_ntz; expected"),
        (schema("value", "key"), "column 'key' is not available in this release"),
        (schema("value", partition=INT, broker_id=INT), "columns 'broker_id', 'partition' are not available in this"),
        (schema("value", "offset", "Value"), "columns 'offset', 'Value' are unknown to the sink, which takes value"),
        (schema("value", "value"), "column 'value' is there more than once"),
    ],
    ids=lambda value: value.simpleString() if isinstance(value, StructType) else "",
)
def test_columns_that_are_refused(columns: StructType, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        check_columns(columns, "demo")


def test_a_topic_must_come_from_somewhere() -> None:
    check_columns(schema("value", "topic"), None)
    with pytest.raises(ConfigError, match="give option 'topic' or a column 'topic'"):
        check_columns(schema("value"), None)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_values_become_bytes(kind: pa.DataType) -> None:
    batch = pa.record_batch([pa.array(["Zürich", "", None]).cast(kind)], names=["value"])
    assert [cells.value for cells in cells_of_batch(batch)] == ["Zürich".encode(), b"", None]


MOMENT = datetime(2026, 11, 21, 8, 30, 59, 999_999, timezone.utc)
MINUTES = 29_920_830


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("moment", "minutes"),
    [(MOMENT, MINUTES), (datetime(1969, 12, 31, 23, 59, 30, tzinfo=timezone.utc), -1)],
    ids=["now", "before 1970"],
)
def test_times_become_minutes_since_the_epoch(zone: str, moment: datetime, minutes: int) -> None:
    batch = pa.record_batch(
        [pa.array([b"a", b"b"]), pa.array([moment, None], pa.timestamp("us", tz=zone))], names=["value", "msg_time"]
    )
    assert [cells.msg_time for cells in cells_of_batch(batch)] == [minutes, None]


def test_cells_of_a_batch_in_any_order_of_columns() -> None:
    batch = pa.record_batch(
        {
            "msg_time": pa.array(["202611210830"]),
            "attributes": pa.array([[("a", "1"), ("b", "2")]], pa.map_(pa.string(), pa.string())),
            "value": pa.array([b"x"]),
            "msg_type": pa.array(["t"]),
            "topic": pa.array(["demo"]),
        }
    )
    (cells,) = cells_of_batch(batch)
    assert cells._replace(attributes=None) == Cells(b"x", "demo", None, "t", "202611210830")
    assert dict(cells.attributes or ()) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (Row(value=bytearray(b"x")), Cells(b"x")),
        (Row(value="Zürich", topic="demo"), Cells("Zürich".encode(), "demo")),
        (Row(msg_type="t", value=None, attributes={"a": "1"}), Cells(None, None, {"a": "1"}, "t")),
        (Row(value=b"", msg_time="202611210830"), Cells(b"", msg_time="202611210830")),
        (Row(value=b"", msg_time=MOMENT.astimezone().replace(tzinfo=None)), Cells(b"", msg_time=MINUTES)),
        (Row(value=b"", msg_time=MOMENT.astimezone(timezone(timedelta(hours=5)))), Cells(b"", msg_time=MINUTES)),
    ],
    ids=["bytearray", "string", "null", "time as text", "naive time", "time with a zone"],
)
def test_cells_of_a_row(row: Row, cells: Cells) -> None:
    assert cells_of_row(row) == cells
