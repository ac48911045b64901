# SPDX-License-Identifier: Apache-2.0
"""Decodes dead letters to rows again, with functions of Spark SQL only: `tubemq_spark.restore`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tubemq_spark import columns
from tubemq_spark.errors import ConfigError


def _text(name: str) -> str:
    return f"url_decode(found.dead_{name})"


def _map(name: str) -> str:
    options = f"map('mode', 'FAILFAST', 'maxStringLen', '{2**31 - 1}')"  # an error rather than null
    return f"""map_from_entries(transform(
        from_json({_text(name)}, 'array<array<string>>', {options}), pair -> struct(pair[0], pair[1])))"""


def _target(index: int) -> str:
    return f"CAST(nullif(split({_text('target')}, ':')[{index}], '') AS INT)"


_OTHERS = {
    "value": "CASE WHEN found.dead_value IS NULL THEN substring(content, head + 1) END",
    "msg_time": _text("msg_time"),
    "key": f"unbase64({_text('key')})",
    "broker_id": _target(0),
    "partition": _target(1),
    "inlong_time": "timestamp_millis(CAST(found.dead_inlong_time AS BIGINT))",
}


def _restored(column: columns.Column) -> str:
    """Return the expression that makes the cell of `column`."""
    by_kind = _map if column.kind == columns.TEXTS else _text
    return f"{_OTHERS.get(column.name) or by_kind(column.name)} AS {column.name}"


_NEEDED = ("value", "attributes", "topic", "broker_id", "partition", "message_id")

_CONTENT = "aggregate(array_sort(pieces), X'', (start, piece) -> concat(start, piece.value))"
_HEAD = "coalesce(CAST(attributes.dead_head AS INT), 0)"
_FOUND = """CASE WHEN head = 0 THEN attributes ELSE
    map_concat(attributes, str_to_map(CAST(substring(content, 1, head) AS STRING), ',', '=')) END"""
_OF_INLONG = [f"found.dead_{column.name}" for column in columns.written("inlongmsg") if column.needs == columns.INLONG]


def restore(dead: DataFrame, message_format: str = "raw") -> DataFrame:
    """Return the rows that could not be sent; `dead` are messages of a dead letter topic as the source reads them.

    Columns: `value` binary, `attributes` map<string,string>, `msg_type` string, `msg_time` string (`yyyyMMddHHmm`),
    `topic` string, `key` binary, `broker_id` int, `partition` int. All cells are as they were, so a row is still wrong
    where it was. Pieces are joined, and copies of a dead letter give one row; the order is lost.
    `message_format` is the format of the sink that could not write the rows: `inlongmsg` adds the columns
    `inlong_group`, `inlong_stream`, `inlong_time` (timestamp) and `inlong_attributes`.

    Raise `ConfigError` for a stream, for columns that are not the source's, and for an unknown format. When Spark
    computes the rows, it raises `USER_RAISED_EXCEPTION` for a message that is not a dead letter, for one with missing
    pieces, and for one of the other format, so that no row is lost in silence.
    """
    if message_format not in ("raw", "inlongmsg"):
        raise ConfigError(f"message_format is {message_format!r}; expected raw or inlongmsg")
    if dead.isStreaming:
        raise ConfigError("restore() needs the rows of a batch: read the dead letter topic with spark.read")
    if missing := [name for name in _NEEDED if name not in dead.columns]:
        raise ConfigError(
            f"restore() needs rows as the tubemq source reads them, but column {', '.join(missing)} is missing: "
            "change columns after restore(), not before"
        )
    pieces = dead.select(
        F.coalesce(F.expr("attributes.dead_letter"), _not_a_letter()).alias("letter"),
        F.expr("coalesce(CAST(attributes.dead_pieces AS INT), 1)").alias("count"),
        F.expr("struct(coalesce(CAST(attributes.dead_piece AS INT), 0) AS number, value)").alias("piece"),
        "attributes",
    )
    letters = pieces.groupBy("letter", "count").agg(
        F.collect_set("piece").alias("pieces"),  # a set, because copies of a piece are equal
        F.first("attributes").alias("attributes"),  # the attributes used below are the same in all pieces
    )
    rows = (
        letters.where(_true_or("size(pieces) = count", _incomplete()))
        .selectExpr("letter", "attributes", f"{_CONTENT} AS content", f"{_HEAD} AS head")
        .selectExpr("letter", "content", "head", f"{_FOUND} AS found")
    )
    if message_format == "raw":
        rows = rows.where(_true_or(f"coalesce({', '.join(_OF_INLONG)}) IS NULL", _of_inlong()))
    return rows.selectExpr(*map(_restored, columns.written(message_format)))


def _true_or(condition: str, error: Column) -> Column:
    return F.when(F.expr(condition), True).otherwise(error)


def _not_a_letter() -> Column:
    return _raise(
        "message ", F.col("message_id"), " of broker ", F.col("broker_id"), ", topic ", F.col("topic"), ", partition ",
        F.col("partition"), " is not a dead letter. To leave such messages out, filter them before restore(): "
        '.where("attributes.dead_letter IS NOT NULL")',
    )  # fmt: skip


def _incomplete() -> Column:
    return _raise(
        "of dead letter ", F.col("letter"), " only ", F.size("pieces"), " of ", F.col("count"), " pieces were read. "
        "Read the topic from earlier and to later positions; or, if the other pieces are gone, leave it out, filtered "
        """before restore(): .where("attributes.dead_letter <> '""", F.col("letter"), """'")""",
    )  # fmt: skip


def _of_inlong() -> Column:
    return _raise(
        "dead letter ", F.col("letter"), " is of a write with messageFormat=inlongmsg. Give restore() "
        """message_format="inlongmsg" too; or leave it out, filtered before restore(): """
        """.where("attributes.dead_letter <> '""", F.col("letter"), """'")""",
    )  # fmt: skip


def _raise(*parts: str | Column) -> Column:
    return F.raise_error(F.concat(*[F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts]))
