"""Which columns the sink takes, and how their cells become plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from tubemq_spark.errors import ConfigError

_MINUTE = 60_000_000  # microseconds

# Types by family: Spark's strings come with collations, maps and fields with null flags.
_COLUMNS: Mapping[str, tuple[str, Callable[[DataType], bool]]] = {
    "value": ("binary or string", lambda kind: isinstance(kind, (BinaryType, StringType))),
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "attributes": (
        "map<string,string>",
        lambda kind: (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        ),
    ),
    "msg_type": ("string", lambda kind: isinstance(kind, StringType)),
    "msg_time": (
        "timestamp, or string of the form yyyyMMddHHmm",
        lambda kind: isinstance(kind, (TimestampType, StringType)),
    ),
}
_PLANNED = ("key", "broker_id", "partition")


class Cells(NamedTuple):
    """One row. `msg_time` is `yyyyMMddHHmm`, or minutes since the epoch."""

    value: bytes | None
    topic: str | None = None
    attributes: Mapping[str, str | None] | Sequence[tuple[str, str | None]] | None = None
    msg_type: str | None = None
    msg_time: str | int | None = None


def check_columns(schema: StructType, topic: str | None) -> None:
    """`ConfigError` when the sink cannot write rows of `schema`; `topic` is the option."""
    names = schema.fieldNames()
    takes = ", ".join(f"{name} ({expected})" for name, (expected, _) in _COLUMNS.items())
    if planned := [name for name in _PLANNED if name in names]:
        raise ConfigError(
            f"{_columns(planned)} not available in this release of tubemq-spark; drop it before the write"
        )
    if unknown := [name for name in names if name not in _COLUMNS]:
        raise ConfigError(f"{_columns(unknown)} unknown to the sink, which takes {takes}; drop or rename it")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{_columns(twice)} there more than once")
    if "value" not in names:
        raise ConfigError(f"column 'value' (binary or string) is missing; there is {', '.join(names) or 'none at all'}")
    for field in schema.fields:
        expected, fits = _COLUMNS[field.name]
        if not fits(field.dataType):
            raise ConfigError(
                f"column '{field.name}' has the type {field.dataType.simpleString()}; expected {expected}: cast it"
            )
    if "topic" not in names and topic is None:
        raise ConfigError("no topic to write to: give option 'topic' or a column 'topic'")


def cells_of_batch(batch: pa.RecordBatch) -> Iterator[Cells]:
    """The rows of an Arrow batch whose columns were checked."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    readers: Mapping[str, Callable[[Any], list[Any]]] = {"value": _bytes, "msg_time": _times}
    cells = [
        readers.get(name, pa.Array.to_pylist)(columns[name]) if name in columns else repeat(None)
        for name in Cells._fields
    ]
    return map(Cells, *cells)


def cells_of_row(row: Row) -> Cells:
    """A row as Spark gives it to writers without Arrow."""
    cells = row.asDict()
    value, moment = cells["value"], cells.get("msg_time")
    if value is not None:
        cells["value"] = value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(moment, datetime):  # Spark's are naive, in the zone of this process
        cells["msg_time"] = int((moment.astimezone(timezone.utc) - _EPOCH).total_seconds() // 60)
    return Cells(**cells)


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _times(column: pa.Array) -> list[str | int | None]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if moment is None else moment // _MINUTE for moment in micros]


def _columns(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names)
    return f"column {shown} is" if len(names) == 1 else f"columns {shown} are"
