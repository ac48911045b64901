# SPDX-License-Identifier: Apache-2.0
"""What messages contain: payloads with attributes, stamps, compressed bodies, InLong packs."""

from __future__ import annotations

import io
import random
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import timezone
from typing import NamedTuple

from google.protobuf.message import DecodeError

from tests.fuzz import corpus
from tests.fuzz.mutations import damaged
from tests.inlong_packs import field, message_obj, message_objs, pack_3, pack_4, pack_grouped, sized, with_attributes
from tubemq_spark.compression import CODECS, compress, decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.message import (
    MAX_ATTRIBUTES,
    MAX_HEADER,
    MSG_TIME_KEY,
    MSG_TYPE_KEY,
    decode_attributes,
    encode_payload,
    split_payload,
)
from tubemq_spark.protocol.pb.ProxySdk_pb2 import MessageObjs
from tubemq_spark.protocol.stamp import Origin, Stamp, encode, parse
from tubemq_spark.source.inlong.inlongmsg import microseconds, unpack
from tubemq_spark.source.inlong.message_objs import open_message

_HEADERS = [
    b"$msgType$=blue,$msgTime$=202402291530,colour=gr\xc3\xbcn,size=",
    b"k=v",
    b",,=,a==b",
    b"k=1,k=2,$msgType$=a,$msgType$=b,$msgTime$=209913010000,$msgTime$=202402291530",
]


class Payload(NamedTuple):
    data: bytes
    flag: int


def make_payload(chance: random.Random) -> Payload:
    data, flag = encode_payload(chance.randbytes(chance.choice((0, 1, 4, 50))), chance.choice([b"", *_HEADERS]))
    return Payload(damaged(chance, data, _HEADERS), chance.choice((flag, flag, flag, 0, 1, 3, 128, -1)))


def accepts_payload(given: Payload) -> bool:
    wanted = _split(given)
    try:
        found = split_payload(given.data, given.flag)
    except ProtocolError:
        assert wanted is None
        return False
    assert found == wanted
    attributes = decode_attributes(found[0])
    parts = [part.partition("=")[::2] for part in found[0].decode("utf-8", "replace").split(",") if part]
    types = [value for key, value in parts if key == MSG_TYPE_KEY]
    assert attributes.msg_type == (types[0] if types else None)
    # The first of equal keys counts. Which texts are times is another test's.
    own = {key: value for key, value in reversed(parts) if key not in (MSG_TYPE_KEY, MSG_TIME_KEY)}
    known = {key: value for key, value in (attributes.own or {}).items() if key != MSG_TIME_KEY}
    assert known == own
    return True


def _split(given: Payload) -> tuple[bytes, bytes] | None:
    """Return attributes and body, None if the payload is corrupt."""
    if given.flag % 2 == 0:
        return b"", given.data
    if len(given.data) < 4:
        return None
    size = int.from_bytes(given.data[:4], "big", signed=True)
    if size < 0:
        return b"", given.data
    header, body = given.data[4 : 4 + size], given.data[4 + size :]
    if len(header) < size or size > MAX_HEADER or header.count(b",") >= MAX_ATTRIBUTES:
        return None
    return header, body


def make_attributes(chance: random.Random) -> bytes:
    origin = Origin(chance.choice(("query", "7f3a", "grün")), chance.randint(0, 99), chance.randint(0, 200))
    stamp = encode(origin) + str(chance.randrange(10**6)).encode()
    if chance.random() < 0.5:
        stamp += b",spark_digest=0123456789abcdef"
    own = chance.choice((b"", b"a=b,", b"spark_id=x,", b"xspark_id=y,", b"\xff=\xff,"))
    return damaged(
        chance, own + stamp + chance.choice((b"", b"", b",c=d", b",")), [stamp, b"spark_batch=", b",spark_row="]
    )


def accepts_stamp(given: bytes) -> bool:
    found = parse(given)
    assert found == _stamp_in(given)
    return found is not None


def _stamp_in(data: bytes) -> Stamp | None:
    """Return the stamp, found by splitting instead of by a pattern."""
    parts = data.split(b",")
    names = (b"spark_id=", b"spark_batch=", b"spark_partition=", b"spark_row=")
    for at in range(len(parts) - 3):
        four = parts[at : at + 4]
        if not all(part.startswith(name) for part, name in zip(four, names, strict=True)):
            continue
        name, *numbers = (part[len(key) :] for part, key in zip(four, names, strict=True))
        if not name or b"=" in name or not all(re.fullmatch(rb"-?[0-9]{1,18}", number) for number in numbers):
            continue
        digest = re.fullmatch(rb"spark_digest=([0-9a-f]{16})", parts[at + 4]) if at + 4 < len(parts) else None
        try:
            origin = Origin(name.decode(), int(numbers[0]), int(numbers[1]))
        except UnicodeDecodeError:
            return None
        return Stamp(origin, int(numbers[2]), digest[1].decode() if digest else None)
    return None


class Compressed(NamedTuple):
    """Bytes that may become `most` bytes at most."""

    codec: str
    data: bytes
    most: int


_PLAIN = [b"", b"x", b"a row " * 40, bytes(range(256)) * 20, bytes(3 << 20)]
_COMPRESSED = [(codec, compress(codec, plain)) for codec in CODECS for plain in _PLAIN]


def make_compressed(chance: random.Random) -> Compressed:
    codec, data = chance.choice(_COMPRESSED)
    if chance.random() < 0.02:
        codec = chance.choice((*CODECS, "unknown", ""))
    others = [other for _, other in chance.sample(_COMPRESSED, 2)]
    return Compressed(codec, damaged(chance, data, others), chance.choice((0, 10, 1000, 1 << 20, 4 << 20)))


def accepts_compressed(given: Compressed) -> bool:
    """The result never depends on the limit, and gzip's is zlib's."""
    try:
        plain = decompress(given.codec, given.data, given.most)
    except ProtocolError:
        return False
    assert len(plain) <= given.most
    assert decompress(given.codec, given.data, len(plain)) == plain
    if given.codec == "gzip":
        assert plain == zlib.decompress(given.data, 31)
    if plain:
        try:
            decompress(given.codec, given.data, len(plain) - 1)
        except ProtocolError:
            return True
        raise AssertionError("the limit has no effect")
    return True


_MESSAGES = [
    ("groupId=g&streamId=s&dt=1700000000000", b"body"),
    ("groupId=g&streamId=s&t=20240229", b""),
    ("", b"x" * 90),
]


def _known_packs() -> Iterator[bytes]:
    yield from corpus.packs()
    for compressed in (False, True):
        for version in (0, 1, 2):
            yield pack_grouped(version, _MESSAGES, compressed)
        yield pack_3("groupId=g", [_MESSAGES, [], _MESSAGES[:1]], compressed)
        yield pack_4(sized([b"one", b"two"]), "groupId=g&streamId=s", compressed=compressed)
        yield pack_4(with_attributes(_MESSAGES), flags=1, compressed=compressed)


_PACKS = list(_known_packs())
_MOST = 1 << 20  # bytes that a pack may take in memory


def make_pack(chance: random.Random) -> bytes:
    pack = chance.choice(_PACKS)
    # Only a pack that ends as it begins is read at all, so most damage is between the marks.
    if chance.random() < 0.9:
        return pack[:2] + damaged(chance, pack[2:-2], _PACKS) + pack[:2]
    return damaged(chance, pack, _PACKS)


def accepts_pack(given: bytes) -> bool:
    found: list[tuple[dict[str, str], bytes]] | None
    is_too_large = False
    try:
        found = [
            (dict(head.attributes), body) for head, bodies in unpack(given, most=_MOST) for body in bodies.to_pylist()
        ]
    except ProtocolError as error:
        found = None
        is_too_large = "maxUnpackedBytes" in str(error)
    assert is_too_large or found == _messages_in(given)
    return found is not None


_GROUPS = [bytes([tag]) for tag in range(3, 256, 8)]  # tags that begin one
_OBJS = [message_obj(5, b"body", [("k", "v"), ("k", "w")]), message_obj(-1, b""), field(1, 5) + field(9, b"more")]


def make_objs(chance: random.Random) -> bytes:
    known = [message_objs(chance.sample(_OBJS, chance.randint(0, 3))) for _ in range(3)]
    return damaged(chance, chance.choice(known), known)


def accepts_objs(given: bytes) -> bool:
    """The parser of protobuf is the specification, but groups, which nobody sends, are refused."""
    wanted: list[tuple[int, bytes, dict[str, str]]] | None = None
    with suppress(DecodeError):
        whole = MessageObjs.FromString(given)
        texts = [
            {one.key.decode(errors="replace"): one.value.decode(errors="replace") for one in each.params}
            for each in whole.msgs
        ]
        if whole.IsInitialized():
            wanted = [(each.msgTime, each.body, own) for each, own in zip(whole.msgs, texts, strict=True)]
    try:
        opened = open_message(given, {"version": "1"}, timezone.utc, _MOST, 0)
    except ProtocolError:
        assert wanted is None or any(tag in given for tag in _GROUPS)
        return False
    found = [(head.time, body, dict(head.attributes)) for head, bodies in opened for body in bodies.to_pylist()]
    assert wanted is not None
    assert found == [(microseconds(time), body, own) for time, body, own in wanted]
    return True


class _Read(io.BytesIO):
    """Raises `ValueError` at the end."""

    def take(self, size: int) -> bytes:
        data = self.read(size)
        if len(data) < size:
            raise ValueError
        return data

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    @property
    def left(self) -> int:
        return len(self.getbuffer()) - self.tell()

    def parts(self) -> Iterator[bytes]:
        while self.left:
            yield self.take(self.number(4))


def _messages_in(pack: bytes) -> list[tuple[dict[str, str], bytes]] | None:
    """Return attributes and bodies of a pack without any limit, None if it is none."""
    if len(pack) < 4 or pack[0] != 0x0F or pack[1] > 4 or pack[-2:] != pack[:2]:
        return None
    try:
        read = _Read(pack[2:-2])
        return list(_binary(read) if pack[1] == 4 else _grouped(read, pack[1]))
    except ValueError:
        return None


def _grouped(read: _Read, version: int) -> Iterator[tuple[dict[str, str], bytes]]:
    read.take((0, 8, 12, 12)[version])
    for _ in range(read.number(4)):
        coded = read.take(read.number(2)).replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        common = _pairs(coded.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        read.take(4 if version == 2 else 0)
        data = _plain(read.take(read.number(4)))
        if version < 3:
            yield from ((common, body) for body in _Read(data).parts())
            continue
        for block in _Read(data).parts():
            for body, own in _paired(block):
                yield common | _pairs(own), body
    if read.left:
        raise ValueError


def _binary(read: _Read) -> Iterator[tuple[dict[str, str], bytes]]:
    total, kind = read.number(4), read.number(1)
    if total != read.left + 1:
        raise ValueError
    group, stream, flags, seconds, count = (read.number(width) for width in (2, 2, 2, 4, 2))
    read.take(4)
    data = read.take(read.number(4))
    common = _pairs(read.take(read.number(2)).decode("utf-8", "replace"))
    if read.number(2) != 0xEE01 or read.left:
        raise ValueError
    common |= {"dt": str(seconds * 1000), "cnt": str(count)}
    if not flags & 4:
        common |= {"groupId": str(group), "streamId": str(stream)}
    data = _plain(bytes([kind >> 5]) + data)
    if flags & 1:
        yield from ((_pairs(own) | common, body) for body, own in _paired(data))
    else:
        yield from ((common, body) for body in _Read(data).parts())


def _plain(data: bytes) -> bytes:
    """Return data without compression; the first byte tells which one it has."""
    if not data or data[0] > 1:
        raise ValueError
    if data[0] == 0:
        return data[1:]
    try:
        return decompress("snappy", data[1:])
    except ProtocolError:
        raise ValueError from None


def _paired(data: bytes) -> Iterator[tuple[bytes, str]]:
    parts = list(_Read(data).parts())
    for body, own in zip(parts[::2], parts[1::2], strict=True):
        yield body, own.decode("utf-8", "replace")


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (part.partition("=") for part in text.split("&") if part)}
