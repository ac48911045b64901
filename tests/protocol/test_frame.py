# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.frame import Frame, FrameDecoder, encode_frame, max_body_size

TOKEN = bytes.fromhex("ff7ff4fe")
STANDARD, PREFIXED = Framing.STANDARD, Framing.PREFIXED

serial_nos = st.integers(-(2**31), 2**31 - 1)


def block(*pieces: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)


def base(serial_no: int, *pieces: bytes, count: int | None = None) -> bytes:
    return TOKEN + struct.pack(">ii", serial_no, len(pieces) if count is None else count) + block(*pieces)


def prefixed(frame: bytes, padding: bytes = b"") -> bytes:
    return struct.pack(">i", len(frame + padding)) + frame + padding


def pieces_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize(
    ("framing", "body", "wire"),
    [
        (STANDARD, b"abc", base(7, b"abc")),
        (STANDARD, b"x" * 8192, base(7, b"x" * 8192)),
        (STANDARD, b"x" * 8193, base(7, b"x" * 8192, b"x")),
        (PREFIXED, b"abc", b"\0\0\0\x13" + base(7, b"abc")),
    ],
)
def test_encodes(framing: Framing, body: bytes, wire: bytes) -> None:
    assert encode_frame(7, body, framing) == wire


@given(
    serial_nos, st.builds(bytes, st.sampled_from([1, 2, 100, 8191, 8192, 8193, 16384, 16385])) | st.binary(min_size=1)
)
def test_the_fast_path_for_one_block_encodes_the_same(serial_no: int, body: bytes) -> None:
    frame = base(serial_no, *pieces_of(body, 8192))
    assert encode_frame(serial_no, body, STANDARD) == frame
    assert encode_frame(serial_no, body, PREFIXED) == prefixed(frame)


ONE, TWO = Frame(1, b"a"), Frame(2, b"b" * 8192 + b"c")
WIRES = {
    "one": (STANDARD, base(1, b"a"), [ONE]),
    "small blocks, negative number": (STANDARD, base(-5, b"a", b"b", b"", b"cd"), [Frame(-5, b"abcd")]),
    "an empty block": (STANDARD, base(1, b"") + base(1, b"a"), [Frame(1, b""), ONE]),
    "a full block": (STANDARD, base(1, b"x" * 8192), [Frame(1, b"x" * 8192)]),
    "two": (STANDARD, base(1, b"a") + base(2, b"b" * 8192, b"c"), [ONE, TWO]),
    "prefixed": (PREFIXED, prefixed(base(1, b"a")), [ONE]),
    "padded": (PREFIXED, prefixed(base(1, b"a"), bytes(8191)) + prefixed(base(2, b"b" * 8192, b"c")), [ONE, TWO]),
    "padding means nothing": (PREFIXED, prefixed(base(1, b"a"), base(9, b"z")), [ONE]),
}


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", WIRES)
def test_decodes_the_same_however_the_bytes_are_cut(name: str, cut: int) -> None:
    framing, wire, frames = WIRES[name]
    decoder = FrameDecoder(framing)
    assert [frame for piece in pieces_of(wire, cut) for frame in decoder.feed(piece)] == frames


@pytest.mark.parametrize("framing", Framing)
def test_a_body_has_limits(framing: Framing) -> None:
    largest = max_body_size(framing)
    wire = encode_frame(1, bytes(largest), framing)
    assert [len(frame.body) for frame in FrameDecoder(framing).feed(wire)] == [largest]
    for size in (0, largest + 1):
        with pytest.raises(ProtocolError, match=f"not {size}$"):
            encode_frame(1, bytes(size), framing)


def test_limits_are_the_servers() -> None:
    assert max_body_size(STANDARD) == 3584 * 8192
    assert len(encode_frame(1, bytes(max_body_size(PREFIXED)), PREFIXED)) == 4 + 5 * 1024 * 1024


@pytest.mark.parametrize(
    ("framing", "wire", "reason"),
    [
        (STANDARD, b"HTTP/1.1 400", "starts with ff7ff4fe; the peer sent b'HTTP/1.1 400'"),
        (STANDARD, prefixed(base(1, b"abc")), "starts with"),
        (STANDARD, base(1, count=0), "has 0 blocks"),
        (STANDARD, base(1, count=-1), "has -1 blocks"),
        (STANDARD, base(1, count=3585), "has 3585 blocks"),
        (STANDARD, base(1, count=1) + b"\0\0\x20\x01", "a block of 8193 bytes"),
        (STANDARD, base(1, b"x" * 8193), "a block of 8193 bytes"),
        (STANDARD, base(1, count=1) + b"\xff\xff\xff\xff", "a block of -1 bytes"),
        (PREFIXED, base(1, b"abc"), "the other framing"),
        (PREFIXED, b"HTTP", "1213486160"),
        (PREFIXED, struct.pack(">i", 11), "not 11"),
        (PREFIXED, struct.pack(">i", 5 * 1024 * 1024 + 1), "not 5242881"),
        (PREFIXED, prefixed(base(1, b"a"), bytes(5 * 1024 * 1024)), "not 5242897"),
        (PREFIXED, prefixed(base(1, b"abc")[:-1]) + b"c", "in the middle of a block"),
        (PREFIXED, prefixed(base(1, b"a", count=2)) + base(2, b"b"), "in the middle of a block"),
        (PREFIXED, prefixed(b"\0" * 12), "starts with"),
    ],
)
def test_refuses_invalid_frames_and_all_bytes_after_them(framing: Framing, wire: bytes, reason: str) -> None:
    decoder = FrameDecoder(framing)
    with pytest.raises(ProtocolError, match=reason):
        decoder.feed(wire)
    with pytest.raises(ProtocolError, match=reason):
        decoder.feed(encode_frame(1, b"good", framing))
