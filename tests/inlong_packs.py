# SPDX-License-Identifier: Apache-2.0
"""Write packs of InLong, which tests read back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import pyarrow as pa

Messages = Sequence[tuple[str, bytes]]
"""Attributes and body."""


def sized(parts: Iterable[bytes], size: str = ">I") -> bytes:
    return b"".join(struct.pack(size, len(part)) + part for part in parts)


def java_text(text: str) -> bytes:
    """Write a text as Java's `writeUTF` does, with another size field."""
    units = [bytes(unit) for unit in zip(*[iter(text.encode("utf-16-le", "surrogatepass"))] * 2, strict=True)]
    coded = (unit.decode("utf-16-le", "surrogatepass").encode("utf-8", "surrogatepass") for unit in units)
    return b"".join(coded).replace(b"\0", b"\xc0\x80")


def snappy(data: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed


def frame(version: int, inside: bytes) -> bytes:
    mark = bytes([0x0F, version])
    return mark + inside + mark


def header(version: int, groups: int) -> bytes:
    return (
        struct.pack(">q", 7)[: 8 * (version > 0)]
        + struct.pack(">i", 9)[: 4 * (version > 1)]
        + struct.pack(">I", groups)
    )


def group(version: int, attributes: str, data: bytes, compressed: bool = False) -> bytes:
    count = struct.pack(">I", 3) if version == 2 else b""
    data = bytes([compressed]) + (snappy(data) if compressed else data)
    return sized([java_text(attributes)], ">H") + count + sized([data])


def pack_grouped(version: int, messages: Messages, compressed: bool = False) -> bytes:
    """Version 0, 1 or 2, each message in a group of its own."""
    groups = [group(version, attributes, sized([body]), compressed) for attributes, body in messages]
    return frame(version, header(version, len(groups)) + b"".join(groups))


def with_attributes(messages: Messages) -> bytes:
    return sized(part for attributes, body in messages for part in (body, attributes.encode()))


def pack_3(common: str, blocks: Sequence[Messages], compressed: bool = False) -> bytes:
    data = sized(with_attributes(messages) for messages in blocks)
    return frame(3, header(3, 1) + group(3, common, data, compressed))


def pack_4(
    data: bytes,
    attributes: str = "",
    *,
    flags: int = 4,
    kind: int = 7,
    ids: tuple[int, int] = (1, 2),
    seconds: int = 0,
    count: int = 1,
    compressed: bool = False,
) -> bytes:
    if compressed:
        data, kind = snappy(data), kind | 0x20
    fields = struct.pack(">BHHHIHI", kind, *ids, flags, seconds, count, 99)
    text = attributes.encode()
    return frame(4, sized([fields + sized([data]) + sized([text], ">H") + b"\xee\x01"]))


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: bytes | int) -> bytes:
    """Write a field of protobuf."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message_obj(time: int, body: bytes, params: Iterable[tuple[str, str]] = (), source: bytes = b"127.0.0.1") -> bytes:
    """Write a `MessageObj` of InLong's ProxySdk.proto."""
    entries = (field(1, key.encode()) + field(2, value.encode()) for key, value in params)
    return field(1, time) + field(2, source) + field(3, body) + b"".join(field(4, entry) for entry in entries)


def message_objs(objs: Iterable[bytes]) -> bytes:
    return b"".join(field(1, one) for one in objs)
