# SPDX-License-Identifier: Apache-2.0
"""Checks the columns of a DataFrame that is written, and converts their cells to plain values.

A frame with a column that only the source has, such as `offset`, has the source's own schema: somebody copies what was
read. Its positions (`Column.is_position`) say where a message was read. The sink ignores them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache, partial, reduce
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from tubemq_spark.columns import (
    BINARY,
    COLUMNS,
    INLONG,
    ONLY_READ,
    READ,
    READ_POSITION,
    STRING,
    TEXTS,
    TIMESTAMP,
    Kind,
    written,
)
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import EPOCH
from tubemq_spark.similar_names import nearest

_log = logging.getLogger(__name__)

_MINUTE, _MILLISECOND = 60_000_000, 1_000  # microseconds

_BY_NAME = {column.name: column for column in COLUMNS}
_TARGET = [column.name for column in written() if column.is_position]
_INLONG_COLUMNS = [column for column in written("inlongmsg") if column.needs == INLONG]
_INLONG_NEEDED = [column.name for column in _INLONG_COLUMNS if column.requires]


Texts = Mapping[str, str | None] | Sequence[tuple[str, str | None]] | None
"""A cell of a map."""


class Cells(NamedTuple):
    """One row.

    `msg_time` is `yyyyMMddHHmm`, or minutes since the epoch; `inlong_time` is milliseconds since the epoch. `corrupt`
    is True for a message that the source could not decode, with `corruptMessages=keep`.
    """

    value: bytes | None
    topic: str | None = None
    attributes: Texts = None
    msg_type: str | None = None
    msg_time: str | int | None = None
    key: bytes | None = None
    broker_id: int | None = None
    partition: int | None = None
    inlong_group: str | None = None
    inlong_stream: str | None = None
    inlong_time: int | None = None
    inlong_attributes: Texts = None
    corrupt: bool | None = None


class BadRowError(Exception):
    """A row that can never be sent: which column is bad (empty for the row as a whole), and why."""

    cause = "A row can never be sent: the text names the column and what is wrong with its cell."
    remedy = "As for a `RowError`. Users see the text in that error, in the log, or in the dead letter."

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason.encode("utf-8", "backslashreplace").decode())  # it may quote bytes that are not text
        self.column = column

    def __str__(self) -> str:
        reason = super().__str__()
        return f"column '{self.column}': {reason}" if self.column else reason


NOT_UTF8 = "it has bytes that are not UTF-8, and a text must be: write base64 or hex of such bytes"


_NESTED = (ArrayType, MapType, StructType)


def has_source_schema(names: Collection[str]) -> bool:
    """Return True if a frame with columns of these `names` has the source's own schema."""
    return not set(names).isdisjoint(ONLY_READ)


@lru_cache(maxsize=16)
def columns_read(names: tuple[str, ...], topic: str | None) -> frozenset[str]:
    """Return the columns of a checked frame that the sink reads; `topic` is the option, which wins over the column."""
    ignored = {"topic"} if topic is not None else set()
    return frozenset(names) - ignored - set(READ_POSITION if has_source_schema(names) else ())


def check_columns(schema: StructType, topic: str | None, message_format: str = "raw") -> None:
    """Raise `ConfigError` if the sink cannot write rows of `schema`; `topic` and `message_format` are the options."""
    names = schema.fieldNames()
    is_copy = has_source_schema(names)
    _check_inlong(names, message_format, is_copy)
    columns = written(message_format)
    known = {column.name for column in (*columns, *(READ if is_copy else ()))}
    if unknown := [name for name in names if name not in known]:
        accepted = ", ".join(f"{column.name} ({column.expected})" for column in columns)
        missing = "" if "value" in names else ", and column 'value' is missing"
        them = "it" if len(unknown) == 1 else "them"
        others = [column.name for column in written("inlongmsg") if column.name not in names]
        proposed = [f"'{meant}'" for name in unknown if (meant := nearest(name, others)) is not None]
        then = f"; did you mean {', '.join(proposed)}? The" if proposed else "; the"
        raise ConfigError(
            f"{_columns(unknown)} unknown to the sink{missing}{then} sink accepts {accepted}; drop or rename {them}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{_columns(twice)} present more than once")
    if "value" not in names:
        raise ConfigError(
            f"column 'value' (binary or string) is missing; the frame has {', '.join(names) or 'no columns'}"
        )
    for field in schema.fields:
        column, kind = _BY_NAME[field.name], field.dataType
        # By class, because Spark's strings have collations, and maps null flags.
        kinds = (type(column.kind.spark), *([StringType] if column.or_string else []))
        parts = [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
        if not isinstance(kind, kinds) or not all(isinstance(part, StringType) for part in parts):
            raise ConfigError(
                f"column '{field.name}' has the type {kind.simpleString()}; expected {column.expected}: "
                f"{'use to_json' if column.or_string and isinstance(kind, _NESTED) else 'cast it'}"
            )
    for name, other in (_TARGET, _TARGET[::-1]):
        if name in names and other not in names and not is_copy:
            raise ConfigError(f"column '{name}' comes without column '{other}'; a target needs both, or neither")
    if "topic" not in names and topic is None:
        raise ConfigError("no topic to write to: give option 'topic' or a column 'topic'")


def _check_inlong(names: Sequence[str], message_format: str, is_copy: bool) -> None:
    if "inlong_index" in names and not is_copy:
        raise ConfigError("column 'inlong_index' is a position in a pack that was read; drop it before the write")
    if message_format == "inlongmsg":
        if missing := [name for name in _INLONG_NEEDED if name not in names]:
            needed = " and ".join(_INLONG_NEEDED)
            raise ConfigError(f"{_columns(missing)} missing; messageFormat=inlongmsg needs {needed} (string)")
    elif packs := [column.name for column in _INLONG_COLUMNS if column.name in names]:
        raise ConfigError(f"{_columns(packs)} accepted only with messageFormat=inlongmsg; set that, or drop the column")


def cells_of_batch(batch: pa.RecordBatch, topic: str | None = None) -> Iterator[Cells]:
    """Yield the rows of an Arrow batch whose columns were checked; `topic` is the option.

    Spark allows texts with bytes that are not UTF-8. They become lone surrogates.
    """
    columns = _columns_of(batch, topic)
    cells: list[Iterable[Any]] = [
        _reader(name)(columns[name]) if name in columns else repeat(None) for name in Cells._fields
    ]
    return map(Cells, *cells)


def _columns_of(batch: pa.RecordBatch, topic: str | None) -> dict[str, pa.Array]:
    """Return the columns that the sink reads. In a frame with the source's own schema, only rows that were not read
    have a target: Spark's INSERT INTO gives null to the columns that a statement does not name."""
    names = tuple(batch.schema.names)
    read = columns_read(names, topic)
    columns = {name: column for name, column in zip(names, batch.columns, strict=True) if name in read}
    marks = [pc.is_valid(batch.column(name)) for name in names if name in ONLY_READ]
    was_read = reduce(pc.or_, marks) if marks else None
    if was_read is not None and not pc.all(was_read).as_py():
        for name in set(names).intersection(_TARGET):
            column = batch.column(name)
            columns[name] = pc.if_else(was_read, pa.scalar(None, column.type), column)
    return columns


@lru_cache(maxsize=32)
def _reader(name: str) -> Callable[[pa.Array], list[Any]]:
    """Return the function that makes cells of a column."""
    if name == "inlong_time":
        return partial(_since_epoch, unit=_MILLISECOND)
    readers: Mapping[Kind, Callable[[pa.Array], list[Any]]] = {
        BINARY: _bytes, STRING: _texts, TEXTS: _maps, TIMESTAMP: _times,
    }  # fmt: skip
    return readers.get(_BY_NAME[name].kind, pa.Array.to_pylist)


def cells_together(batch: pa.RecordBatch, topic: str | None = None) -> dict[str, Any]:
    """Return the cells of `value` and `key`, and the column `attributes`, by column, if the rows differ in nothing else
    and none lacks value or key. Otherwise return nothing. Parameters as for `cells_of_batch`.

    The other columns are null, or texts that are all equal. Others are not compared, because that takes time and they
    are rarely equal.
    """
    found: dict[str, Any] = {}
    for name, column in _columns_of(batch, topic).items():
        if column.null_count == len(column) and name != "value":
            continue
        if name == "attributes":
            found[name] = column
        elif name in ("value", "key") and not column.null_count:
            found[name] = _reader(name)(column)
        elif not _is_one_text(column):
            return {}
    return found


def _is_one_text(column: pa.Array) -> bool:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return is_text and not column.null_count and len(pc.unique(column)) == 1


def cells_of_row(row: Row, topic: str | None = None) -> Cells:
    """Return a row that Spark gives to writers without Arrow; `topic` is the option."""
    cells = row.asDict()
    read = columns_read(tuple(cells), topic)
    if all(cells.get(name) is None for name in ONLY_READ):
        read |= cells.keys() & set(_TARGET)
    if len(read) < len(cells):
        cells = {name: cell for name, cell in cells.items() if name in read}
    moment, inlong_time = cells.get("msg_time"), cells.get("inlong_time")
    for name in ("value", "key"):
        if (value := cells.get(name)) is not None:
            cells[name] = value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(moment, datetime):  # Spark's datetimes are naive, in the zone of this process
        cells["msg_time"] = (_utc(moment) - EPOCH) // timedelta(minutes=1)
    if inlong_time is not None:
        cells["inlong_time"] = (_utc(inlong_time) - EPOCH) // timedelta(milliseconds=1)
    return Cells(**cells)


def _utc(moment: datetime) -> datetime:
    try:
        first = moment.astimezone(timezone.utc)
        if first != moment.replace(fold=1).astimezone(timezone.utc):
            _warn_of_repeated_hour(moment.date())
        return first
    except (OverflowError, ValueError):  # the first or last possible day, where the zone does not matter
        return moment.replace(tzinfo=timezone.utc)


@lru_cache(maxsize=16)
def _warn_of_repeated_hour(day: date) -> None:
    """Log once in a process that a time of `day` has two meanings. Spark removes the zone before the sink sees it."""
    _log.warning(
        "[repeated-hour] rows have times of %s that the zone of this process has twice, when its summer time ends. "
        "This Spark gives the sink times without a zone, so the sink takes the earlier one, and some times are too "
        "early. Let the executors run with TZ=UTC, or write msg_time as a string yyyyMMddHHmm",
        day,
    )


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _texts(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [None if text is None else text.decode("utf-8", "surrogateescape") for text in _bytes(column)]


def _maps(column: pa.Array) -> list[Any]:
    ends = column.offsets.to_pylist()  # in the arrays of all keys and texts
    pairs = [*zip(*(_texts(part[ends[0] : ends[-1]]) for part in (column.keys, column.items)), strict=True)]
    cells = [pairs[start - ends[0] : end - ends[0]] for start, end in pairwise(ends)]
    return (
        cells
        if not column.null_count
        else [cell if is_map else None for cell, is_map in zip(cells, column.is_valid().to_pylist(), strict=True)]
    )


def _times(column: pa.Array) -> list[str | int | None]:
    return _since_epoch(column, _MINUTE) if pa.types.is_timestamp(column.type) else _texts(column)


def _since_epoch(column: pa.Array, unit: int) -> list[Any]:
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if moment is None else moment // unit for moment in micros]


def _columns(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names)
    return f"column {shown} is" if len(names) == 1 else f"columns {shown} are"
