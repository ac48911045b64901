"""Schema of the source, for Spark and for Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tubemq_spark.errors import ConfigError

SPARK_SCHEMA = StructType(
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
INLONG_FIELDS = [
    StructField("inlong_group", StringType()),
    StructField("inlong_stream", StringType()),
    StructField("inlong_time", TimestampType()),
    StructField("inlong_attributes", MapType(StringType(), StringType())),
    StructField("inlong_index", IntegerType()),
]
CORRUPT_FIELD = StructField("corrupt", BooleanType())

ATTRIBUTES = pa.map_(pa.string(), pa.string())
TIMESTAMP = pa.timestamp("us", tz="UTC")

# Spark compares the names, order and types of the first batch's fields with these.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("attributes", ATTRIBUTES),
        pa.field("msg_type", pa.string()),
        pa.field("msg_time", TIMESTAMP),
        pa.field("topic", pa.string()),
        pa.field("broker_id", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("message_id", pa.int64()),
    ]
)
ARROW_INLONG_FIELDS = [
    pa.field("inlong_group", pa.string()),
    pa.field("inlong_stream", pa.string()),
    pa.field("inlong_time", TIMESTAMP),
    pa.field("inlong_attributes", ATTRIBUTES),
    pa.field("inlong_index", pa.int32()),
]
ARROW_CORRUPT_FIELD = pa.field("corrupt", pa.bool_())


def spark_schema(corrupt_messages: str, message_format: str = "raw") -> StructType:
    """Return the columns for values of options `corruptMessages` and `messageFormat`; `corrupt` is always the last."""
    more = INLONG_FIELDS if message_format == "inlongmsg" else []
    return StructType([*SPARK_SCHEMA.fields, *more, *([CORRUPT_FIELD] if corrupt_messages == "keep" else [])])


def arrow_schema(corrupt_messages: str, message_format: str = "raw") -> pa.Schema:
    """Return the same columns as `spark_schema`, for Arrow."""
    more = ARROW_INLONG_FIELDS if message_format == "inlongmsg" else []
    return pa.schema([*ARROW_SCHEMA, *more, *([ARROW_CORRUPT_FIELD] if corrupt_messages == "keep" else [])])


def check_schema(schema: StructType, own: StructType) -> None:
    """Raise `ConfigError` if the user asked for other columns than the source's `own`."""
    if schema != own:
        raise ConfigError(
            f"the tubemq source has fixed columns ({own.simpleString()}): leave out .schema(…) and convert `value` "
            "with from_json or a similar function"
        )
