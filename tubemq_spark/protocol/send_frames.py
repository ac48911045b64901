# SPDX-License-Identifier: Apache-2.0
"""Encodes the frames of many sends whose messages differ in nothing but their bodies.

`encode_frame`, `encode_request`, `encode_content` and `encode_payload` define the bytes of a send. Each of them copies
the body, which takes most of the time of a small send. Here the bytes before the body are cut from such a frame once
for each size, and each send adds only its serial number, its body, and what follows the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from tubemq_spark.protocol.constants import RPC_MAX_BUFFER_SIZE, Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, encode_request
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.message import CHECK_SUM_MASK, encode_content, encode_payload
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_NUMBERED = 8  # bytes of a frame up to the end of its serial number
_TOKEN = encode_frame(0, b"-", Framing.STANDARD)[: _NUMBERED - 4]
_MAX_AROUND = 64  # bytes of a frame's block around target and content: lengths, tags, method, timeout
_MAX_HEADS = 20_000  # of about 300 bytes each

Head = tuple[bytes, int]
"""What stands between serial number and body, and the size of the frame."""


class SendFrames:
    """Encodes sends whose messages have the same attributes, type and time, for connections with standard framing."""

    def __init__(self, attributes: bytes, msg_type: str | None, msg_time: str | None, timeout_ms: int) -> None:
        """`attributes`, `msg_type` and `msg_time` are those of `Producer.send`; `timeout_ms` that of `Request`."""
        self.attributes, self.msg_type, self.msg_time = attributes, msg_type, msg_time
        self._timeout_ms = timeout_ms
        prefix, flag = encode_payload(b"", attributes)
        self._prefix_sum = crc32(prefix)
        # The fields behind `data`, which has the body at its end. protobuf writes fields in the order of their numbers.
        self._fields = broker_pb.SendMessageRequestP2B(flag=flag, msgType=msg_type, msgTime=msg_time)
        self._around = _MAX_AROUND + len(encode_content(prefix, flag, msg_type, msg_time))
        self._heads: dict[bytes, dict[tuple[int, int], Head]] = {}  # by target; by the sizes of body and tail
        self._count = 0

    def fits(self, target: bytes, size: int) -> bool:
        """Whether the frame of a body of `size` bytes surely has one block; `encode` makes no others."""
        return self._around + len(target) + size <= RPC_MAX_BUFFER_SIZE

    def encode(self, first: int, targets: Sequence[bytes], bodies: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
        """Return the frames of `bodies` in parts to be joined, and the size of each frame.

        `first` is the serial number of the first one. `targets` are the results of `message.encode_target`, one for
        each body.
        """
        parts: list[bytes] = []
        sizes: list[int] = []
        fields, prefix_sum, heads_of = self._fields, self._prefix_sum, self._heads
        for serial_no, (target, body) in enumerate(zip(targets, bodies, strict=True), first):
            fields.checkSum = crc32(body, prefix_sum) & CHECK_SUM_MASK
            tail = fields.SerializePartialToString()
            try:
                head, size = heads_of[target][len(body), len(tail)]
            except KeyError:
                head, size = self._make_head(target, body, len(tail))
            parts += (_TOKEN, serial_no.to_bytes(4, "big"), head, body, tail)
            sizes.append(size)
        return parts, sizes

    def content(self, body: bytes) -> bytes:
        """Return the part of the request behind the target."""
        return encode_content(*encode_payload(body, self.attributes), self.msg_type, self.msg_time)

    def _make_head(self, target: bytes, body: bytes, tail: int) -> Head:
        if self._count >= _MAX_HEADS:
            self._heads.clear()
            self._count = 0
        request = Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, self._timeout_ms, target + self.content(body))
        frame = encode_frame(0, encode_request(request), Framing.STANDARD)
        head = frame[_NUMBERED : len(frame) - tail - len(body)], len(frame)
        self._heads.setdefault(target, {})[len(body), tail] = head
        self._count += 1
        return head
