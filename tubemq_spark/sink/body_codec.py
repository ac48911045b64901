"""What a row's body becomes on its way into a message: a pack of InLong, fewer bytes, or both.

The pack is InLongMsg of version 1, as DataProxy writes it for text protocols, with one message and without a
compression of its own: 0x0F 1 created(8) 1(4) size(2) attributes size(4) 0(1) size(4) body 0x0F 1, big-endian. wire:
InLongMsg.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tubemq_spark.compression import MAX_PLAIN, check_available, compress
from tubemq_spark.protocol.message import COMPRESSION_KEY
from tubemq_spark.sink.schema import Cells

_HEAD = struct.Struct(">BBqIH")
_GROUP = struct.Struct(">IBI")
_MARK = b"\x0f\x01"
_MAX_TEXT = 65_535  # bytes of attributes, as Java writes a text

# What the columns say, under the names of today and of old senders, and the number of messages.
_TOLD = frozenset({"groupId", "bid", "streamId", "tid", "dt", "t", "cnt"})


NO_TEXT = "it has bytes that are no UTF-8"


class CellError(ValueError):
    """A cell that cannot be sent; the text says why, `column` where."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True)
class BodyCodec:
    """What options `messageFormat` and `compression` ask for; `ConfigError` where pyarrow lacks the codec, which is no
    fault of a row."""

    message_format: str = "raw"
    compression: str = "none"

    def __post_init__(self) -> None:
        if self.compression != "none":
            check_available(self.compression)

    @property
    def attribute(self) -> bytes:
        """What stands behind a message's other attributes; empty for bodies as they are."""
        return b"" if self.compression == "none" else f"{COMPRESSION_KEY}={self.compression}".encode()

    def encode(self, value: bytes, cells: Cells) -> bytes:
        """The message's body, of the row's `value`. `CellError` for what no pack can hold."""
        body = _pack(value, cells) if self.message_format == "inlongmsg" else value
        if len(body) > MAX_PLAIN:  # however short it becomes, no reader would undo that
            raise CellError("value", f"it has {len(body)} bytes, and {MAX_PLAIN >> 20} MiB are the most; split it")
        return body if self.compression == "none" else compress(self.compression, body)

    def msg_type(self, cells: Cells) -> str | None:
        """The row's, of a pack else its stream, as DataProxy sends it."""
        return cells.inlong_stream if cells.msg_type is None and self.message_format == "inlongmsg" else cells.msg_type


def _pack(value: bytes, cells: Cells) -> bytes:
    created = time.time_ns() // 1_000_000 if cells.inlong_time is None else cells.inlong_time
    told = [
        f"groupId={_name('inlong_group', cells.inlong_group)}",
        f"streamId={_name('inlong_stream', cells.inlong_stream)}",
        f"dt={created}",
        "cnt=1",
        *_own(dict(cells.inlong_attributes or ())),
    ]
    text = _java_text("&".join(told))
    if len(text) > _MAX_TEXT:
        raise CellError("inlong_attributes", f"{len(text)} bytes of attributes; a pack has room for {_MAX_TEXT}")
    head = _HEAD.pack(*_MARK, created, 1, len(text))
    return b"".join((head, text, _GROUP.pack(1 + 4 + len(value), 0, len(value)), value, _MARK))


def _name(column: str, name: str | None) -> str:
    if not name:
        raise CellError(column, "it is null" if name is None else "it is empty")
    return _text(column, "the name", name)


def _own(attributes: Mapping[str, str | None]) -> list[str]:
    column = "inlong_attributes"
    parts = []
    for key, value in attributes.items():
        if key in _TOLD:
            continue
        if not key:
            raise CellError(column, "an attribute has an empty key")
        if value is None:
            raise CellError(column, f"attribute {key} is null; packs have only texts, leave it out")
        parts.append(f"{_text(column, 'the key', key)}={_text(column, f'attribute {key}', value)}")
    return parts


def _text(column: str, what: str, text: str) -> str:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise CellError(column, NO_TEXT) from None
    if "&" in text or "=" in text:
        raise CellError(column, f"{what} {text!r} contains '&' or '=', which InLong uses as separators")
    return text


def _java_text(text: str) -> bytes:
    """As `DataOutput.writeUTF`, without its size: zero in two bytes, and what is beyond U+FFFF as two surrogates of
    three bytes each."""
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = (unit for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le")))
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
