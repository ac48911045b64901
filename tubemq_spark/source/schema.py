# SPDX-License-Identifier: Apache-2.0
"""Schema of the source, for Spark and for Arrow."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyspark.sql import types

from tubemq_spark import columns
from tubemq_spark.columns import CORRUPT, INLONG, READ, TEXTS, Column
from tubemq_spark.errors import ConfigError

ATTRIBUTES, TIMESTAMP = TEXTS.arrow, columns.TIMESTAMP.arrow


def _columns(corrupt_messages: str, message_format: str) -> list[Column]:
    """Return the columns for values of options `corruptMessages` and `messageFormat`; `corrupt` is always the last."""
    settings = {
        None,
        CORRUPT if corrupt_messages == "keep" else None,
        INLONG if message_format == "inlongmsg" else None,
    }
    return [column for column in READ if column.needs in settings]


@lru_cache(maxsize=16)
def arrow_schema(corrupt_messages: str, message_format: str = "raw") -> pa.Schema:
    """Return the columns for values of options `corruptMessages` and `messageFormat`, for Arrow.

    Spark compares the names, order and types of the first batch's fields with its own schema.
    """
    return pa.schema([(column.name, column.kind.arrow) for column in _columns(corrupt_messages, message_format)])


def spark_schema(corrupt_messages: str, message_format: str = "raw") -> types.StructType:
    """Return the same columns as `arrow_schema`, for Spark."""
    found = _columns(corrupt_messages, message_format)
    return types.StructType([types.StructField(column.name, column.kind.spark) for column in found])


ARROW_SCHEMA = arrow_schema("fail")
SPARK_SCHEMA = spark_schema("fail")


def check_schema(schema: types.StructType, own: types.StructType) -> None:
    """Raise `ConfigError` if the user asked for other columns than the source's `own`."""
    if schema != own:
        raise ConfigError(
            f"the tubemq source has fixed columns ({own.simpleString()}): leave out .schema(…) and convert `value` "
            "with from_json or a similar function"
        )
