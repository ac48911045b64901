# SPDX-License-Identifier: Apache-2.0
"""InLong's packs and texts as functions of Spark, for the bytes of any source, such as Pulsar or files.

The first argument is a column, or `bytes`: then the result is a Python value. The functions take Arrow batches, and
single rows in Spark 4.0, which has no such functions. The executors need this package, unless `register` ships it.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from functools import partial
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, types
from pyspark.sql import functions as sf

from tubemq_spark.columns import READ, TEXTS
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.shipping import for_tasks
from tubemq_spark.source.arrow_arrays import binaries, lists, maps, texts
from tubemq_spark.source.inlong import inlongmsg
from tubemq_spark.source.inlong.pack_rows import PackRows
from tubemq_spark.source.options import MSG_TIME_ZONE
from tubemq_spark.source.row_format import MAX_UNPACKED

__all__ = ["parse_csv", "parse_kv", "unpack"]

_Convert = Callable[[pa.Array, pa.Array], pa.Array]  # of bodies and their attributes

_INSIDE = ("inlong_group", "inlong_stream", "inlong_time", "inlong_attributes", "inlong_index", "value")
_KINDS = {column.name: column.kind.spark for column in READ}
_MESSAGES = types.ArrayType(types.StructType([types.StructField(name, _KINDS[name]) for name in _INSIDE]))


def unpack(
    column: Column | str | bytes,
    format: Literal["inlongmsg", "inlong"] = "inlongmsg",
    attributes: Column | str | Mapping[str, str] | None = None,
    *,
    zone: str = "UTC",
    max_unpacked_bytes: int = MAX_UNPACKED,
    corrupt: Literal["fail", "null"] = "fail",
) -> Any:
    """Return the messages of a pack: an array of structs with the columns that the source has for InLong, and `value`.

    In the format `inlong`, `attributes` (a map of texts) say what a body is, as for option `messageFormat`. `zone` is
    the time zone of the packs' attribute `t`. A pack that is damaged, or larger than `max_unpacked_bytes` after its
    decompression, fails the task, or gives null if `corrupt` is `null`. Null gives null.
    """
    if (format == "inlong") != (attributes is not None):
        raise ConfigError(
            "unpack: format 'inlong' needs 'attributes', which say what each body is; no other format does"
        )
    opened = partial(
        _open_any if format == "inlong" else _open, MSG_TIME_ZONE.get({"msgTimeZone": zone}), max_unpacked_bytes
    )
    return _applied(partial(_unpacked, opened, corrupt == "null"), _MESSAGES, column, attributes)


def parse_csv(
    column: Column | str | bytes,
    delimiter: str = ",",
    *,
    escape: str = "",
    quote: str = "",
    charset: str = "utf-8",
) -> Any:
    """Return the fields of a text as an array of texts, as InLong's format `csv` finds them.

    Delimiters are ordinary characters behind the character `escape`, and between two of `quote`. Bytes that are not of
    `charset` become U+FFFD, as in InLong. A column of texts is UTF-8.
    """
    fields = partial(_fields, _tokens([delimiter], escape, quote), delimiter, escape + quote)
    return _applied(partial(_csv, fields, codecs.lookup(charset).name), types.ArrayType(types.StringType()), column)


def parse_kv(
    column: Column | str | bytes,
    entry_delimiter: str = "&",
    kv_delimiter: str = "=",
    *,
    escape: str = "",
    quote: str = "",
    charset: str = "utf-8",
) -> Any:
    """Return the entries of a text as a map of texts, as InLong's format `kv` finds them. Others as for `parse_csv`.

    As in InLong, the last of equal keys counts, and text behind an entry that has no `kv_delimiter` belongs to it.
    """
    entries = partial(_entries, _tokens([entry_delimiter, kv_delimiter], escape, quote), entry_delimiter, kv_delimiter)
    return _applied(partial(_kv, entries, codecs.lookup(charset).name), TEXTS.spark, column)


def _applied(convert: _Convert, returns: types.DataType, data: Column | str | bytes, attributes: Any = None) -> Any:
    if isinstance(data, bytes):
        return _of_one(convert, data, attributes)
    bodies = (sf.col(data) if isinstance(data, str) else data).cast("binary")
    others = sf.lit(None).cast(TEXTS.spark) if attributes is None else attributes
    if not hasattr(sf, "arrow_udf"):
        return sf.udf(for_tasks(partial(_of_one, convert), "inlong"), returns)(bodies, others)
    convert = for_tasks(convert, "inlong")

    def of_batch(bodies: pa.Array, others: pa.Array) -> pa.Array:  # Spark looks at the types of the parameters
        return convert(bodies, others)

    return sf.arrow_udf(of_batch, returns)(bodies, others)


def _of_one(convert: _Convert, data: bytes | None, attributes: Mapping[str, str] | None) -> Any:
    array = convert(binaries([data]), maps([attributes], TEXTS.arrow))
    return _python(array[0].as_py(), array.type)


def _python(value: Any, kind: pa.DataType) -> Any:
    """Return `value` with dictionaries for maps, of which Arrow makes lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_list(kind):
        return [_python(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {part.name: _python(value[part.name], part.type) for part in kind}
    return value


_Opened = Callable[[bytes, Mapping[str, str]], inlongmsg.Inside]


def _open(zone: tzinfo, most: int, pack: bytes, _: Mapping[str, str]) -> inlongmsg.Inside:
    return inlongmsg.unpack(pack, zone, most)


def _open_any(zone: tzinfo, most: int, body: bytes, attributes: Mapping[str, str]) -> inlongmsg.Inside:
    from tubemq_spark.source.inlong.message_objs import open_message  # only this format needs its protobuf

    return open_message(body, attributes, zone, most, 0)


def _unpacked(opened: _Opened, keeps_null: bool, packs: pa.Array, attributes: pa.Array) -> pa.Array:
    rows = PackRows(sys.maxsize, sys.maxsize)
    sizes: list[int | None] = []
    for number, (pack, own) in enumerate(zip(packs, attributes, strict=True)):
        before, is_known = len(rows), pack.is_valid
        try:
            for head, bodies in opened(pack.as_py(), dict(own.as_py() or ())) if is_known else ():
                rows.add(number, len(rows) - before, head, bodies, 0)
        except ProtocolError:
            if not keeps_null:
                raise
            is_known = False
        sizes.append(len(rows) - before if is_known else None)
    inside = rows.columns(_INSIDE, {})
    return lists(pa.StructArray.from_arrays(list(inside.values()), names=list(inside)), sizes)


def _csv(fields: Callable[[str], list[str]], charset: str, data: pa.Array, _: pa.Array) -> pa.Array:
    rows = [None if one is None else fields(one.decode(charset, "replace")) for one in data.to_pylist()]
    return lists(
        texts(list(chain.from_iterable(row or () for row in rows))), [None if row is None else len(row) for row in rows]
    )


def _kv(entries: Callable[[str], dict[str, str]], charset: str, data: pa.Array, _: pa.Array) -> pa.Array:
    rows = [None if one is None else entries(one.decode(charset, "replace")) for one in data.to_pylist()]
    return maps(rows, TEXTS.arrow)


def _tokens(delimiters: Sequence[str], escape: str, quote: str) -> re.Pattern[str]:
    """Return an expression whose group `sign` is a delimiter; otherwise its last group is a part of the text."""
    signs = [*delimiters, *filter(None, (escape, quote))]
    if any(len(sign) != 1 for sign in signs) or len(set(signs)) < len(signs):
        raise ConfigError("delimiters, escape and quote are single characters, which differ")
    escaped = f"|{re.escape(escape)}(.?)" if escape else ""
    quoted = "|{0}([^{0}]*){0}?".format(re.escape(quote)) if quote else ""
    return re.compile(
        f"(?P<sign>[{re.escape(''.join(delimiters))}])|([^{re.escape(''.join(signs))}]+){escaped}{quoted}", re.DOTALL
    )


# wire: InLong's `StringUtils.splitCsv` and `splitKv`


def _fields(tokens: re.Pattern[str], delimiter: str, others: str, text: str) -> list[str]:
    if not any(sign in text for sign in others):
        return text.split(delimiter)
    fields = [""]
    for found in tokens.finditer(text):
        if found["sign"]:
            fields.append("")
        else:
            fields[-1] += found[found.lastindex or 0]
    return fields


def _entries(tokens: re.Pattern[str], entry: str, kv: str, text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    key = last = None
    value = ""
    for found in tokens.finditer(text):
        sign = found["sign"]
        if sign == kv and key is None:
            key, value = value, ""
        elif sign == entry and key is not None and text[found.end() : found.end() + 1] != entry:
            entries[key], last, key, value = value, key, None, ""
        else:
            value += found[found.lastindex or 0]
    if key is not None:
        entries[key] = value
    elif last is not None:
        entries[last] += entry + value
    return entries
