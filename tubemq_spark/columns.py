# SPDX-License-Identifier: Apache-2.0
"""The columns of source and sink, in one table. Schemas, checks, dead letters and docs/reference/columns.md derive from
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types


class Kind(NamedTuple):
    """The type of a column."""

    arrow: pa.DataType
    spark: types.DataType


BINARY = Kind(pa.binary(), types.BinaryType())
STRING = Kind(pa.string(), types.StringType())
INT = Kind(pa.int32(), types.IntegerType())
LONG = Kind(pa.int64(), types.LongType())
BOOLEAN = Kind(pa.bool_(), types.BooleanType())
TIMESTAMP = Kind(pa.timestamp("us", tz="UTC"), types.TimestampType())
TEXTS = Kind(pa.map_(pa.string(), pa.string()), types.MapType(types.StringType(), types.StringType()))


class Setting(NamedTuple):
    """A setting of the source: its text for users, and whether a `RowFormat` has it."""

    text: str
    is_in: Callable[[Any], bool]


INLONG = Setting(
    "`messageFormat=inlongmsg` or `inlong` makes a row of each message in an [InLong pack](../inlong.md), and",
    lambda form: form.message_format in ("inlongmsg", "inlong"),
)
CORRUPT = Setting("`corruptMessages=keep`", lambda form: form.corrupt == "keep")


class Column(NamedTuple):
    """A column.

    `read` and `written` are its texts for users, None if the source does not have it or the sink does not take it.
    `needs` is the setting that it comes with. `or_string` is not blank if the sink takes strings too. A position says
    where a message was read: copies ignore it. The sink `requires` it.
    """

    name: str
    kind: Kind
    read: str | None = None
    written: str | None = None
    needs: Setting | None = None
    or_string: str = ""
    is_position: bool = False
    requires: bool = False

    @property
    def expected(self) -> str:
        """The types that the sink takes, for users."""
        return f"{self.kind.spark.simpleString()}{self.or_string}"


# In the order of the schema. A new column comes behind the last one with the same `needs`.
COLUMNS = (
    Column(
        "value", BINARY, "the body, without the attributes",
        "required; a null value or one longer than the topic allows cannot be sent",
        or_string=" or string", requires=True,
    ),
    Column(
        "attributes", TEXTS, "the producer's own attributes, or null without any",
        "no `,` or `=` in keys and values, no empty key, no null value; an error names reserved keys",
    ),
    Column(
        "msg_type", STRING, "the type that readers filter by, or null",
        "1 to 255 characters, without `,`, `=` and blanks at its ends; without `#` if readers filter by it. A blank "
        "one is null when it is read",
    ),
    Column(
        "msg_time", TIMESTAMP,
        "the producer's time, to the minute or the [millisecond](#milliseconds), or null",
        "rounded down to the minute; default: now. A timestamp is written in UTC; on Spark 4.0 set the executors' `TZ` "
        "to UTC (`[repeated-hour]` in [Log lines](../log-lines.md))",
        or_string=", or string of the form yyyyMMddHHmm",
    ),
    Column(
        "topic", STRING, "the message's topic",
        "the row's topic; option `topic` overrides it",
    ),
    Column(
        "key", BINARY, None,
        "rows with the same key go to the same partition, in order; not stored; a string counts as its UTF-8 bytes",
        or_string=" or string",
    ),
    Column(
        "broker_id", INT, "the broker that stores the message",
        "with `partition` an explicit target: both or neither; ignored in [copies](#copies)",
        is_position=True,
    ),
    Column("partition", INT, "the partition's id at that broker", "see `broker_id`", is_position=True),
    Column(
        "offset", LONG, "the position in the store's index, in bytes, or null: see the [notes](#notes)",
        is_position=True,
    ),
    Column(
        "message_id", LONG, "the number that the broker gave the message; it may come again: see the [notes](#notes)",
        is_position=True,
    ),
    Column(
        "inlong_group", STRING,
        "its group: attribute `groupId`, or `bid` from old senders; a number if the sender used numbers",
        "with `messageFormat=inlongmsg`, required", INLONG, requires=True,
    ),
    Column(
        "inlong_stream", STRING,
        "its stream: attribute `streamId`, or `tid` from old senders",
        "with `messageFormat=inlongmsg`, required", INLONG, requires=True,
    ),
    Column(
        "inlong_time", TIMESTAMP,
        "its time: attribute `t` (a day, hour or minute in `msgTimeZone`), else `dt` (milliseconds since 1970)",
        "with `messageFormat=inlongmsg`; default: the time of sending", INLONG,
    ),
    Column(
        "inlong_attributes", TEXTS, "its attributes", "with `messageFormat=inlongmsg`",
        INLONG,
    ),
    Column("inlong_index", INT, "its place in the pack, from 0", None, INLONG, is_position=True),
    Column("corrupt", BOOLEAN, "true for a message whose bytes could not be decoded", None, CORRUPT),
)  # fmt: skip
READ = tuple(column for column in COLUMNS if column.read is not None)
"""The columns of the source, in their order."""
ONLY_READ = tuple(column.name for column in READ if column.written is None and column.needs is None)
"""Columns that the source always has and the sink never takes: a row in which one is set was read."""
READ_POSITION = tuple(column.name for column in READ if column.is_position)


def written(message_format: str = "raw") -> tuple[Column, ...]:
    """Return the columns that the sink takes for a value of option `messageFormat`."""
    settings = (None, INLONG) if message_format == "inlongmsg" else (None,)
    return tuple(column for column in COLUMNS if column.written is not None and column.needs in settings)
