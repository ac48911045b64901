"""Frames: the outermost layer of the wire.

    standard: token(4) serialNo(4) listSize(4) { n(4) bytes(n) } x listSize
    prefixed: length(4), then that many bytes: a standard frame, followed by padding that means nothing

All numbers are big-endian. The blocks are one stream cut every 8192 bytes; their edges have no meaning.
wire: NettyProtocolEncoder and NettyProtocolDecoder; the length stood in releases 1.1.0 and 1.2.0 only.
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
_SINGLE = struct.Struct(">Iiii")  # a head that counts one block, and that block's length
_LEAST = 4  # bytes that tell something of a frame
_TOKEN = struct.pack(">I", RPC_PROTOCOL_BEGIN_TOKEN)

Source = bytearray | memoryview


class Frame(NamedTuple):
    """One request or reply: the serial number that pairs them, and the envelope's bytes."""

    serial_no: int
    body: bytes


def max_body_size(framing: Framing) -> int:
    """The most bytes that fit into one frame's body."""
    if framing is Framing.STANDARD:
        return MAX_FRAME_MAX_LIST_SIZE * RPC_MAX_BUFFER_SIZE
    blocks = -(-MAX_PREFIXED_LENGTH // RPC_MAX_BUFFER_SIZE)
    return MAX_PREFIXED_LENGTH - _HEAD.size - blocks * _LENGTH.size


def encode_frame(serial_no: int, body: bytes, framing: Framing) -> bytes:
    """The bytes of one frame; `ProtocolError` for an empty body (no server completes such a frame) or one too long."""
    size = len(body)
    if 0 < size <= RPC_MAX_BUFFER_SIZE:  # one block, as nearly always: what `_encode_blocks` gives, in one piece
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
    """Bytes as they come in, whole frames out.

    After a `ProtocolError` the stream has lost its place: the decoder refuses all that follows. The frames in front of
    that place are given out first, so that they do not depend on how the bytes were cut.
    """

    def __init__(self, framing: Framing) -> None:
        self._is_prefixed = framing is Framing.PREFIXED
        self._kept = bytearray()  # the first bytes of a frame that is not complete
        self._needed = _LEAST  # bytes that must be there before another look is worth while
        self._failure: str | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """All frames that `data` completes, in order; `ProtocolError` when the bytes, or those fed before, are none."""
        if self._failure is not None:
            raise ProtocolError(self._failure)
        frames: list[Frame] = []
        left = memoryview(data)
        try:
            while self._kept and left:
                # Frames are read where they came in, for most are small, or mostly padding. So no more is copied here
                # than the first one lacks, if it says how much that is.
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
        """Adds what is complete at the start of `source` to `frames`; where the rest starts."""
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
        """As `_take_all`, for frames of one block, as most are: one look at the numbers of each is enough."""
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
        """The frame that starts at `start` and where the next one starts, or None with `_needed` set."""
        if not self._is_prefixed:
            return self._take_base(source, start, len(source))
        (length,) = _LENGTH.unpack_from(source, start)
        if not _HEAD.size <= length <= MAX_PREFIXED_LENGTH:
            hint = "; these bytes are the other framing" if bytes(source[start : start + 4]) == _TOKEN else ""
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
        """The standard frame at `start`, which ends at `limit` at the latest; None with `_needed` set."""
        if bytes(source[start : start + 4]) != _TOKEN[: limit - start]:
            raise ProtocolError(f"a frame starts with {_TOKEN.hex()}{_shown(source, start)}")
        cursor = start + _HEAD.size
        if cursor > limit:
            self._needed = _HEAD.size
            return None
        _, serial_no, count = _HEAD.unpack_from(source, start)
        if not 0 < count <= MAX_FRAME_MAX_LIST_SIZE:
            raise ProtocolError(f"frame {serial_no} has {count} blocks; 1 to {MAX_FRAME_MAX_LIST_SIZE} are allowed")
        blocks: list[slice] = []  # copied when all are there, for a long frame is walked again for each piece of it
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
        return Frame(serial_no, b"".join([source[block] for block in blocks])), cursor


def _shown(source: Source, start: int) -> str:
    return f"; the peer sent {bytes(source[start : start + 16])!r}"
