# SPDX-License-Identifier: Apache-2.0
"""Opens messages of InLong's DataProxy by their own attributes (wire: InLong's `MessageDeserializer`).

    version       0 plain body, 1 protobuf (V1), 2 InLongMsg (V0, see `inlongmsg.py`)
    msgEnType     if there is no `version`: the same numbers, or V0 or V1
    compressType  of V1: 0 or NONE, 1 or INLONG_GZ, 2 or INLONG_SNAPPY; none if it is missing

A V1 body is a `MessageObjs` of proto/ProxySdk.proto.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from itertools import groupby
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.message import MAX_ATTRIBUTES
from tubemq_spark.protocol.pb.ProxySdk_pb2 import MessageObj
from tubemq_spark.protocol.varint import read_varint
from tubemq_spark.source.arrow_arrays import binaries, slices
from tubemq_spark.source.inlong.inlongmsg import (
    ATTRIBUTE_BYTES,
    MESSAGE_BYTES,
    Head,
    Inside,
    microseconds,
    since_1970,
    unpack,
)

_PLAIN, _V1, _V0 = 0, 1, 2
_DEFAULTS = {"raw": _PLAIN, "inlongmsg": _V0}  # by the value of option `inlongDefaultFormat`
_TYPES = {"V0": _V0, "V1": _V1}  # texts that DataProxy 1.4 to 1.7 wrote
_CODEC_NAMES = {"NONE": 0, "INLONG_GZ": 1, "INLONG_SNAPPY": 2}  # since DataProxy 1.13
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")

_GZIP, _GZIP_MAGIC = 31, b"\x1f\x8b\x08"
_MSGS = 1 << 3 | 2  # the tag in `MessageObjs`
_TIME, _IP, _BODY, _PARAMS = 1 << 3, 2 << 3 | 2, 3 << 3 | 2, 4 << 3 | 2  # tags in `MessageObj`
_INCOMPLETE = "its MessageObjs have a message without msgTime, sourceIp or body"
_FIXED = {1: 8, 5: 4}  # bytes of a field by its wire type
_MAX_VARINT = 10  # bytes


def open_message(
    body: bytes, own: Mapping[str, str], zone: tzinfo, most: int, each: int, default: str = "inlongmsg"
) -> Inside:
    """Return the messages of a body with the attributes `own`; other parameters as for `inlongmsg.unpack`.

    `default` is what the body is if no attribute says so: `raw` or `inlongmsg`. Raise `ProtocolError` before the first
    message.
    """
    version = _version(own)
    if version is None:
        version = _DEFAULTS[default]
    if version == _V0:
        return unpack(body, zone, most, each)
    group, stream = own.get("inlongGroupId"), own.get("inlongStreamId")
    if version == _PLAIN:
        return iter([(Head.of(own, group, stream, since_1970(own.get("msgTime", ""))), binaries([body]))])
    return _messages(_split(_plain(body, own.get("compressType", "0"), most), most, each), group, stream)


def _version(own: Mapping[str, str]) -> int | None:
    """Return what the attributes say that the body is, None if they do not."""
    if (text := own.get("version")) is not None:
        found = _number(text)
    elif (text := own.get("msgEnType")) is not None:
        found = _TYPES.get(text, _number(text))
    else:
        return None
    if found not in (_PLAIN, _V1, _V0):
        raise ProtocolError(f"its InLong version '{shown(text, 40)}' is none of 0 (plain), 1 (protobuf), 2 (InLongMsg)")
    return found


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _plain(body: bytes, compression: str, most: int) -> bytes:
    number = _CODEC_NAMES.get(compression, _number(compression))
    match number:
        case 0:
            return body
        case 1:
            return _gunzip(body, most)
        case 2:
            return decompress("snappy", body, most)
        case _:
            raise ProtocolError(
                f"its compressType '{shown(compression, 40)}' is none of {', '.join(_CODEC_NAMES)}, 0 to 2"
            )


def _gunzip(data: bytes, most: int) -> bytes:
    """Return the decompressed data. As in Java, other bytes behind its end are ignored."""
    unpacker = zlib.decompressobj(_GZIP)
    try:
        plain = unpacker.decompress(data, most + 1)
    except zlib.error:
        raise ProtocolError("it has damaged gzip data") from None
    if len(plain) > most:
        raise ProtocolError(f"it becomes larger than {most} bytes, which option 'maxUnpackedBytes' limits")
    # Java would read another member, but DataProxy sends none.
    if not unpacker.eof or unpacker.unused_data.startswith(_GZIP_MAGIC):
        raise ProtocolError("it has damaged gzip data, or more than one member")
    return plain


class _Messages(NamedTuple):
    """The messages of a `MessageObjs`: the body of message n is `data[starts[n]:ends[n]]`. `rests[n]` is the encoded
    `MessageObj` without it."""

    data: bytes
    starts: list[int]
    ends: list[int]
    rests: list[bytes]


def _split(data: bytes, most: int, each: int) -> _Messages:
    """Divide a `MessageObjs`. Raise `ProtocolError` unless all its messages can be read.

    Most messages of a pack differ in their bodies only, so each other part is decoded once.
    """
    found = _Messages(data, [], [], [])
    sizes: dict[bytes, int] = {}  # of the attributes in a rest
    room = most
    try:
        for _, begin, end in _fields(data, 0, len(data), _MSGS):
            start, stop, rest = _usual_body(data, begin, end) or _last_body(data, begin, end)
            if (size := sizes.get(rest)) is None:
                obj = _decoded(rest)
                if obj.HasField("body"):  # another one
                    start, stop, rest = _last_body(data, begin, end)
                size = sizes[rest] = ATTRIBUTE_BYTES * len(obj.params)
            room -= MESSAGE_BYTES + each + end - begin + size
            if room < 0:
                raise ProtocolError(
                    f"its MessageObjs take more than {most} bytes, the limit of option 'maxUnpackedBytes'"
                )
            found.starts.append(start)
            found.ends.append(stop)
            found.rests.append(rest)
    except (DecodeError, IndexError):
        raise ProtocolError("its body is not a whole MessageObjs, the protobuf of version 1") from None
    return found


def _usual_body(data: bytes, at: int, end: int) -> tuple[int, int, bytes] | None:
    """Return where the body of the `MessageObj` at `at` begins and ends, and the rest; None if the fields do not come
    in the order of their numbers."""
    begin = at
    if data[at] != _TIME:
        return None
    at += 1
    while data[at] >= 0x80:
        at += 1
    at += 1
    if data[at] != _IP or data[at + 1] >= 0x80:
        return None
    at += 2 + data[at + 1]
    if data[at] != _BODY:
        return None
    size, start = _varint(data, at + 1)
    stop = start + size
    return None if stop > end else (start, stop, data[begin:at] + data[stop:end])


def _last_body(data: bytes, begin: int, end: int) -> tuple[int, int, bytes]:
    """Return the same of any `MessageObj`. Of several bodies the last one counts."""
    bodies = list(_fields(data, begin, end, _BODY))
    if not bodies:
        raise ProtocolError(_INCOMPLETE)
    ends = [begin, *(stop for *_, stop in bodies)]
    begins = [*(field for field, *_ in bodies), end]
    rest = b"".join(data[start:stop] for start, stop in zip(ends, begins, strict=True))
    return *bodies[-1][1:], rest


def _decoded(rest: bytes) -> MessageObj:
    # A byte that may be the tag of an attribute is rare, except in texts.
    params = _fields(rest, 0, len(rest), _PARAMS)
    if rest.count(_PARAMS) >= MAX_ATTRIBUTES and sum(1 for _ in params) > MAX_ATTRIBUTES:
        raise ProtocolError(f"its MessageObjs have a message of more than {MAX_ATTRIBUTES} attributes")
    found = MessageObj.FromString(rest)
    if not (found.HasField("msgTime") and found.HasField("sourceIp")):
        raise ProtocolError(_INCOMPLETE)
    return found


def _fields(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield where fields of bytes begin, and where their values begin and end. Raise `IndexError` for data that is not
    whole."""
    while at < end:
        begin = at
        tag, at = _varint(data, at)
        start = at
        if not 8 <= tag < 1 << 32:
            raise IndexError  # fields are numbered from 1
        if tag & 7 == 2:
            size, start = _varint(data, at)
            at = start + size
        elif tag & 7 == 0:
            _, at = _varint(data, at)
        else:
            at += _FIXED.get(tag & 7, end + 1)
        if at > end:
            raise IndexError
        if tag == wanted:
            yield begin, start, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, end = read_varint(data, at)
    if end - at > _MAX_VARINT:
        raise IndexError
    return number, end


def _messages(found: _Messages, group: str | None, stream: str | None) -> Inside:
    """Yield the messages, neighbours that differ in their bodies only together. Heads take much more memory than their
    bytes, so they are made one by one."""
    bodies = slices(found.data, np.array(found.starts, np.int64), np.array(found.ends, np.int64))
    at = 0
    for rest, same in groupby(found.rests):
        end = at + sum(1 for _ in same)
        time, attributes = _head(MessageObj.FromString(rest))
        yield Head.of(attributes, group, stream, time), bodies[at:end]
        at = end


def _head(obj: MessageObj) -> tuple[int | None, dict[str, str]]:
    """Return the time and the attributes of a message; the last of equal keys counts."""
    attributes = {one.key.decode(errors="replace"): one.value.decode(errors="replace") for one in obj.params}
    return microseconds(obj.msgTime), attributes
