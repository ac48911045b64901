"""Encodes a row's cells as the parts of a message (the serializer); names the column of a row that cannot be sent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import encode_attributes, format_msg_time
from tubemq_spark.protocol.stamp import DIGEST_DIGITS, RESERVED
from tubemq_spark.sink.body_codec import BodyCodec
from tubemq_spark.sink.schema import NOT_UTF8, BadRowError, Cells

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class EncodedRow(NamedTuple):
    """The parameters of `Producer.send`; `attributes` has no stamp yet."""

    topic: str
    body: bytes
    attributes: bytes
    msg_type: str | None
    msg_time: str
    key: bytes | None
    target: tuple[int, int] | None


class RowEncoder:
    """Encodes the rows of one task."""

    def __init__(self, topic: str | None, body_codec: BodyCodec, *, stamped: bool) -> None:
        """`topic` is the option, which wins over a row's topic. Rows that are `stamped` cannot have such attributes."""
        self._topic = topic
        self._body_codec = body_codec
        self._is_raw = body_codec == BodyCodec()
        self._last_attribute = b"," + body_codec.attribute if body_codec.attribute else b""
        self._stamped = stamped

    def encode(self, cells: Cells) -> EncodedRow:
        """Return the parts of the row's message. Raise `BadRowError` for a row that no topic accepts."""
        value, row_topic, attributes, msg_type, msg_time, key, broker_id, partition, *_, corrupt = cells
        topic = row_topic if self._topic is None else self._topic
        column = "value"
        try:
            if corrupt:
                column = "corrupt"
                raise ConfigError("it is true: the source could not decode this message, so its bytes are no body")
            if value is None:
                raise ConfigError("it is null")
            column = "topic"
            if not topic:
                raise ConfigError("it is empty" if topic == "" else "it is null, and option 'topic' is not given")
            topic.isascii() or topic.encode()  # otherwise no server could be asked for it
            target = None
            if broker_id is not None or partition is not None:
                column = "partition" if partition is None else "broker_id"
                if broker_id is None or partition is None:
                    raise ConfigError("it is null, but the other half of the target is not; give both, or neither")
                target = (broker_id, partition)
            column = "msg_time"
            if msg_time is None:
                msg_time = int(time.time() // 60)
            time_text = msg_time if isinstance(msg_time, str) else _time_text(msg_time)
            encoded = _time_attribute(time_text)
            column = "msg_type"
            if not self._is_raw:
                value = self._body_codec.encode(value, cells)
                if msg_type is None and (msg_type := self._body_codec.msg_type(cells)) is not None:
                    column = "inlong_stream"
            if msg_type is not None:
                encoded = _type_attribute(msg_type) + b"," + encoded
            if attributes:
                column = "attributes"
                encoded += b"," + self._own_attributes(dict(attributes))
        except UnicodeEncodeError:
            raise BadRowError(column, NOT_UTF8) from None
        except ConfigError as error:
            raise BadRowError(column, str(error)) from None
        return EncodedRow(topic, value, encoded + self._last_attribute, msg_type, time_text, key, target)

    def _own_attributes(self, attributes: Mapping[str, str | None]) -> bytes:
        texts = {key: text for key, text in attributes.items() if text is not None}
        if len(texts) < len(attributes):
            nulls = [key for key, text in attributes.items() if text is None]
            raise ConfigError(f"attribute {', '.join(nulls)} is null; TubeMQ has only texts, so leave it out")
        if self._stamped and (reserved := sorted(RESERVED & texts.keys())):
            raise ConfigError(
                f"the attribute {', '.join(reserved)} is reserved where rows are stamped; drop it from the map first, "
                "or leave out option 'stampRows'"
            )
        return encode_attributes(texts, None, None)


def digest_of(cells: Cells) -> str:
    """Return 16 hex digits of all that a row has: equal for equal rows, in every attempt."""
    *others, _ = cells._replace(
        value=None, attributes=_items(cells.attributes), inlong_attributes=_items(cells.inlong_attributes)
    )  # without `corrupt`, because such rows are not sent
    digest = blake2b(ascii(tuple(others)).encode(), digest_size=DIGEST_DIGITS // 2)
    digest.update(cells.value or b"")
    return digest.hexdigest()


def _items(
    attributes: Mapping[str, str | None] | Sequence[tuple[str, str | None]] | None,
) -> list[tuple[str, str | None]] | None:
    return None if attributes is None else sorted(dict(attributes).items())


# Most rows of a task have few different types and times.


@lru_cache(maxsize=4096)
def _type_attribute(msg_type: str) -> bytes:
    return encode_attributes(None, msg_type, None)


@lru_cache(maxsize=4096)
def _time_attribute(msg_time: str) -> bytes:
    return encode_attributes(None, None, msg_time)


@lru_cache(maxsize=4096)
def _time_text(minutes: int) -> str:
    try:
        return format_msg_time(_EPOCH + timedelta(minutes=minutes))
    except OverflowError:
        raise ConfigError(f"{minutes} minutes since 1970 are outside the years 1 to 9999") from None
