# SPDX-License-Identifier: Apache-2.0
"""Schema of the source, for Spark and for Arrow."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import types

from tubemq_spark import columns
from tubemq_spark.columns import READ, TEXTS, Column
from tubemq_spark.errors import ConfigError
from tubemq_spark.similar_names import nearest
from tubemq_spark.source.row_format import RowFormat

ATTRIBUTES, TIMESTAMP = TEXTS.arrow, columns.TIMESTAMP.arrow


def _available(form: RowFormat) -> list[Column]:
    """Return all columns that there are with the options."""
    return [column for column in READ if column.needs is None or column.needs.is_in(form)]


def arrow_schema(form: RowFormat) -> pa.Schema:
    """Return the columns of the rows, for Arrow.

    Spark compares the names, order and types of the first batch's fields with its own schema.
    """
    kinds = {column.name: column.kind.arrow for column in _available(form)}
    return pa.schema([(name, kinds[name]) for name in form.columns or kinds])


def spark_schema(form: RowFormat) -> types.StructType:
    """Return all columns that there are, for Spark."""
    return types.StructType([types.StructField(column.name, column.kind.spark) for column in _available(form)])


SPARK_SCHEMA = spark_schema(RowFormat())


def with_columns(form: RowFormat, schema: types.StructType) -> RowFormat:
    """Return `form` with the columns of `schema`, which the user may have given. Raise `ConfigError` for others."""
    kinds = {field.name: field.dataType for field in spark_schema(form)}
    names = tuple(schema.fieldNames())
    wrong = [
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
        for field in schema
        if kinds.get(field.name) != field.dataType or not field.nullable or names.count(field.name) > 1
    ]
    if wrong or not names:
        others = [name for name in kinds if name not in names]
        proposed = [
            f"'{meant}'" for name in names if name not in kinds and (meant := nearest(name, others)) is not None
        ]
        expected = f"; did you mean {', '.join(proposed)}? Expected" if proposed else "; expected"
        raise ConfigError(
            f"the schema asks for {', '.join(wrong) or 'no column'}{expected} any of these columns, each once: "
            f"{', '.join(f'{name} {kind.simpleString()}' for name, kind in kinds.items())}"
        )
    return replace(form, columns=names)
