# SPDX-License-Identifier: Apache-2.0
"""Compresses and decompresses message bodies, in formats that libraries of other languages read.

The table `CODECS` has all that differs: a new codec is a line there. gzip is one member (RFC 1952), zstd a frame (RFC
8878), lz4 a frame, because raw blocks do not contain their decompressed size, and snappy a raw block, not the framing
format.

Input is not trusted: damaged bytes, and bytes that would fill the memory, are errors.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.peer_text import shown

MAX_PLAIN = 256 << 20
"""The maximum size in bytes of a body that the sink compresses."""

_SNAPPY_RATIO = 22  # bytes that one byte of snappy expands to, at most: a copy of 64 bytes takes 3
_GZIP = 31  # zlib's `wbits` for a gzip member with the largest window
_PART = 1 << 16  # bytes read at a time: more makes short payloads slower

_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")  # independent blocks of 64 KiB, a check sum of the head only
_LZ4_BLOCK = 1 << 16
_LZ4_STORED = 1 << 31  # flag in a block's size: the block is not compressed
_LZ4_SIZE = struct.Struct("<I")


def is_available(codec: str) -> bool:
    """Return True if this process has `codec`, one of `CODECS`. pyarrow may be built without some."""
    return not CODECS[codec].is_of_pyarrow or bool(pa.Codec.is_available(codec))


def check_available(codec: str) -> None:
    """Raise `ConfigError` if this process does not have `codec`, one of `CODECS`."""
    if not is_available(codec):
        raise ConfigError(
            f"pyarrow {pa.__version__} was built without {codec}: the driver and every executor need a build with it"
        )


def compress(codec: str, body: bytes) -> bytes:
    """Return `body` compressed, always as the same bytes. Raise `ConfigError` if this process lacks the codec."""
    check_available(codec)
    return CODECS[codec].pack(body)


def max_plain(codec: str, size: int) -> int:
    """Return how many bytes, whatever they are, become at most `size` bytes with `codec`, which may be `none`.

    Bytes that do not compress become more. Snappy promises no more than 32 + n + n/6 for n bytes, zstd 64 + n + n/256;
    the others promise less.
    """
    return size if codec == "none" else max(0, (size - 64) * 6 // 7)


def decompress(codec: str, data: bytes, most: int = MAX_PLAIN) -> bytes:
    """Return the decompressed `data`.

    Raise `ProtocolError` for damaged data, more than `most` bytes or an unknown codec. Raise `ConfigError` if this
    process lacks the codec. Data that is too long is never in memory as a whole.
    """
    if codec not in CODECS:
        raise ProtocolError(f"it is compressed with '{shown(codec, 40)}', which is not one of {', '.join(CODECS)}")
    check_available(codec)
    try:
        return CODECS[codec].unpack(data, most)
    except (zlib.error, OSError, pa.ArrowException):
        raise _damaged(codec) from None


def _pack_gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=_GZIP)  # writes no time and no name
    return packer.compress(body) + packer.flush()


def _pack_by_pyarrow(codec: str, body: bytes) -> bytes:
    packed: bytes = pa.Codec(codec).compress(body, asbytes=True)
    return packed


def _lz4_frame(body: bytes) -> Iterator[bytes]:
    """Yield the parts of a frame. pyarrow's own frames have dependent blocks, which lz4-java does not read."""
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
    """Return the decompressed size of a raw snappy block. Raise `ProtocolError` if it is missing or impossible."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise ProtocolError("it has snappy data without its size")
    if size > _SNAPPY_RATIO * len(data):
        raise ProtocolError(f"{len(data)} bytes of snappy cannot become the {size} bytes that they claim")
    return size


def _unpack_gzip(data: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    plain = unpacker.decompress(data, min(most + 1, sys.maxsize))
    _check_size(len(plain), most)
    if not unpacker.eof or unpacker.unused_data:
        raise _damaged("gzip")
    return plain


def _unpack_snappy(data: bytes, most: int) -> bytes:
    size = snappy_size(data)
    _check_size(size, most)
    # The size must be exact: pyarrow fills a longer buffer with other bytes.
    plain: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    return plain


def _unpack_frame(codec: str, data: bytes, most: int) -> bytes:
    """Decompress a frame, which may not contain its decompressed size."""
    if not data:
        raise _damaged(codec)
    plain = io.BytesIO()
    # When `read` of a pyarrow stream fails, it leaks the bytes object it made, several KiB each time (seen in 15.0.2,
    # 19.0.1, 22.0.0 and 26.0.1). `readinto` makes none.
    part = memoryview(bytearray(min(_PART, most + 1)))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while size := stream.readinto(part):
            plain.write(part[:size])
            _check_size(plain.tell(), most)
    return plain.getvalue()


class Codec(NamedTuple):
    """How bodies are compressed: to what, in words for users, and the functions."""

    form: str
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes, int], bytes]
    is_of_pyarrow: bool = True


CODECS: Mapping[str, Codec] = {
    "gzip": Codec("a gzip member", _pack_gzip, _unpack_gzip, is_of_pyarrow=False),
    "zstd": Codec("a zstd frame", partial(_pack_by_pyarrow, "zstd"), partial(_unpack_frame, "zstd")),
    "snappy": Codec("a raw snappy block", partial(_pack_by_pyarrow, "snappy"), _unpack_snappy),
    "lz4": Codec("an lz4 frame", lambda body: b"".join(_lz4_frame(body)), partial(_unpack_frame, "lz4")),
}


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ProtocolError(f"it becomes larger than {most} bytes, which option 'maxUnpackedBytes' limits")


def _damaged(codec: str) -> ProtocolError:
    return ProtocolError(f"it has damaged {codec} data")
