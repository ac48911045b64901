"""Encodes a row's value as a message body: as an InLong pack, compressed, or both.

The pack is an InLongMsg of version 1 with one message and without a compression of its own, as DataProxy writes it for
text protocols: 0x0F 1 created(8) 1(4) size(2) attributes size(4) 0(1) size(4) body 0x0F 1, big-endian. wire: InLongMsg.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tubemq_spark.compression import MAX_PLAIN, check_available, compress
from tubemq_spark.protocol.message import COMPRESSION_KEY
from tubemq_spark.sink.schema import NOT_UTF8, BadRowError, Cells

_HEAD = struct.Struct(">BBqIH")
_GROUP = struct.Struct(">IBI")
_MAGIC = b"\x0f\x01"
_MAX_ATTRIBUTES = 65_535  # bytes, the longest text that Java writes

# The attributes that columns give, under their present names and those of old senders, and the number of messages.
_SET_BY_COLUMNS = frozenset({"groupId", "bid", "streamId", "tid", "dt", "t", "cnt"})


@dataclass(frozen=True)
class BodyCodec:
    """The encoding that options `messageFormat` and `compression` choose.

    Raise `ConfigError` if pyarrow lacks the codec, which is no fault of a row.
    """

    message_format: str = "raw"
    compression: str = "none"

    def __post_init__(self) -> None:
        if self.compression != "none":
            check_available(self.compression)

    @property
    def attribute(self) -> bytes:
        """The attribute that names the compression, empty without one."""
        return b"" if self.compression == "none" else f"{COMPRESSION_KEY}={self.compression}".encode()

    def encode(self, value: bytes, cells: Cells) -> bytes:
        """Return the body for the row's `value`; raise `BadRowError` for a row that no pack can hold."""
        body = _pack(value, cells) if self.message_format == "inlongmsg" else value
        if len(body) > MAX_PLAIN:  # no reader decompresses a longer one
            raise BadRowError("value", f"it has {len(body)} bytes, but at most {MAX_PLAIN >> 20} MiB fit; split it")
        return body if self.compression == "none" else compress(self.compression, body)

    def msg_type(self, cells: Cells) -> str | None:
        """Return the row's message type; without one, a pack has its stream, as DataProxy sends it."""
        return cells.inlong_stream if cells.msg_type is None and self.message_format == "inlongmsg" else cells.msg_type


def _pack(value: bytes, cells: Cells) -> bytes:
    created = time.time_ns() // 1_000_000 if cells.inlong_time is None else cells.inlong_time
    attributes = [
        f"groupId={_name('inlong_group', cells.inlong_group)}",
        f"streamId={_name('inlong_stream', cells.inlong_stream)}",
        f"dt={created}",
        "cnt=1",
        *_own_attributes(dict(cells.inlong_attributes or ())),
    ]
    text = _java_text("&".join(attributes))
    if len(text) > _MAX_ATTRIBUTES:
        raise BadRowError("inlong_attributes", f"{len(text)} bytes of attributes, but a pack holds {_MAX_ATTRIBUTES}")
    head = _HEAD.pack(*_MAGIC, created, 1, len(text))
    return b"".join((head, text, _GROUP.pack(1 + 4 + len(value), 0, len(value)), value, _MAGIC))


def _name(column: str, name: str | None) -> str:
    if not name:
        raise BadRowError(column, "it is null" if name is None else "it is empty")
    return _text(column, "the name", name)


def _own_attributes(attributes: Mapping[str, str | None]) -> list[str]:
    column = "inlong_attributes"
    parts = []
    for key, value in attributes.items():
        if key in _SET_BY_COLUMNS:
            continue
        if not key:
            raise BadRowError(column, "an attribute has an empty key")
        if value is None:
            raise BadRowError(column, f"attribute {key} is null; packs have only texts, so leave it out")
        parts.append(f"{_text(column, 'the key', key)}={_text(column, f'attribute {key}', value)}")
    return parts


def _text(column: str, what: str, text: str) -> str:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadRowError(column, NOT_UTF8) from None
    if "&" in text or "=" in text:
        raise BadRowError(column, f"{what} {text!r} contains '&' or '=', which InLong uses as separators")
    return text


def _java_text(text: str) -> bytes:
    """Return `text` as `DataOutput.writeUTF` writes it, without its size.

    Zero takes two bytes; a character beyond U+FFFF is two surrogates of three bytes each.
    """
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = (unit for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le")))
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
