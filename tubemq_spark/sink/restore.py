# SPDX-License-Identifier: Apache-2.0
"""Decodes dead letters to rows again, with functions of Spark SQL only: `tubemq_spark.restore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tubemq_spark import columns
from tubemq_spark.errors import ConfigError
from tubemq_spark.similar_names import did_you_mean


def _text(cell: str) -> str:
    return f"try_url_decode({cell})"


def _map(cell: str) -> str:
    pairs = f"from_json({_text(cell)}, 'array<array<string>>', map('maxStringLen', '{2**31 - 1}'))"
    keys = "transform(pairs, pair -> pair[0])"
    return f"""transform(array({pairs}), pairs -> CASE
        WHEN forall(pairs, pair -> size(pair) = 2 AND pair[0] IS NOT NULL) AND {_differ(keys)}
        THEN map_from_entries(transform(pairs, pair -> struct(pair[0], pair[1]))) END)[0]"""


def _differ(values: str) -> str:
    return f"size(array_distinct({values})) = size({values})"


def _whole(cell: str) -> str:
    return f"try_cast({cell} AS INT)"


_PART_OF_TARGET = {"broker_id": 1, "partition": 2}

_DECODERS: Mapping[str, Callable[[str], str]] = {
    "key": lambda cell: f"try_to_binary({_text(cell)}, 'base64')",
    "broker_id": _whole,
    "partition": _whole,
    "inlong_time": lambda cell: f"timestamp_micros(try_multiply(try_cast({cell} AS BIGINT), 1000L))",
}


def _restored(column: columns.Column) -> Column:
    """Return the cells of `column`."""
    if column.name == "value":
        return F.expr("CASE WHEN found.dead_value IS NULL THEN substring(content, head + 1) END AS value")
    part = _PART_OF_TARGET.get(column.name)
    name = "dead_target" if part else f"dead_{column.name}"
    cell = f"nullif(split_part(found.{name}, ':', {part}), '')" if part else f"found.{name}"
    decode = _DECODERS.get(column.name, _map if column.kind == columns.TEXTS else _text)
    return _decoded(name, cell, decode(cell)).alias(column.name)


def _decoded(name: str, cell: str, expression: str) -> Column:
    """Return the values of `expression`, which are null where `cell` is, or else where it cannot be decoded."""
    return F.coalesce(F.expr(expression), F.when(F.expr(cell).isNotNull(), _malformed(name, F.expr(cell))))


def _number(name: str, default: int) -> Column:
    cell = f"attributes.{name}"
    return F.coalesce(_decoded(name, cell, _whole(cell)), F.lit(default))


_NEEDED = ("value", "attributes", "topic", "broker_id", "partition", "message_id")

_IS_LETTER = "length(unhex(attributes.dead_letter)) = 16"
_USED_NAMES = [
    f"dead_{one}" for one in ("value", "head", "target", *(each.name for each in columns.written("inlongmsg")))
]
_USED = f"""array_sort(map_entries(map_filter(attributes, (name, cell) -> name IN ({str(_USED_NAMES)[1:-1]}))))"""
_CONTENT = "aggregate(array_sort(pieces), X'', (start, piece) -> concat(start, piece.value))"
_HEAD = "CAST(substring(content, 1, head) AS STRING)"
_NAMES = f"concat(map_keys(attributes), transform(split({_HEAD}, ','), pair -> split_part(pair, '=', 1)))"
_FOUND = f"""CASE WHEN head = 0 THEN attributes WHEN head BETWEEN 1 AND length(content) AND {_differ(_NAMES)} THEN
    map_concat(attributes, str_to_map({_HEAD}, ',', '=')) END"""
_OF_INLONG = [f"found.dead_{column.name}" for column in columns.written("inlongmsg") if column.needs == columns.INLONG]


def restore(dead: DataFrame, message_format: str = "raw") -> DataFrame:
    """Return the rows that could not be sent; `dead` are messages of a dead letter topic as the source reads them.

    The columns are those that the sink takes; `msg_time` is a string (`yyyyMMddHHmm`). All cells are as they were, so a
    row is still wrong where it was. Pieces are joined, and copies of a dead letter give one row; the order is lost.
    `message_format` is the format of the sink that could not write the rows: `inlongmsg` adds the columns
    of InLong.

    Raise `ConfigError` for a stream, for columns that are not the source's, and for an unknown format. When Spark
    computes the rows, it raises `USER_RAISED_EXCEPTION` for a message that is not a dead letter, for one with missing
    pieces, and for one of the other format, so that no row is lost in silence.
    """
    if message_format not in ("raw", "inlongmsg"):
        meant = did_you_mean(message_format, ("raw", "inlongmsg"))
        raise ConfigError(f"message_format is {message_format!r}; expected raw or inlongmsg{meant}")
    if dead.isStreaming:
        raise ConfigError("restore() needs the rows of a batch: read the dead letter topic with spark.read")
    if missing := [name for name in _NEEDED if name not in dead.columns]:
        raise ConfigError(
            f"restore() needs rows as the tubemq source reads them, but column {', '.join(missing)} is missing: "
            "change columns after restore(), not before"
        )
    messages = dead.select(
        F.when(F.expr(_IS_LETTER), F.expr("attributes.dead_letter")).otherwise(_not_a_letter()).alias("letter"),
        F.expr(_USED).alias("used"),
        "attributes",
        "value",
    )
    pieces = messages.select(
        "letter",
        _number("dead_pieces", 1).alias("count"),
        F.struct(_number("dead_piece", 0).alias("number"), "value").alias("piece"),
        "used",
    )
    letters = (
        pieces.groupBy("letter", "count", "used")  # another letter of that name, which anybody may send, is one more
        .agg(F.collect_set("piece").alias("pieces"))  # a set, because copies of a piece are equal
        .withColumn("attributes", F.map_from_entries("used"))
    )
    rows = (
        letters.where(_true_or("size(pieces) = count", _incomplete()))
        .select("letter", "attributes", F.expr(_CONTENT).alias("content"), _number("dead_head", 0).alias("head"))
        .select(
            "letter",
            "content",
            "head",
            F.coalesce(F.expr(_FOUND), _malformed("dead_head", F.col("head"))).alias("found"),
        )
    )
    if message_format == "raw":
        rows = rows.where(_true_or(f"coalesce({', '.join(_OF_INLONG)}) IS NULL", _of_inlong()))
    return rows.select(*map(_restored, columns.written(message_format)))


def _true_or(condition: str, error: Column) -> Column:
    return F.when(F.expr(condition), True).otherwise(error)


def _not_a_letter() -> Column:
    return _raise(
        "message ", F.col("message_id"), " of broker ", F.col("broker_id"), ", topic ", F.col("topic"), ", partition ",
        F.col("partition"), " is not a dead letter. To leave such messages out, filter them before they are restored: "
        f'"{_IS_LETTER}" (`where`, or redrive --where)',
    )  # fmt: skip


def _malformed(name: str, cell: Column) -> Column:
    return _raise(
        "dead letter ", F.col("letter"), f" is malformed: {name} has '", _legible(cell),
        "'. ",
        *_to_leave_out(),
    )  # fmt: skip


def _incomplete() -> Column:
    return _raise(
        "dead letter ", F.col("letter"), " has ", F.col("count"), " pieces, but ", F.size("pieces"), " were read. Read "
        "the topic from earlier and to later positions; or, if the other pieces are gone, leave it out. ",
        *_to_leave_out(),
    )  # fmt: skip


def _of_inlong() -> Column:
    return _raise(
        "dead letter ", F.col("letter"), " is of a write with messageFormat=inlongmsg. Give restore() "
        """message_format="inlongmsg", or redrive --message-format inlongmsg. """, *_to_leave_out(),
    )  # fmt: skip


def _to_leave_out() -> Sequence[str | Column]:
    """Return the parts of a sentence."""
    return (
        """To leave it out, filter the messages before they are restored: "attributes.dead_letter <> '""",
        F.col("letter"),
        """'" (`where`, or redrive --where)""",
    )


def _legible(cell: Column) -> Column:
    """Return the beginning of a peer's text, in one line."""
    return F.regexp_replace(F.substring(cell.cast("string"), 1, 100), "[^ -~]", "?")


def _raise(*parts: str | Column) -> Column:
    return F.raise_error(F.concat(*[F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts]))
