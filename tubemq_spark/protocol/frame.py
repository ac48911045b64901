# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes frames, the outermost layer of the wire (framing, serial number).

    standard: token(4) serialNo(4) listSize(4) { n(4) bytes(n) } x listSize
    prefixed: length(4), then that many bytes: a standard frame, followed by padding without meaning

All numbers are big-endian. The blocks are one body cut every 8192 bytes; the cuts have no meaning. Only releases 1.1.0
and 1.2.0 have the length (wire: NettyProtocolEncoder, NettyProtocolDecoder).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import (
    MAX_FRAME_MAX_LIST_SIZE,
    MAX_PREFIXED_LENGTH,
    RPC_MAX_BUFFER_SIZE,
    RPC_PROTOCOL_BEGIN_TOKEN,
    Framing,
)

_HEAD = struct.Struct(">Iii")
_LENGTH = struct.Struct(">i")
_SINGLE = struct.Struct(">Iiii")  # the head of a frame with one block, and the block's length
_TOKEN = struct.pack(">I", RPC_PROTOCOL_BEGIN_TOKEN)
_UNKNOWN = 1 << 62  # the end of a frame without a length
_MAX_KEPT = 4 << 20  # bytes of a buffer that is used again; brokers send about one MiB in a frame


class Frame(NamedTuple):
    """A request or a reply: the serial number that matches them, and the bytes of the envelope."""

    serial_no: int
    body: bytes


def max_body_size(framing: Framing) -> int:
    """Return the maximum size of a frame's body in bytes."""
    if framing is Framing.STANDARD:
        return MAX_FRAME_MAX_LIST_SIZE * RPC_MAX_BUFFER_SIZE
    blocks = -(-MAX_PREFIXED_LENGTH // RPC_MAX_BUFFER_SIZE)
    return MAX_PREFIXED_LENGTH - _HEAD.size - blocks * _LENGTH.size


def encode_frame(serial_no: int, body: bytes, framing: Framing) -> bytes:
    """Return the bytes of a frame. Raise `ProtocolError` if the body is empty (no server completes it) or too long."""
    size = len(body)
    if 0 < size <= RPC_MAX_BUFFER_SIZE:  # one block, nearly always: the result of `_encode_blocks`, but faster
        frame = _SINGLE.pack(RPC_PROTOCOL_BEGIN_TOKEN, serial_no, 1, size) + body
    elif 0 < size <= max_body_size(framing):
        frame = _encode_blocks(serial_no, body)
    else:
        raise ProtocolError(
            f"a frame's body has 1 to {max_body_size(framing)} bytes with {framing.value} framing, not {size}"
        )
    return frame if framing is Framing.STANDARD else _LENGTH.pack(len(frame)) + frame


def _encode_blocks(serial_no: int, body: bytes) -> bytes:
    parts = [_HEAD.pack(RPC_PROTOCOL_BEGIN_TOKEN, serial_no, -(-len(body) // RPC_MAX_BUFFER_SIZE))]
    for cut in range(0, len(body), RPC_MAX_BUFFER_SIZE):
        block = body[cut : cut + RPC_MAX_BUFFER_SIZE]
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


class FrameDecoder:
    """Decodes a stream of bytes, in any cuts, into whole frames. It decodes each block of a frame once.

    After a `ProtocolError` the decoder refuses all further bytes, because frames cannot be found any more. It returns
    the frames before the error first, so that the result does not depend on the cuts.
    """

    def __init__(self, framing: Framing) -> None:
        self._is_prefixed = framing is Framing.PREFIXED
        self._failure: str | None = None
        # The beginning of an incomplete frame. The buffer is used again, because new memory costs more than a copy.
        self._begun = bytearray()
        self._filled = 0  # bytes of the buffer that have come
        # What is decoded of this frame
        self._serial_no = 0
        self._count = 0  # of its blocks; 0 until the head has come
        self._blocks: list[slice] = []  # those that have come
        self._cursor = 0  # where the size of the next one is
        self._end = _UNKNOWN  # where a prefixed frame ends

    @property
    def is_inside_frame(self) -> bool:
        """Whether the beginning of a frame has come, or bytes that are not a frame, and not its end."""
        return self._filled > 0 or self._failure is not None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raise `ProtocolError` if the bytes are not frames."""
        if self._failure is not None:
            raise ProtocolError(self._failure)
        frames: list[Frame] = []
        left = memoryview(data)
        try:
            if not self._filled:
                left = left[self._take_singles(left, frames) :]
            while left:
                before = self._filled
                self._keep(left)
                end = self._decode()
                if end is None:
                    break
                with memoryview(self._begun) as whole:  # slices of a bytearray would be copies
                    frames.append(Frame(self._serial_no, b"".join([whole[block] for block in self._blocks])))
                left = left[end - before :]
                self._begin()
                left = left[self._take_singles(left, frames) :]
        except ProtocolError as error:
            self._failure = str(error)
            if not frames:
                raise
        return frames

    def _begin(self) -> None:
        """Begin the next frame."""
        self._filled = self._count = self._cursor = 0
        self._blocks, self._end = [], _UNKNOWN
        if len(self._begun) > _MAX_KEPT:
            self._begun = bytearray()

    def _keep(self, data: memoryview) -> None:
        filled = self._filled + len(data)
        if (lacking := filled - len(self._begun)) > 0:
            self._begun += bytes(lacking)
        with memoryview(self._begun) as whole:  # to assign to a slice of a bytearray would copy twice
            whole[self._filled : filled] = data
        self._filled = filled

    def _take_singles(self, source: memoryview, frames: list[Frame]) -> int:
        """Append the frames of one block at the start of `source`, the usual ones, with one unpacking for each. Return
        where the rest starts."""
        filled, start = len(source), 0
        front = _LENGTH.size if self._is_prefixed else 0
        while (body := start + front + _SINGLE.size) <= filled:
            token, serial_no, count, size = _SINGLE.unpack_from(source, start + front)
            if token != RPC_PROTOCOL_BEGIN_TOKEN or count != 1 or not 0 <= size <= RPC_MAX_BUFFER_SIZE:
                break
            end = next_start = body + size
            if front:
                (length,) = _LENGTH.unpack_from(source, start)
                next_start = start + front + length if length <= MAX_PREFIXED_LENGTH else 0
            if not end <= next_start <= filled:
                break
            frames.append(Frame(serial_no, bytes(source[body:end])))
            start = next_start
        return start

    def _decode(self) -> int | None:
        """Decode what has come of the frame and was not decoded before. Return where the frame ends if it is whole."""
        if not self._count:
            self._decode_head()
        begun, blocks, at = self._begun, self._blocks, self._cursor
        limit = min(self._filled, self._end)
        while len(blocks) < self._count and at + _LENGTH.size <= limit:  # once for each block, so locals
            (size,) = _LENGTH.unpack_from(begun, at)
            if not 0 <= size <= RPC_MAX_BUFFER_SIZE:
                raise ProtocolError(
                    f"frame {self._serial_no} has a block of {size} bytes; at most {RPC_MAX_BUFFER_SIZE} are allowed"
                )
            begin = at + _LENGTH.size
            if begin + size > limit:
                if begin + size > self._end:
                    raise self._ends_in_a_block()
                break
            at = begin + size
            blocks.append(slice(begin, at))
        self._cursor = at
        if not self._count:
            return None
        if len(blocks) < self._count:
            if at + _LENGTH.size > self._end:
                raise self._ends_in_a_block()
            return None
        end = self._end if self._is_prefixed else at
        return end if end <= self._filled else None

    def _decode_head(self) -> None:
        """Decode the numbers before the blocks, as far as they have come."""
        start = 0
        if self._is_prefixed:
            if self._filled < _LENGTH.size:
                return
            (length,) = _LENGTH.unpack_from(self._begun)
            if not _HEAD.size <= length <= MAX_PREFIXED_LENGTH:
                hint = "; these bytes have the other framing" if self._begun[: len(_TOKEN)] == _TOKEN else ""
                raise ProtocolError(
                    f"a prefixed frame has {_HEAD.size} to {MAX_PREFIXED_LENGTH} bytes, not {length}{hint}"
                    f"{self._shown(0)}"
                )
            start = _LENGTH.size
            self._end = start + length
        if self._filled >= start + len(_TOKEN) and self._begun[start : start + len(_TOKEN)] != _TOKEN:
            raise ProtocolError(f"a frame starts with {_TOKEN.hex()}{self._shown(start)}")
        if self._filled >= start + _HEAD.size:
            _, self._serial_no, count = _HEAD.unpack_from(self._begun, start)
            if not 0 < count <= MAX_FRAME_MAX_LIST_SIZE:
                raise ProtocolError(
                    f"frame {self._serial_no} has {count} blocks; 1 to {MAX_FRAME_MAX_LIST_SIZE} are allowed"
                )
            self._count, self._cursor = count, start + _HEAD.size

    def _ends_in_a_block(self) -> ProtocolError:
        return ProtocolError(f"a prefixed frame of {self._end - _LENGTH.size} bytes ends in the middle of a block")

    def _shown(self, start: int) -> str:
        return f"; the peer sent {bytes(self._begun[start : min(start + 16, self._filled)])!r}"
