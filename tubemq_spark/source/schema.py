"""The source's columns, and messages as rows of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
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

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.message import NO_ATTRIBUTES, Attributes, decode_attributes, split_payload
from tubemq_spark.protocol.metadata import Partition

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

_MAP = pa.map_(pa.string(), pa.string())
_TIMESTAMP = pa.timestamp("us", tz="UTC")

# Spark compares the first batch with these, field by field: names, order and types.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("attributes", _MAP),
        pa.field("msg_type", pa.string()),
        pa.field("msg_time", _TIMESTAMP),
        pa.field("topic", pa.string()),
        pa.field("broker_id", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("message_id", pa.int64()),
    ]
)

_decode = lru_cache(maxsize=1024)(decode_attributes)  # msgType and msgTime make the same bytes again and again


def check_schema(schema: StructType) -> None:
    """`ConfigError` when the user asked for other columns than the source has."""
    if schema != SPARK_SCHEMA:
        raise ConfigError(
            f"the tubemq source has columns of its own ({SPARK_SCHEMA.simpleString()}): leave out .schema(…) and "
            "convert `value` with from_json or the like"
        )


def record_batch(partition: Partition, messages: Sequence[Any], positions: Sequence[int] | None) -> pa.RecordBatch:
    """Rows of `ARROW_SCHEMA` from the wire's messages of one partition.

    `positions` is one index position a message, or None. `ProtocolError` for a message whose check sum or attribute
    header is wrong, naming it.
    """
    count = len(messages)
    ids = [message.messageId for message in messages]
    payloads = [message.payLoadData for message in messages]
    for message_id, payload, message in zip(ids, payloads, messages, strict=True):
        if zlib.crc32(payload) & 0x7FFFFFFF != message.checkSum:
            raise ProtocolError(
                f"message {message_id} of {partition} has the check sum {message.checkSum}, but its bytes do not"
            )
    bodies: Sequence[bytes] = payloads
    attributes: Sequence[Attributes] = ()
    if any(message.flag for message in messages):
        bodies, attributes = _take_apart(partition, messages)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(bodies, pa.binary()),
            _column(count, [_items(found) for found in attributes], _MAP),
            _column(count, [found.msg_type for found in attributes], pa.string()),
            _column(count, [found.msg_time for found in attributes], _TIMESTAMP),
            pa.repeat(pa.scalar(partition.topic, pa.string()), count),
            pa.repeat(pa.scalar(partition.broker_id, pa.int32()), count),
            pa.repeat(pa.scalar(partition.partition_id, pa.int32()), count),
            _column(count, positions or (), pa.int64()),
            pa.array(ids, pa.int64()),
        ],
        schema=ARROW_SCHEMA,
    )


def _take_apart(partition: Partition, messages: Sequence[Any]) -> tuple[list[bytes], list[Attributes]]:
    bodies, attributes = [], []
    for message in messages:
        try:
            header, body = split_payload(message.payLoadData, message.flag)
        except ProtocolError as error:
            raise ProtocolError(f"message {message.messageId} of {partition}: {error}") from error
        bodies.append(body)
        attributes.append(_decode(header) if header else NO_ATTRIBUTES)
    return bodies, attributes


def _items(found: Attributes) -> list[tuple[str, str]] | None:
    return None if found.own is None else list(found.own.items())


def _column(count: int, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind) if values else pa.nulls(count, kind)
