# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tubemq_spark.sink import schema as schema_module
from tubemq_spark.sink.schema import Cells, cells_of_batch, cells_of_row, cells_together, check_columns

BINARY, STRING, INT, TEXTS = BinaryType(), StringType(), IntegerType(), MapType(StringType(), StringType())


def schema(*names: str, **columns: DataType) -> StructType:
    """Return a schema; the columns of `names` are strings."""
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
def test_columns_are_accepted(columns: StructType) -> None:
    check_columns(columns, "demo")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_values_become_bytes(kind: pa.DataType) -> None:
    batch = pa.record_batch([pa.array(["Zürich", "", None]).cast(kind)], names=["value"])
    assert [cells.value for cells in cells_of_batch(batch)] == ["Zürich".encode(), b"", None]


MOMENT = datetime(2026, 11, 21, 8, 30, 59, 999_999, timezone.utc)
MINUTES = 29_920_830


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Los_Angeles"])
@pytest.mark.parametrize(
    ("moment", "minutes"),
    [
        (MOMENT, MINUTES),
        (datetime(1969, 12, 31, 23, 59, 30, tzinfo=timezone.utc), -1),
        (datetime(1, 1, 1, tzinfo=timezone.utc), -1_035_593_280),
    ],
    ids=["now", "before 1970", "first day"],
)
def test_times_become_minutes_since_the_epoch(zone: str, moment: datetime, minutes: int) -> None:
    batch = pa.record_batch(
        [pa.array([b"a", b"b"]), pa.array([moment, None], pa.timestamp("us", tz=zone))], names=["value", "msg_time"]
    )
    assert [cells.msg_time for cells in cells_of_batch(batch)] == [minutes, None]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_times_of_packs_become_milliseconds(zone: str) -> None:
    early = datetime(1969, 12, 31, 23, 59, 59, 999_001, timezone.utc)
    times = pa.array([MOMENT, early, None], pa.timestamp("us", tz=zone))
    batch = pa.record_batch([pa.array([b"a", b"b", b"c"]), times], names=["value", "inlong_time"])
    assert [cells.inlong_time for cells in cells_of_batch(batch)] == [MINUTES * 60_000 + 59_999, -1, None]
    row = Row(value=b"", inlong_time=early.astimezone().replace(tzinfo=None))
    assert cells_of_row(row) == Cells(b"", inlong_time=-1)


def test_cells_of_packs() -> None:
    texts = pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch(
        {"value": [b"x", b"y"], "inlong_group": ["g", None], "inlong_stream": ["s", "t"], "inlong_attributes": texts}
    )
    first, second = cells_of_batch(batch)
    assert first == Cells(b"x", inlong_group="g", inlong_stream="s", inlong_attributes=[("a", "1")])
    assert second == Cells(b"y", inlong_stream="t")
    row = Row(value=b"x", inlong_group="g", inlong_stream="s", inlong_attributes={"a": "1"})
    assert cells_of_row(row) == first._replace(inlong_attributes={"a": "1"})


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
        (Row(value=b"", msg_time=datetime(1, 1, 1)), Cells(b"", msg_time=-1_035_593_280)),
    ],
    ids=["bytearray", "string", "null", "time as text", "naive time", "time with a zone", "first day"],
)
def test_cells_of_a_row(row: Row, cells: Cells) -> None:
    assert cells_of_row(row) == cells


SAME = {"value": pa.array([b"a", b"b"]), "msg_type": pa.array(["t", "t"]), "key": pa.array([None, None], pa.binary())}


TEXTS = pa.map_(pa.string(), pa.string())
VALUES = {"value": [b"a", b"b"]}


@pytest.mark.parametrize(
    ("columns", "together"),
    [
        pytest.param(SAME, VALUES, id="all equal"),
        pytest.param({"value": pa.array(["ä", ""])}, {"value": ["ä".encode(), b""]}, id="texts as values"),
        pytest.param({"value": pa.array([b"a", b"b"], pa.large_binary())}, VALUES, id="large values"),
        pytest.param({**SAME, "value": pa.array([b"a", None])}, {}, id="a null value"),
        pytest.param({**SAME, "value": pa.array([None, None], pa.binary())}, {}, id="no value"),
        pytest.param({**SAME, "msg_type": pa.array(["t", "u"])}, {}, id="other types"),
        pytest.param({**SAME, "msg_type": pa.array(["t", None])}, {}, id="a null type"),
        pytest.param({**SAME, "broker_id": pa.array([1, 1], pa.int32())}, {}, id="a target"),
        pytest.param({**SAME, "topic": pa.array(["x", "y"])}, VALUES, id="topics that the option replaces"),
        pytest.param(
            {**SAME, "offset": pa.array([1, 2]), "broker_id": pa.array([1, 2])}, VALUES, id="where rows were read"
        ),
        pytest.param({**SAME, "key": pa.array(["x", "y"])}, {**VALUES, "key": [b"x", b"y"]}, id="keys"),
        pytest.param({**SAME, "key": pa.array(["x", None])}, {}, id="a null key"),
        pytest.param(
            {**SAME, "attributes": pa.array([[("a", "b")], None], TEXTS)},
            {**VALUES, "attributes": pa.array([[("a", "b")], None], TEXTS)},
            id="attributes",
        ),
    ],
)
def test_cells_of_rows_that_are_sent_together(columns: dict[str, pa.Array], together: dict[str, Any]) -> None:
    assert cells_together(pa.record_batch(columns), "demo") == together


def test_texts_that_are_not_utf8_are_compared_too() -> None:
    bad = pa.array([b"\xff", b"\xff"]).view(pa.string())
    assert cells_together(pa.record_batch({"value": pa.array([b"a", b"b"]), "msg_type": bad})) == VALUES


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a zone whose summer time ends on 2026-11-01 at 6:00 UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("column", ["msg_time", "inlong_time"])
@pytest.mark.parametrize(
    ("day", "hour", "is_unclear"),
    [(1, 4, False), (1, 5, True), (1, 6, True), (1, 7, False), (2, 5, False)],
)
def test_a_time_that_the_zone_has_twice_is_reported_once(
    column: str, day: int, hour: int, is_unclear: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark makes such times of a timestamp where it has no Arrow writers."""
    schema_module._warn_of_repeated_hour.cache_clear()
    moment = datetime(2026, 11, day, hour, 30, tzinfo=timezone.utc)
    row = Row(**{"value": b"", column: moment.astimezone().replace(tzinfo=None)})
    cells = [cells_of_row(row), cells_of_row(row)]
    times = pa.array([moment], pa.timestamp("us", "UTC"))
    (exact,) = cells_of_batch(pa.record_batch({"value": [b""], column: times}))
    assert cells == [exact, exact] or hour == 6
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == is_unclear
    assert all(line.startswith("[repeated-hour] rows have times of 2026-11-01 that") for line in lines)
