# SPDX-License-Identifier: Apache-2.0
"""Encodes a row's cells as the parts of a message (the serializer); names the column of a row that cannot be sent.

The body is what a value format makes of the row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.client.clock import SYSTEM_CLOCK
from tubemq_spark.errors import ConfigError
from tubemq_spark.peer_text import quoted
from tubemq_spark.protocol.message import (
    COMPRESSION_KEY,
    EPOCH,
    MAX_ATTRIBUTES,
    MAX_HEADER,
    encode_attributes,
    format_msg_time,
    known_type,
)
from tubemq_spark.protocol.stamp import DIGEST_DIGITS, RESERVED
from tubemq_spark.sink.schema import NOT_UTF8, BadRowError, Cells, Texts
from tubemq_spark.sink.value_format import ValueFormat

_log = logging.getLogger(__name__)


class EncodedRow(NamedTuple):
    """The parameters of `Producer.send`; `attributes` has no stamp yet, and not the `format_attributes`, by which
    readers open the body."""

    topic: str
    body: bytes
    attributes: bytes
    msg_type: str | None
    msg_time: str
    key: bytes | None
    target: tuple[int, int] | None
    format_attributes: bytes = b""


class RowEncoder:
    """Encodes the rows of one task."""

    def __init__(self, topic: str | None, form: ValueFormat, *, stamped: bool) -> None:
        """`topic` is the option, which wins over a row's topic. Rows that are `stamped` cannot have such attributes.

        The encoder `is_raw` if bodies are the rows' values."""
        self._topic = topic
        self._form = form
        self.is_raw = form == ValueFormat()
        self._last_attribute = b"," + form.compression_attribute if form.compression_attribute else b""
        self._stamped = stamped
        # In texts of attributes: an empty key, or one that may be reserved.
        self._unusual = "\n=", ",=", "$msg", "spark_" if stamped else COMPRESSION_KEY

    def encode(self, cells: Cells) -> EncodedRow:
        """Return the parts of the row's message. Raise `BadRowError` for a row that no topic accepts."""
        format_attributes = b""
        value, row_topic, attributes, msg_type, msg_time, key, broker_id, partition, *_, corrupt = cells
        topic = row_topic if self._topic is None else self._topic
        column = "value"
        try:
            if corrupt:
                column = "corrupt"
                raise ConfigError(
                    "it is true: the source could not decode this message, so its bytes are not a body; leave such "
                    "rows out"
                )
            if value is None:
                raise ConfigError("it is null, which TubeMQ does not have: write an empty value, or leave the row out")
            column = "topic"
            if not topic:
                found = "empty" if topic == "" else "null"
                raise ConfigError(f"it is {found}, and option 'topic' is not given: write a topic's name, or give that")
            topic.isascii() or topic.encode()  # otherwise no server could be asked for it
            target = None
            if broker_id is not None or partition is not None:
                column = "partition" if partition is None else "broker_id"
                if broker_id is None or partition is None:
                    raise ConfigError("it is null, but the other half of the target is not; give both, or neither")
                target = (broker_id, partition)
            column = "msg_time"
            if msg_time is None:
                msg_time = int(SYSTEM_CLOCK.time() // 60)
            time_text = msg_time if isinstance(msg_time, str) else minutes_text(msg_time)
            encoded = _time_attribute(time_text)
            column, msg_type = "msg_type", known_type(msg_type)
            if not self.is_raw:
                format_attributes = self._form.attributes(value, cells)
                value = self._form.encode(value, cells)
                if msg_type is None:
                    column, msg_type = self._form.msg_type(cells)
            if msg_type is not None:
                encoded = _type_attribute(msg_type) + b"," + encoded
            encoded += self._last_attribute
            if attributes:
                column = "attributes"
                encoded += b"," + self._own_attributes(dict(attributes))
        except UnicodeEncodeError:
            raise BadRowError(column, NOT_UTF8) from None
        except ConfigError as error:
            raise BadRowError(column, str(error)) from None
        return EncodedRow(topic, value, encoded, msg_type, time_text, key, target, format_attributes)

    def _own_attributes(self, attributes: Mapping[str, str | None]) -> bytes:
        if replaced := self._form.replaced_attributes:
            attributes = {key: text for key, text in attributes.items() if key not in replaced}
        texts = {key: text for key, text in attributes.items() if text is not None}
        if len(texts) < len(attributes):
            key = next(key for key, text in attributes.items() if text is None)
            raise ConfigError(
                f"attribute {quoted(key)} is null; TubeMQ has only texts, so leave it out, for example with map_filter"
            )
        if self._stamped and (reserved := sorted(RESERVED & texts.keys())):
            raise ConfigError(
                f"the attribute {', '.join(reserved)} is reserved where rows are stamped; drop it from the map first, "
                "or leave out option 'stampRows'"
            )
        return encode_attributes(texts, None, None)

    def own_attributes(self, column: pa.MapArray) -> list[bytes] | None:
        """Return the attributes of each row as `encode` adds them to its own, empty if the row has none. Return None if
        `encode`, which is the specification, may refuse a row."""
        ends = column.offsets
        used = slice(ends[0].as_py(), ends[-1].as_py())
        keys, texts = (part[used].cast(pa.binary()) for part in (column.keys, column.items))
        pairs = pc.binary_join_element_wise(keys, texts, b"=")
        of_rows = pa.ListArray.from_arrays(pc.subtract(ends, ends[0]), pairs)
        rows: list[bytes] = pc.if_else(column.is_valid(), pc.binary_join(of_rows, b","), b"").to_pylist()
        codes = keys.dictionary_encode()
        keys_of_rows = pc.add(pc.multiply(pc.list_parent_indices(of_rows), len(codes.dictionary)), codes.indices)
        if None in rows or pc.count_distinct(keys_of_rows).as_py() < len(pairs):  # a null text, or a key twice in a row
            return None
        try:
            text = b"\n".join([b"", *rows]).decode()
        except UnicodeDecodeError:
            return None
        separators = len(pairs) - sum(map(bool, rows)), len(pairs)
        is_short = len(pairs) < MAX_ATTRIBUTES // 2 and len(text) < MAX_HEADER // 8
        is_usual = (text.count(","), text.count("=")) == separators and not any(part in text for part in self._unusual)
        return rows if is_short and is_usual else None


def digest_of(cells: Cells) -> str:
    """Return 16 hex digits of all that a row has: equal for equal rows, in every attempt."""
    *others, _ = cells._replace(
        value=None, attributes=_items(cells.attributes), inlong_attributes=_items(cells.inlong_attributes)
    )  # without `corrupt`, because such rows are not sent
    digest = blake2b(ascii(tuple(others)).encode(), digest_size=DIGEST_DIGITS // 2)
    digest.update(cells.value or b"")
    return digest.hexdigest()


def _items(attributes: Texts) -> list[tuple[str, str | None]] | None:
    return None if attributes is None else sorted(dict(attributes).items())


# Most rows of a task have few different types and times.


@lru_cache(maxsize=4096)
def _type_attribute(msg_type: str) -> bytes:
    if "#" in msg_type:  # Java's client sends it, too
        _log.warning(
            "[type-not-filtered] messages with msg_type %r are written, but no reader can filter by it, because the "
            "master separates topic and types with '#'",
            msg_type,
        )
    return encode_attributes(None, msg_type, None)


@lru_cache(maxsize=4096)
def _time_attribute(msg_time: str) -> bytes:
    return encode_attributes(None, None, msg_time)


@lru_cache(maxsize=4096)
def minutes_text(minutes: int) -> str:
    """Return minutes since the epoch as `yyyyMMddHHmm`; raise `ConfigError` outside the years 1 to 9999."""
    try:
        return format_msg_time(EPOCH + timedelta(minutes=minutes))
    except OverflowError:
        raise ConfigError(
            f"{minutes} minutes since 1970 are outside the years 1 to 9999: write a time within them, or null for the "
            "present time"
        ) from None
