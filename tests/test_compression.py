# SPDX-License-Identifier: Apache-2.0
"""Tests of the compression of message bodies."""

from __future__ import annotations

import gc
import gzip
import os
import subprocess
import tracemalloc
import zlib
from pathlib import Path
from random import Random

import pyarrow as pa
import pyspark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.real.jars import MissingTool, tool
from tubemq_spark import compression
from tubemq_spark.compression import CODECS, compress, decompress, max_plain
from tubemq_spark.errors import ConfigError, ProtocolError

TEXT = b"one message one message one message\n"
codecs = pytest.mark.parametrize("codec", CODECS)
bodies = st.binary(max_size=200) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), st.integers(0, 40_000)
)


@settings(deadline=None)
@given(st.sampled_from(list(CODECS)), bodies)
def test_bodies_round_trip(codec: str, body: bytes) -> None:
    assert decompress(codec, compress(codec, body)) == body


@codecs
@pytest.mark.parametrize("limit", [64, 100, 1000, 100_000, 5 << 20])
def test_random_bytes_stay_within_a_limit(codec: str, limit: int) -> None:
    assert len(compress(codec, Random(2).randbytes(max_plain(codec, limit)))) <= limit
    assert max_plain("none", limit) == limit


@codecs
def test_the_same_body_gives_the_same_bytes(codec: str) -> None:
    assert compress(codec, TEXT) == compress(codec, TEXT) != TEXT


# Other tools


BY_TOOLS = {
    "gzip": "1f8b0800000000000003cbcf4b55c84d2d2e4e4c4f55c8c7cee602000c9a98f524000000",
    "zstd": "28b52ffd04589d0000686f6e65206d657373616765200a0100af4b12b9005bff",
    "lz4": "04224d186440a716000000cf6f6e65206d657373616765200c000050736167650a0000000013f330b8",
    "snappy": "242c6f6e65206d657373616765205a0c00000a",
}


@codecs
def test_decompresses_files_of_the_command_line_tools(codec: str) -> None:
    """snappy has no tool for raw blocks: snappy-java wrote that file. The zstd frame has no decompressed size."""
    assert decompress(codec, bytes.fromhex(BY_TOOLS[codec])) == TEXT


def test_is_compatible_with_the_java_libraries_in_both_directions(tmp_path: Path) -> None:
    """The Java libraries are those of Spark itself."""
    given = {"text": TEXT, "empty": b"", "long": bytes(range(256)) * 2000, "random": Random(1).randbytes(200_000)}
    for name, body in given.items():
        for codec in CODECS:
            (tmp_path / f"{name}.{codec}").write_bytes(compress(codec, body))
    try:
        java = tool("java")
    except MissingTool as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    program = Path(__file__).parent / "interop" / "Codecs.java"
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    command = [java, *quick, "-cp", str(jars), str(program), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    for name, body in given.items():
        for codec in CODECS:
            assert (tmp_path / f"{name}.{codec}.plain").read_bytes() == body
            assert decompress(codec, (tmp_path / f"{name}.{codec}.java").read_bytes()) == body


# Damage


@codecs
def test_refuses_a_part_of_a_body_and_what_is_none(codec: str) -> None:
    packed = compress(codec, TEXT)
    others = [compress(other, TEXT) for other in CODECS if other != codec]
    for data in (*(packed[:size] for size in range(len(packed))), *others):
        with pytest.raises(ProtocolError, match=r"damaged|without its size|cannot become|larger"):
            decompress(codec, data)
    with pytest.raises(ProtocolError, match=f"^it has damaged {codec} data$"):
        decompress(codec, packed + b"more")


def test_detects_a_changed_gzip_body() -> None:
    """pyarrow writes the other formats without check sums; TubeMQ's check sum covers the whole message."""
    packed = bytearray(gzip.compress(TEXT, compresslevel=0))
    packed[-10] ^= 1
    with pytest.raises(ProtocolError, match="damaged gzip data"):
        decompress("gzip", bytes(packed))


@codecs
def test_damaged_bodies_leak_no_memory(codec: str) -> None:
    packed = compress(codec, TEXT)
    damaged = [packed[:-1], packed[: len(packed) // 2], packed + b"more"] * 40

    def undo_all() -> None:
        for data in damaged:
            with pytest.raises(ProtocolError):
                decompress(codec, data)

    undo_all()
    tracemalloc.start()
    try:
        undo_all()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["", "none", "unknown", "GZIP", "x" * 9999])
def test_refuses_an_unknown_codec(codec: str) -> None:
    with pytest.raises(ProtocolError, match=f"which is not one of {', '.join(CODECS)}$") as caught:
        decompress(codec, b"")
    assert len(str(caught.value)) < 140


# Too long


@codecs
@pytest.mark.parametrize("most", [0, 1, 1000, 1 << 16, 1 << 20])
def test_refuses_a_body_that_becomes_too_long(codec: str, most: int) -> None:
    fits, too_long = (compress(codec, bytes(size)) for size in (most, most + 1))
    assert decompress(codec, fits, most) == bytes(most)
    with pytest.raises(
        ProtocolError, match=f"^it becomes larger than {most} bytes, which option 'maxUnpackedBytes' limits$"
    ):
        decompress(codec, too_long, most)


def nested(codec: str, size: int) -> bytes:
    """Return compressed zeros, without a buffer of their full size."""
    if codec == "gzip":
        packer = zlib.compressobj(wbits=31)
        return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "snappy"])  # which has no streams
def test_a_decompression_bomb_stops_at_the_limit(codec: str) -> None:
    bomb = nested(codec, 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="larger than 4194304 bytes"):
            decompress(codec, bomb, 4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# pyarrow without a codec


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "gzip"])  # which Python has, too
def test_reports_a_codec_that_pyarrow_lacks(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(codec, TEXT)
    monkeypatch.setattr(compression, "is_available", lambda name: name != codec)
    for call, data in ((compress, TEXT), (decompress, packed)):
        with pytest.raises(ConfigError, match=f"^pyarrow .* was built without {codec}: the driver and every executor"):
            call(codec, data)
    assert decompress("gzip", compress("gzip", TEXT)) == TEXT
