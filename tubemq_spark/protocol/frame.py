"""Frames: the outermost layer of the wire.

    standard: token(4) serialNo(4) listSize(4) { n(4) bytes(n) } x listSize
    prefixed: length(4), then that many bytes: a standard frame, followed by padding that means nothing

All numbers are big-endian. The blocks are one stream cut every 8192 bytes; their edges have no meaning.
wire: NettyProtocolEncoder and NettyProtocolDecoder; the length stood in releases 1.1.0 and 1.2.0 only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
_TOKEN = struct.pack(">I", RPC_PROTOCOL_BEGIN_TOKEN)


@dataclass(frozen=True)
class Frame:
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
        self._framing = framing
        self._buffer = bytearray()
        self._needed = 4  # bytes the buffer must hold before another look is worth while
        self._failure: str | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """All frames that `data` completes, in order; `ProtocolError` when the bytes, or those fed before, are none."""
        if self._failure is not None:
            raise ProtocolError(self._failure)
        self._buffer += data
        frames: list[Frame] = []
        taken = 0
        try:
            while len(self._buffer) - taken >= self._needed:
                found = self._take(taken)
                if found is None:
                    break
                frame, taken = found
                frames.append(frame)
                self._needed = 4
        except ProtocolError as error:
            self._failure = str(error)
            if not frames:
                raise
        del self._buffer[:taken]
        return frames

    def _take(self, start: int) -> tuple[Frame, int] | None:
        """The frame that starts at `start` and where the next one starts, or None with `_needed` set."""
        if self._framing is Framing.STANDARD:
            return self._take_base(start, len(self._buffer))
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not _HEAD.size <= length <= MAX_PREFIXED_LENGTH:
            hint = "; these bytes are the other framing" if self._buffer[start : start + 4] == _TOKEN else ""
            raise ProtocolError(
                f"a prefixed frame has {_HEAD.size} to {MAX_PREFIXED_LENGTH} bytes, not {length}{hint}"
                f"{self._shown(start)}"
            )
        end = start + _LENGTH.size + length
        if len(self._buffer) < end:
            self._needed = end - start
            return None
        found = self._take_base(start + _LENGTH.size, end)
        if found is None:
            raise ProtocolError(f"a prefixed frame of {length} bytes ends in the middle of a block")
        return found[0], end

    def _take_base(self, start: int, limit: int) -> tuple[Frame, int] | None:
        """The standard frame at `start`, which ends at `limit` at the latest; None with `_needed` set."""
        body = start + _SINGLE.size
        if body <= limit:  # a frame of one block that is all there, as most are, is seen by one look at its numbers
            token, serial_no, count, size = _SINGLE.unpack_from(self._buffer, start)
            end = body + size
            if token == RPC_PROTOCOL_BEGIN_TOKEN and count == 1 and 0 <= size <= RPC_MAX_BUFFER_SIZE and end <= limit:
                return Frame(serial_no, bytes(self._buffer[body:end])), end
        return self._take_blocks(start, limit)

    def _take_blocks(self, start: int, limit: int) -> tuple[Frame, int] | None:
        """As `_take_base`: any number of blocks, incomplete and damaged ones too."""
        buffer = self._buffer
        if buffer[start : start + 4] != _TOKEN[: limit - start]:
            raise ProtocolError(f"a frame starts with {_TOKEN.hex()}{self._shown(start)}")
        cursor = start + _HEAD.size
        if cursor > limit:
            self._needed = _HEAD.size
            return None
        _, serial_no, count = _HEAD.unpack_from(buffer, start)
        if not 0 < count <= MAX_FRAME_MAX_LIST_SIZE:
            raise ProtocolError(f"frame {serial_no} has {count} blocks; 1 to {MAX_FRAME_MAX_LIST_SIZE} are allowed")
        blocks: list[slice] = []  # copied when all are there, for a long frame is walked again for each piece of it
        for left in range(count, 0, -1):
            if cursor + _LENGTH.size > limit:
                self._needed = cursor - start + left * _LENGTH.size
                return None
            (size,) = _LENGTH.unpack_from(buffer, cursor)
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
        return Frame(serial_no, b"".join([buffer[block] for block in blocks])), cursor

    def _shown(self, start: int) -> str:
        return f"; the peer sent {bytes(self._buffer[start : start + 16])!r}"
