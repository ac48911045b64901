# SPDX-License-Identifier: Apache-2.0
"""Decoder of InLongMsg packs. InLong's DataProxy packs many of its messages into one TubeMQ message.

A pack begins and ends with the same two bytes, 0x0F and its version. Numbers are big-endian.

    version 0       groups(4) group…
            1       created(8) groups(4) group…
            2, 3    created(8) messages(4) groups(4) group…
            4       size(4) type(1) groupId(2) streamId(2) flags(2) seconds(4) messages(2) uniq(4)
                    size(4) data size(2) attributes 0xEE01

    group   size(2) attributes, in version 2 messages(4), size(4) compressed(1) data; the size counts `compressed` too
    data    (size(4) body)…                                    version 0 to 2, and 4 without flag 1
            (size(4) body size(4) attributes)…                 version 4 with flag 1
            (size(4) (size(4) body size(4) attributes)…)…      version 3

Attributes are text, `key=value` joined by `&`; those of a group are in the modified UTF-8 of Java's `writeUTF`. `data`
may be compressed with raw snappy, which begins with the length of the plain data. Bodies become Arrow arrays at once,
without a Python object for each.
wire: InLongMsg, CodecBinMsg, InLongMsgUtils.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from itertools import groupby
from sys import getsizeof
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.compression import MAX_PLAIN, decompress, snappy_size
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.message import MAX_ATTRIBUTES, parse_msg_time
from tubemq_spark.source.arrow_arrays import numbers

MESSAGE_BYTES = 64  # memory that a message counts besides its body and attributes
ATTRIBUTE_BYTES = 16  # memory that an attribute counts besides its text
_GROUP_BYTES = 192  # memory that a group counts besides its attributes
_CACHED_HEADS = 1000
_SHORT_HEAD = 1000  # characters; longer heads are not cached

_MAGIC = 0x0F
_SNAPPY = 1
_OWN_ATTRIBUTES, _NAMED = 0x1, 0x4  # flags of version 4
_END_OF_BINARY = 0xEE01

_SHORT, _INT, _LONG = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_BINARY = struct.Struct(">IBHHHIHII")

_GROUP_KEYS, _STREAM_KEYS = ("groupId", "bid"), ("streamId", "tid")  # the names of today, and those of old senders
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999, the range of Spark


@dataclass(frozen=True)
class Head:
    """Attributes that some messages of a pack share."""

    attributes: Mapping[str, str]
    group: str | None
    stream: str | None
    time: int | None  # in microseconds since the epoch; None if the pack has none that can be read
    text: int = field(default=0, compare=False)  # characters of all attributes

    @classmethod
    def of(cls, attributes: Mapping[str, str], group: str | None, stream: str | None, time: int | None) -> Head:
        text = sum(map(len, attributes)) + sum(map(len, attributes.values()))
        return cls(attributes, group, stream, time, text)


Inside = Iterator[tuple[Head, pa.BinaryArray]]
"""The messages' bodies in their order; neighbours with the same head come together."""

_Join = Callable[[str, str], dict[str, str]]  # joins the attributes of a group and a message's own


def unpack(pack: bytes, zone: tzinfo = timezone.utc, most: int = MAX_PLAIN, each: int = 0) -> Inside:
    """Return the messages of a pack. `zone` is the time zone of the senders' `t` attributes.

    Raise `ProtocolError` before the first message for bytes that are not a whole pack, and for a pack that takes more
    than `most` bytes: its plain data, and for each message its attributes, `MESSAGE_BYTES` and `each`. The message
    counts in a pack are not checked, because senders write them as they like.
    """
    if len(pack) < 4 or pack[0] != _MAGIC or pack[1] > 4 or pack[-2:] != pack[:2]:
        raise ProtocolError(
            f"its body of {len(pack)} bytes is not an InLongMsg, which begins and ends with the same two bytes"
        )
    unpacking = _Unpacking(most, each)
    read = unpacking.binary if pack[1] == 4 else unpacking.grouped
    # A corrupt pack gives no messages at all, so the whole pack is decoded first. Heads take much more memory than
    # their text, so they are made later, one by one.
    blocks = list(read(_Bytes(pack, 2, len(pack) - 2), pack[1]))
    return _messages(blocks, zone)


class _Block(NamedTuple):
    """Messages that share the attributes `common`. `own` are those of each message, if they have some."""

    common: str
    bodies: pa.BinaryArray
    own: list[bytes] | None
    join: _Join


def _messages(blocks: Sequence[_Block], zone: tzinfo) -> Inside:
    cached: dict[tuple[str, bytes], Head] = {}  # neighbours often have the same head

    def head_of(common: str, own: bytes, join: _Join) -> Head:
        head = cached.get((common, own))
        if head is None:
            head = _head(join(common, own.decode("utf-8", "replace")), zone)
            if len(cached) < _CACHED_HEADS and head.text < _SHORT_HEAD:
                cached[common, own] = head
        return head

    for common, bodies, own, join in blocks:
        if own is None:
            yield head_of(common, b"", join), bodies
            continue
        at = 0
        for attributes, same in groupby(own):
            count = sum(1 for _ in same)
            yield head_of(common, attributes, join), bodies[at : at + count]
            at += count


class _Unpacking:
    """Decodes one pack, and counts the memory that its messages take."""

    def __init__(self, most: int, each: int) -> None:
        self._most = self._room = most
        self._each = each

    def grouped(self, pack: _Bytes, version: int) -> Iterator[_Block]:
        if version >= 1:
            pack.number(_LONG, "its time")
        if version >= 2:
            pack.number(_INT, "its number of messages")
        for _ in range(pack.number(_INT, "its number of groups")):
            common = _java_text(pack.sized(_SHORT, "attributes"))
            if version == 2:
                pack.number(_INT, "a group's number of messages")
            data = pack.sized(_INT, "a group")
            if not data or data[0] > _SNAPPY:
                raise ProtocolError("its InLongMsg has a group with an unknown compression")
            data = self._plain(data[1:], data[0])
            for block in [data] if version < 3 else self._parts(data).to_pylist():
                yield self._block(block, common, _joined, is_paired=version == 3)
        pack.ends()

    def binary(self, pack: _Bytes, version: int) -> Iterator[_Block]:
        total, kind, group, stream, flags, seconds, count, _, size = pack.fields(_BINARY, "its header")
        data = pack.take(size, "its data")
        text = pack.sized(_SHORT, "attributes").decode("utf-8", "replace")
        mark = pack.number(_SHORT, "its end")
        pack.ends()
        if mark != _END_OF_BINARY or total + _INT.size != pack.size:
            raise ProtocolError(f"its InLongMsg of version {version} has another size than its header says, or no end")
        of_header = {"dt": f"{seconds * 1000}", "cnt": f"{count}"}
        if not flags & _NAMED:
            of_header |= {"groupId": f"{group}", "streamId": f"{stream}"}

        def join(common: str, own: str) -> dict[str, str]:  # the pack's attributes win, as in InLong's own reader
            return _attributes(own) | _attributes(common) | of_header

        yield self._block(self._plain(data, kind >> 5), text, join, is_paired=bool(flags & _OWN_ATTRIBUTES))

    def _block(self, data: bytes, common: str, join: _Join, *, is_paired: bool) -> _Block:
        self._take(_GROUP_BYTES + getsizeof(common))  # also of a group without messages
        bodies, own = self._parts(data), None
        if is_paired:
            if len(bodies) % 2:
                raise ProtocolError("its InLongMsg has a message without its attributes")
            own = bodies.take(numbers(range(1, len(bodies), 2), pa.int32())).to_pylist()
            bodies = bodies.take(numbers(range(0, len(bodies), 2), pa.int32()))
            self._take(sum(map(self._cost_of_own, own)))
        self._take(len(bodies) * (len(common) + ATTRIBUTE_BYTES * common.count("&") + self._each))
        return _Block(common, bodies, own, join)

    def _cost_of_own(self, own: bytes) -> int:
        entries = own.count(b"&")
        if entries >= MAX_ATTRIBUTES:
            raise ProtocolError(f"its InLongMsg has a message of more than {MAX_ATTRIBUTES} attributes")
        return len(own) + ATTRIBUTE_BYTES * entries

    def _plain(self, data: bytes, compressed: int) -> bytes:
        if compressed == 0:
            return data
        if compressed != _SNAPPY:
            raise ProtocolError(f"its InLongMsg has the unknown compression {compressed}")
        self._take(snappy_size(data))
        return decompress("snappy", data, self._most)

    def _parts(self, data: bytes) -> pa.BinaryArray:
        """Return the parts of `data`, each of which has its size before it."""
        ends = [0]
        at, end = 0, len(data)
        append, unpack_from = ends.append, _INT.unpack_from
        try:
            for _ in range(self._room // MESSAGE_BYTES + 1):
                if at >= end:
                    break
                at += _INT.size + unpack_from(data, at)[0]
                append(at)
        except struct.error:
            raise ProtocolError("its InLongMsg ends within the size of a message") from None
        if at > end:
            start = ends[-2] + _INT.size
            raise ProtocolError(f"its InLongMsg announces {at - start} bytes of a message, but {end - start} are left")
        count = len(ends) - 1
        self._take(MESSAGE_BYTES * count)
        buffers = [None, pa.py_buffer(array("i", ends)), pa.py_buffer(data)]
        with_sizes = pa.BinaryArray.from_buffers(pa.binary(), count, buffers)
        return pc.binary_slice(with_sizes, _INT.size, end)

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise ProtocolError(
                f"its InLongMsg takes more than {self._most} bytes, the limit of option 'maxUnpackedBytes'"
            )


class _Bytes:
    """Reads the bytes of a pack in order, never beyond its end."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self._at = start
        self._end = end
        self.size = end - start

    def take(self, size: int, what: str) -> bytes:
        if size > self._end - self._at:
            raise ProtocolError(f"its InLongMsg announces {size} bytes of {what}, but {self._end - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def fields(self, kind: struct.Struct, what: str) -> tuple[int, ...]:
        return kind.unpack(self.take(kind.size, what))

    def number(self, kind: struct.Struct, what: str) -> int:
        return self.fields(kind, what)[0]

    def sized(self, kind: struct.Struct, what: str) -> bytes:
        return self.take(self.number(kind, f"the size of {what}"), what)

    def ends(self) -> None:
        if self._at < self._end:
            raise ProtocolError(f"its InLongMsg has {self._end - self._at} bytes after its end")


def _joined(common: str, own: str) -> dict[str, str]:
    return _attributes(common) | _attributes(own)


def _attributes(text: str) -> dict[str, str]:
    """As in InLong, text without `=` is a key with an empty value, and the last of equal keys wins."""
    return {key: value for key, _, value in (part.partition("=") for part in text.split("&") if part)}


def _head(attributes: dict[str, str], zone: tzinfo) -> Head:
    def first(keys: tuple[str, ...]) -> str | None:
        return next((attributes[key] for key in keys if key in attributes), None)

    time = _day_or_minute(attributes.get("t", "").strip(), zone)
    if time is None:
        time = since_1970(attributes.get("dt", "").strip())
    return Head.of(attributes, first(_GROUP_KEYS), first(_STREAM_KEYS), time)


def _day_or_minute(text: str, zone: tzinfo) -> int | None:
    """Parse `yyyyMMdd`, `yyyyMMddHH` or `yyyyMMddHHmm`; later characters are ignored, as in InLong."""
    for digits in (12, 10, 8):
        if len(text) >= digits:
            return parse_msg_time(text[:digits].ljust(12, "0"), zone)
    return None


def since_1970(text: str) -> int | None:
    """Parse milliseconds since 1970."""
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
        return None
    return microseconds(int(text))


def microseconds(milliseconds: int) -> int | None:
    """Return milliseconds since 1970 as microseconds, None if they are out of Spark's range."""
    return milliseconds * 1000 if _FIRST_MS <= milliseconds <= _LAST_MS else None


def _java_text(data: bytes) -> str:
    """Decode modified UTF-8: zero takes two bytes, a character beyond U+FFFF two surrogates of three bytes each."""
    try:
        if b"\xed" not in data and b"\xc0" not in data:
            return data.decode()
        text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ProtocolError("its InLongMsg has attributes that are not text") from None
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
