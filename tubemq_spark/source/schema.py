# SPDX-License-Identifier: Apache-2.0
"""Schema of the source, for Spark and for Arrow."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyspark.sql import types

from tubemq_spark.errors import ConfigError

ATTRIBUTES = pa.map_(pa.string(), pa.string())
TIMESTAMP = pa.timestamp("us", tz="UTC")

# Spark compares the names, order and types of the first batch's fields with its own schema.
ARROW_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("attributes", ATTRIBUTES),
        ("msg_type", pa.string()),
        ("msg_time", TIMESTAMP),
        ("topic", pa.string()),
        ("broker_id", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.int64()),
    ]
)
_INLONG_FIELDS = [
    pa.field("inlong_group", pa.string()),
    pa.field("inlong_stream", pa.string()),
    pa.field("inlong_time", TIMESTAMP),
    pa.field("inlong_attributes", ATTRIBUTES),
    pa.field("inlong_index", pa.int32()),
]
_CORRUPT_FIELD = pa.field("corrupt", pa.bool_())

_IN_SPARK = {
    pa.binary(): types.BinaryType(),
    pa.string(): types.StringType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.bool_(): types.BooleanType(),
    TIMESTAMP: types.TimestampType(),
    ATTRIBUTES: types.MapType(types.StringType(), types.StringType()),
}


@lru_cache(maxsize=16)
def arrow_schema(corrupt_messages: str, message_format: str = "raw") -> pa.Schema:
    """Return the columns for values of options `corruptMessages` and `messageFormat`; `corrupt` is always the last."""
    more = _INLONG_FIELDS if message_format == "inlongmsg" else []
    return pa.schema([*ARROW_SCHEMA, *more, *([_CORRUPT_FIELD] if corrupt_messages == "keep" else [])])


def spark_schema(corrupt_messages: str, message_format: str = "raw") -> types.StructType:
    """Return the same columns as `arrow_schema`, for Spark."""
    fields = arrow_schema(corrupt_messages, message_format)
    return types.StructType([types.StructField(field.name, _IN_SPARK[field.type]) for field in fields])


SPARK_SCHEMA = spark_schema("fail")


def check_schema(schema: types.StructType, own: types.StructType) -> None:
    """Raise `ConfigError` if the user asked for other columns than the source's `own`."""
    if schema != own:
        raise ConfigError(
            f"the tubemq source has fixed columns ({own.simpleString()}): leave out .schema(…) and convert `value` "
            "with from_json or a similar function"
        )
