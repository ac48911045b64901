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
_LEAST = 4  # bytes before anything of a frame can be decoded
_TOKEN = struct.pack(">I", RPC_PROTOCOL_BEGIN_TOKEN)

Source = bytearray | memoryview


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
    """Decodes a stream of bytes, in any cuts, into whole frames.

    After a `ProtocolError` the decoder refuses all further bytes, because frames cannot be found any more. It returns
    the frames before the error first, so that the result does not depend on the cuts.
    """

    def __init__(self, framing: Framing) -> None:
        self._is_prefixed = framing is Framing.PREFIXED
        self._kept = bytearray()  # the beginning of an incomplete frame
        self._needed = _LEAST  # bytes to collect before the next attempt to decode
        self._failure: str | None = None

    @property
    def is_inside_frame(self) -> bool:
        """Whether the beginning of a frame has come, or bytes that are not a frame, and not its end."""
        return bool(self._kept) or self._failure is not None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raise `ProtocolError` if the bytes are not frames."""
        if self._failure is not None:
            raise ProtocolError(self._failure)
        frames: list[Frame] = []
        left = memoryview(data)
        try:
            while self._kept and left:
                # Most frames are small, or mostly padding, so they are decoded in place. Only the missing bytes of the
                # first frame are copied, if its length is known.
                lacking = self._needed - len(self._kept) if self._is_prefixed else len(left)
                self._kept += left[:lacking]
                left = left[lacking:]
                del self._kept[: self._take_all(self._kept, frames)]
            if left:
                self._kept += left[self._take_all(left, frames) :]
        except ProtocolError as error:
            self._failure = str(error)
            if not frames:
                raise
        return frames

    def _take_all(self, source: Source, frames: list[Frame]) -> int:
        """Append the complete frames at the start of `source` to `frames`; return where the rest starts."""
        start = 0
        while len(source) - start >= self._needed:
            before, start = start, self._take_singles(source, start, frames)
            if start == before:
                found = self._take(source, start)
                if found is None:
                    break
                frame, start = found
                frames.append(frame)
            self._needed = _LEAST
        return start

    def _take_singles(self, source: Source, start: int, frames: list[Frame]) -> int:
        """Do the same as `_take_all` for frames of one block, the usual ones, with one unpacking for each."""
        filled = len(source)
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

    def _take(self, source: Source, start: int) -> tuple[Frame, int] | None:
        """Return the frame at `start` and where the next one starts, or set `_needed` and return None."""
        if not self._is_prefixed:
            return self._take_base(source, start, len(source))
        (length,) = _LENGTH.unpack_from(source, start)
        if not _HEAD.size <= length <= MAX_PREFIXED_LENGTH:
            hint = "; these bytes have the other framing" if bytes(source[start : start + 4]) == _TOKEN else ""
            raise ProtocolError(
                f"a prefixed frame has {_HEAD.size} to {MAX_PREFIXED_LENGTH} bytes, not {length}{hint}"
                f"{_shown(source, start)}"
            )
        end = start + _LENGTH.size + length
        if len(source) < end:
            self._needed = end - start
            return None
        found = self._take_base(source, start + _LENGTH.size, end)
        if found is None:
            raise ProtocolError(f"a prefixed frame of {length} bytes ends in the middle of a block")
        return found[0], end

    def _take_base(self, source: Source, start: int, limit: int) -> tuple[Frame, int] | None:
        """Return the standard frame at `start` that ends at `limit` or before, or set `_needed` and return None."""
        if bytes(source[start : start + 4]) != _TOKEN[: limit - start]:
            raise ProtocolError(f"a frame starts with {_TOKEN.hex()}{_shown(source, start)}")
        cursor = start + _HEAD.size
        if cursor > limit:
            self._needed = _HEAD.size
            return None
        _, serial_no, count = _HEAD.unpack_from(source, start)
        if not 0 < count <= MAX_FRAME_MAX_LIST_SIZE:
            raise ProtocolError(f"frame {serial_no} has {count} blocks; 1 to {MAX_FRAME_MAX_LIST_SIZE} are allowed")
        blocks: list[slice] = []  # copied when all are complete: a long frame is decoded again for each part
        for left in range(count, 0, -1):
            if cursor + _LENGTH.size > limit:
                self._needed = cursor - start + left * _LENGTH.size
                return None
            (size,) = _LENGTH.unpack_from(source, cursor)
            if not 0 <= size <= RPC_MAX_BUFFER_SIZE:
                raise ProtocolError(
                    f"frame {serial_no} has a block of {size} bytes; at most {RPC_MAX_BUFFER_SIZE} are allowed"
                )
            cursor += _LENGTH.size
            if cursor + size > limit:
                self._needed = cursor - start + size + (left - 1) * _LENGTH.size
                return None
            blocks.append(slice(cursor, cursor + size))
            cursor += size
        with memoryview(source) as whole:  # slices of a bytearray would be copies
            return Frame(serial_no, b"".join([whole[block] for block in blocks])), cursor


def _shown(source: Source, start: int) -> str:
    return f"; the peer sent {bytes(source[start : start + 16])!r}"
