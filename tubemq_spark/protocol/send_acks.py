# SPDX-License-Identifier: Apache-2.0
"""Recognises the usual acknowledgements of sends, which differ only in a few numbers, without parsing them.

The plain path decodes a frame, the envelope and the broker's answer, and defines what an acknowledgement is. Of each
one that it accepts in standard framing, an `AckShape` is made. It masks the bits that may differ without another
meaning: the digits of the answer's text, and the numbers of the fields that say where the message is stored. All other
bits must be equal, and the serial number must be the expected one. So whatever has this shape is an acknowledgement for
the plain path, too.
"""

from __future__ import annotations

from typing import NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Response, decode_reply, encode_reply, parse
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.varint import read_varint

_SERIAL_NO = slice(4, 8)  # in a frame
_SIZE = slice(8, 16)  # the number of blocks, which is one, and the size of the block
_EQUAL, _KIND = 0xFF, 0x80  # masks of a byte; the high bit marks a text's other characters, and where a varint ends
SendAck = broker_pb.SendMessageResponseB2P
_FIELDS = SendAck.DESCRIPTOR.fields_by_name
_TEXT = _FIELDS["errMsg"].number << 3 | 2  # tags
_NUMBERS = frozenset(_FIELDS[name].number << 3 for name in ("messageId", "appendTime", "appendOffset"))
_MAX_VARINT = 9  # bytes; ten may not fit into 64 bits
_MAX_SIZES, _MAX_SHAPES = 64, 8  # shapes of one size: those of stores whose numbers have different lengths


class AckShape(NamedTuple):
    """A frame of `size` bytes, read as a big-endian number, is an acknowledgement of the send with serial number n if
    its bits in `mask` are those of `pattern + (n << shift)`. The answer begins at byte `answer_at`."""

    size: int
    mask: int
    pattern: int
    shift: int
    answer_at: int


class AckShapes:
    """The shapes of the acknowledgements that one connection has received."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._shapes: dict[bytes, list[AckShape]] = {}  # by the bytes `_SIZE` of their frames

    def count(self, data: bytes, at: int, first: int, most: int, answers: list[SendAck] | None) -> tuple[int, int]:
        """Return how many frames from `at` on in `data` are acknowledgements, and where they end.

        Their serial numbers are `first` and those that follow it, `most` at most. Add the answers to `answers`.
        """
        found = 0
        while found < most:
            for size, mask, pattern, shift, answer_at in self._shapes.get(data[at + _SIZE.start : at + _SIZE.stop], ()):
                wanted = pattern + (first + found << shift)
                if int.from_bytes(data[at : at + size], "big") & mask == wanted:
                    if answers is not None:
                        answers.append(SendAck.FromString(data[at + answer_at : at + size]))
                    at += size
                    found += 1
                    break
            else:
                break
        return found, at

    def learn(self, body: bytes) -> SendAck | None:
        """Return the answer if `body` is the envelope of an acknowledgement, and remember its shape."""
        try:
            reply = decode_reply(body, Method.SEND_MESSAGE)
            if not isinstance(reply, Response) or reply.method != Method.SEND_MESSAGE:
                return None
            answer = parse(SendAck, reply.data)
        except ProtocolError:
            return None
        if answer.errCode != ErrCode.SUCCESS:
            return None
        is_usual = self._framing is Framing.STANDARD and encode_reply(reply) == body
        if is_usual and (shape := _shape(body, reply.data)) is not None:
            if len(self._shapes) >= _MAX_SIZES:
                self._shapes.clear()
            shapes = self._shapes.setdefault(encode_frame(0, body, Framing.STANDARD)[_SIZE], [])
            shapes.insert(0, shape)
            del shapes[_MAX_SHAPES:]
        return answer


def _shape(body: bytes, data: bytes) -> AckShape | None:
    """Return the shape of an acknowledgement; `data` is the answer, at the end of `body`."""
    same = bytearray([_EQUAL]) * len(data)
    at = 0
    while at < len(data):
        tag, start = read_varint(data, at)
        value, end = read_varint(data, start)
        if tag == _TEXT:
            start, end = end, end + value
            if data[start:end].isascii():
                same[start:end] = bytes([_KIND]) * value
        elif tag in _NUMBERS and end - start <= _MAX_VARINT:
            same[start:end] = bytes([_KIND]) * (end - start)
        elif tag & 7:
            return None  # no field of an answer has another wire type
        at = end
    frame = encode_frame(0, body, Framing.STANDARD)
    mask = int.from_bytes(bytes([_EQUAL]) * (len(frame) - len(data)) + same, "big")
    shift = 8 * (len(frame) - _SERIAL_NO.stop)
    return AckShape(len(frame), mask, int.from_bytes(frame, "big") & mask, shift, len(frame) - len(data))
