# SPDX-License-Identifier: Apache-2.0
"""Frames and envelopes, compared with simple decoders of whole bytes."""

from __future__ import annotations

import random
import struct
from typing import Literal, NamedTuple

from google.protobuf.message import DecodeError, Message

from tests.fuzz import corpus
from tests.fuzz.mutations import damaged
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import (
    MAX_FRAME_MAX_LIST_SIZE,
    MAX_PREFIXED_LENGTH,
    RPC_MAX_BUFFER_SIZE,
    RPC_PROTOCOL_BEGIN_TOKEN,
    Framing,
)
from tubemq_spark.protocol.envelope import (
    Failure,
    Response,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from tubemq_spark.protocol.frame import Frame, FrameDecoder
from tubemq_spark.protocol.pb import RPC_pb2 as rpc_pb
from tubemq_spark.protocol.varint import read_varint

_UNLIMITED = 1 << 62

Ending = Literal["whole", "incomplete", "no frame"]


class Stream(NamedTuple):
    """Bytes of a connection, in the pieces in which they come."""

    framing: Framing
    pieces: tuple[bytes, ...]


def make_frames(chance: random.Random) -> Stream:
    return _stream(chance, Framing.STANDARD)


def make_prefixed_frames(chance: random.Random) -> Stream:
    return _stream(chance, Framing.PREFIXED)


def _stream(chance: random.Random, framing: Framing) -> Stream:
    known = corpus.frames(framing)
    data = damaged(chance, b"".join(chance.choice(known) for _ in range(chance.choice((1, 1, 2, 3)))), known)
    if chance.random() < 0.02:  # the other framing
        data = damaged(chance, chance.choice(corpus.frames(Framing.PREFIXED)), known)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 6))))
    if chance.random() < 0.05:
        cuts = list(range(min(len(data), 100)))
    return Stream(framing, tuple(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)))


def accepts_frames(given: Stream) -> bool:
    """Compare the frames in all pieces, and whether the bytes end in a frame or cannot be one."""
    decoder = FrameDecoder(given.framing)
    found: list[Frame] = []
    ending: Ending = "whole"
    try:
        for piece in (*given.pieces, b""):
            found += decoder.feed(piece)
    except ProtocolError:
        ending = "no frame"
    wanted, wanted_ending = _frames_in(b"".join(given.pieces), given.framing)
    assert found == wanted
    assert ending == ("whole" if wanted_ending == "incomplete" else wanted_ending)
    assert decoder.is_inside_frame == (wanted_ending != "whole")
    return ending == "whole"


def _frames_in(data: bytes, framing: Framing) -> tuple[list[Frame], Ending]:
    found: list[Frame] = []
    at = 0
    while at < len(data):
        if framing is Framing.STANDARD:
            one = _frame_at(data, at, _UNLIMITED)
        elif len(data) - at < 4:
            one = "incomplete"
        else:
            (length,) = struct.unpack_from(">i", data, at)
            if not 12 <= length <= MAX_PREFIXED_LENGTH:
                one = "no frame"
            else:
                end = at + 4 + length
                one = _frame_at(data, at + 4, end)
                if not isinstance(one, str):
                    one = (one[0], end) if end <= len(data) else "incomplete"
        if isinstance(one, str):
            return found, one
        found.append(one[0])
        at = one[1]
    return found, "whole"


def _frame_at(data: bytes, start: int, limit: int) -> tuple[Frame, int] | Literal["incomplete", "no frame"]:
    """Return the standard frame at `start`, which ends at `limit` or before, and where it ends."""
    if len(data) - start < 4:
        return "incomplete"
    if data[start : start + 4] != RPC_PROTOCOL_BEGIN_TOKEN.to_bytes(4, "big"):
        return "no frame"
    if len(data) - start < 12:
        return "incomplete"
    serial_no, count = struct.unpack_from(">ii", data, start + 4)
    if not 1 <= count <= MAX_FRAME_MAX_LIST_SIZE:
        return "no frame"
    at = start + 12
    body = b""
    for _ in range(count):
        if at + 4 > limit:
            return "no frame"
        if len(data) - at < 4:
            return "incomplete"
        (size,) = struct.unpack_from(">i", data, at)
        if not 0 <= size <= RPC_MAX_BUFFER_SIZE:
            return "no frame"
        if at + 4 + size > limit:
            return "no frame"
        if len(data) - at - 4 < size:
            return "incomplete"
        body += data[at + 4 : at + 4 + size]
        at += 4 + size
    return Frame(serial_no, body), at


class Envelope(NamedTuple):
    """The body of a reply's frame, and the method of its request."""

    method: int
    body: bytes


def make_envelope(chance: random.Random) -> Envelope:
    known = corpus.replies()
    method, body = chance.choice(known)
    if chance.random() < 0.1:
        method = chance.choice(known)[0]
    return Envelope(method, damaged(chance, body, [other for _, other in chance.sample(known, 3)]))


def accepts_envelope(given: Envelope) -> bool:
    """Compare the usual path, which knows the method, and the one without it with protobuf's parser."""
    wanted = _reply_in(given.body)
    for method in (None, given.method):
        found: Response | Failure | None
        try:
            found = decode_reply(given.body, method)
        except ProtocolError:
            found = None
        assert found == wanted, f"{found} with method {method} instead of {wanted}"
    if wanted is not None:
        assert decode_reply(encode_reply(wanted)) == wanted
    return wanted is not None


def _reply_in(body: bytes) -> Response | Failure | None:
    """Return the reply in `body`, None if it is none."""
    header, done, failed = rpc_pb.ResponseHeader(), rpc_pb.RspResponseBody(), rpc_pb.RspExceptionBody()
    at = _part(body, 0, rpc_pb.RpcConnHeader())
    at = None if at is None else _part(body, at, header)
    if at is None:
        return None
    if header.status == rpc_pb.ResponseHeader.SUCCESS:
        return None if _part(body, at, done) is None else Response(done.method, done.data)
    if _part(body, at, failed) is None:
        return None
    return Failure(_text(failed.exceptionName), _text(failed.stackTrace), header.status == rpc_pb.ResponseHeader.FATAL)


def _part(body: bytes, at: int, message: Message) -> int | None:
    """Fill `message` from the delimited one at `at`, and return where it ends."""
    try:
        size, at = read_varint(body, at)
        if at + size > len(body):
            return None
        message.ParseFromString(body[at : at + size])
    except (IndexError, DecodeError):
        return None
    return at + size if message.IsInitialized() else None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def make_request(chance: random.Random) -> bytes:
    known = corpus.requests()
    return damaged(chance, chance.choice(known), chance.sample(known, 3))


def accepts_request(given: bytes) -> bool:
    """What a server of `testing` reads is the same when it is written again."""
    try:
        found = decode_request(given)
    except ProtocolError:
        return False
    assert decode_request(encode_request(found)) == found
    return True
