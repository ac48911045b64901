"""Payloads made shorter, in forms that other languages' libraries read.

    gzip    one member (RFC 1952)
    zstd    a frame (RFC 8878)
    lz4     a frame; bare blocks, which do not say how long they become, are not read
    snappy  a raw block, which begins with its length; not the framing format

None of them is trusted: what comes of damaged bytes, or of some made to fill memory, is an error.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.peer_text import shown

MAX_PLAIN = 256 << 20
"""The longest body that the sink compresses, in bytes."""

_SNAPPY_RATIO = 22  # no byte of snappy stands for more: its longest copy is 64 bytes, said in 3
_GZIP = 31  # zlib's `wbits` for a gzip member with the largest window
_PART = 1 << 16  # bytes: a longer one makes short payloads slower

_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")  # independent blocks of 64 KiB, no check sums but the head's own
_LZ4_BLOCK = 1 << 16
_LZ4_STORED = 1 << 31  # in a block's size: it is as it was
_LZ4_SIZE = struct.Struct("<I")


def is_available(codec: str) -> bool:
    """Whether this process has one of `CODECS`; pyarrow may be built without some."""
    return codec == "gzip" or bool(pa.Codec.is_available(codec))


def check_available(codec: str) -> None:
    """`ConfigError` when this process does not have one of `CODECS`."""
    if not is_available(codec):
        raise ConfigError(
            f"pyarrow {pa.__version__} was built without {codec}: the driver and every executor need one that has it"
        )


def compress(codec: str, body: bytes) -> bytes:
    """`body` in one of `CODECS`, the same bytes each time. `ConfigError` when this process does not have it."""
    check_available(codec)
    if codec == "gzip":
        packer = zlib.compressobj(wbits=_GZIP)  # writes no time and no name
        return packer.compress(body) + packer.flush()
    if codec == "lz4":
        return b"".join(_lz4_frame(body))
    packed: bytes = pa.Codec(codec).compress(body, asbytes=True)
    return packed


def decompress(codec: str, data: bytes, most: int = MAX_PLAIN) -> bytes:
    """What was compressed. `ProtocolError` for damage, for more than `most` bytes and for a codec that is none of
    `CODECS`, `ConfigError` when this process does not have the codec. What is too long is never in memory
    as a whole."""
    undo = _UNDO.get(codec)
    if undo is None:
        raise ProtocolError(f"it is compressed with '{shown(codec, 40)}', which is none of {', '.join(CODECS)}")
    check_available(codec)
    try:
        return undo(data, most)
    except (zlib.error, OSError, pa.ArrowException):
        raise _damaged(codec) from None


def _lz4_frame(body: bytes) -> Iterator[bytes]:
    """pyarrow's own frames have blocks that refer to those before, which lz4-java does not read."""
    raw = pa.Codec("lz4_raw")
    yield _LZ4_HEAD
    for start in range(0, len(body), _LZ4_BLOCK):
        block = body[start : start + _LZ4_BLOCK]
        packed = raw.compress(block, asbytes=True)
        if len(packed) < len(block):
            yield _LZ4_SIZE.pack(len(packed)) + packed
        else:
            yield _LZ4_SIZE.pack(len(block) | _LZ4_STORED) + block
    yield _LZ4_SIZE.pack(0)


def snappy_size(data: bytes) -> int:
    """How long a raw block of snappy becomes, in bytes; `ProtocolError` when it does not say or cannot become that."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise ProtocolError("it has snappy data without its size")
    if size > _SNAPPY_RATIO * len(data):
        raise ProtocolError(f"it says that {len(data)} bytes of snappy are {size}, which cannot be")
    return size


def _gzip(data: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    plain = unpacker.decompress(data, most + 1)
    _check_size(len(plain), most)
    if not unpacker.eof or unpacker.unused_data:
        raise _damaged("gzip")
    return plain


def _snappy(data: bytes, most: int) -> bytes:
    size = snappy_size(data)
    _check_size(size, most)
    # The size must be exact: to a longer buffer pyarrow adds bytes of its own.
    plain: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    return plain


def _frame(codec: str) -> Callable[[bytes, int], bytes]:
    """Of codecs whose frames need not say how long they become."""

    def undo(data: bytes, most: int) -> bytes:
        if not data:
            raise _damaged(codec)
        plain = io.BytesIO()
        # `read` of a pyarrow stream loses the bytes object that it made when it fails, several KiB each time (seen in
        # 15.0.2, 19.0.1, 22.0.0 and 26.0.1). `readinto` makes none.
        part = memoryview(bytearray(min(_PART, most + 1)))
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while size := stream.readinto(part):
                plain.write(part[:size])
                _check_size(plain.tell(), most)
        return plain.getvalue()

    return undo


_UNDO: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "zstd": _frame("zstd"),
    "snappy": _snappy,
    "lz4": _frame("lz4"),
}
CODECS = tuple(_UNDO)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ProtocolError(f"it becomes larger than {most} bytes, which option 'maxUnpackedBytes' limits")


def _damaged(codec: str) -> ProtocolError:
    return ProtocolError(f"it has damaged {codec} data")
