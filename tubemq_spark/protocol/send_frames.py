# SPDX-License-Identifier: Apache-2.0
"""Encodes the frames of many sends to one partition.

`encode_frame`, `encode_request`, `encode_content` and `encode_payload` define the bytes of a send. Each of them copies
the body, which takes most of the time of a small send. So the bytes before the body are cut from such a frame once for
each size. Each send adds its serial number, its attributes and body, and what follows the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from tubemq_spark.protocol.constants import RPC_MAX_BUFFER_SIZE, Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, encode_request
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, CHECK_SUM_MASK, encode_content
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

Kind = tuple[str | None, str | None]
"""A record's message type and message time (`yyyyMMddHHmm`)."""

_NUMBERED = 8  # bytes of a frame up to the end of its serial number
_TOKEN = encode_frame(0, b"-", Framing.STANDARD)[: _NUMBERED - 4]
_MAX_AROUND = 64  # bytes of a frame's block around target, payload and tail: lengths, tags, method, timeout
_MAX_HEADS = 20_000  # of about 300 bytes each
_MAX_KINDS = 5_000  # types and times, of about 200 bytes each

Head = tuple[bytes, int]
"""What stands between serial number and payload, and the size of the frame."""


class SendEncoder:
    """Encodes the sends of one connection."""

    def __init__(self, framing: Framing, timeout_ms: int) -> None:
        """`timeout_ms` is that of `Request`."""
        self._framing = framing
        self._timeout_ms = timeout_ms
        self._fields: dict[tuple[Kind, bool], broker_pb.SendMessageRequestP2B] = {}
        self._heads: dict[bytes, dict[tuple[int, int], Head]] = {}  # by target; by the sizes of payload and tail
        self._head_count = 0

    def encode(
        self, sends: range, target: bytes, headers: Sequence[bytes], bodies: Sequence[bytes], kinds: Sequence[Kind]
    ) -> tuple[bytes, list[int]]:
        """Return the frames of records with the serial numbers `sends`, and the size of each frame.

        `target` is the result of `message.encode_target`. `headers` are the attributes with their length in front, or
        empty. Raise `ProtocolError` for a record that is too long for a frame.
        """
        parts: list[bytes] = []
        sizes: list[int] = []
        all_fields, heads = self._fields, self._heads.setdefault(target, {})
        longest = RPC_MAX_BUFFER_SIZE - _MAX_AROUND - len(target) if self._framing is Framing.STANDARD else -1
        for serial_no, header, body, kind in zip(sends, headers, bodies, kinds, strict=True):
            try:
                fields = all_fields[kind, not header]
            except KeyError:
                fields = self._make_fields(kind, not header)
            fields.checkSum = crc32(body, crc32(header)) & CHECK_SUM_MASK
            tail = fields.SerializePartialToString()
            length = len(header) + len(body)
            if length + len(tail) > longest:
                frame = self._encode_alone(serial_no, target, header + body, fields.flag, kind)
                parts.append(frame)
                sizes.append(len(frame))
                continue
            try:
                head, size = heads[length, len(tail)]
            except KeyError:
                head, size = self._make_head(target, header + body, fields.flag, kind, len(tail))
            parts += (_TOKEN, serial_no.to_bytes(4, "big"), head, header, body, tail)
            sizes.append(size)
        return b"".join(parts), sizes

    def _make_fields(self, kind: Kind, is_plain: bool) -> broker_pb.SendMessageRequestP2B:
        """Return the fields behind `data`, which ends with the body: protobuf writes fields in the order of their
        numbers."""
        if len(self._fields) >= _MAX_KINDS:
            self._fields.clear()
        made = broker_pb.SendMessageRequestP2B(
            flag=0 if is_plain else ATTRIBUTES_FLAG, msgType=kind[0], msgTime=kind[1]
        )
        self._fields[kind, is_plain] = made
        return made

    def _make_head(self, target: bytes, payload: bytes, flag: int, kind: Kind, tail: int) -> Head:
        if self._head_count >= _MAX_HEADS:
            for heads in self._heads.values():
                heads.clear()
            self._head_count = 0
        frame = self._encode_alone(0, target, payload, flag, kind)
        head = frame[_NUMBERED : len(frame) - tail - len(payload)], len(frame)
        self._heads[target][len(payload), tail] = head
        self._head_count += 1
        return head

    def _encode_alone(self, serial_no: int, target: bytes, payload: bytes, flag: int, kind: Kind) -> bytes:
        content = target + encode_content(payload, flag, *kind)
        request = Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, self._timeout_ms, content)
        return encode_frame(serial_no, encode_request(request), self._framing)
