# SPDX-License-Identifier: Apache-2.0
"""Sends that are encoded together have the same bytes as each one alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.send_differences import compare_frames, plain_frame
from tubemq_spark.protocol.constants import RPC_MAX_BUFFER_SIZE, Framing
from tubemq_spark.protocol.frame import FrameDecoder
from tubemq_spark.protocol.message import encode_attributes, encode_target
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.send_frames import SendFrames

TARGET = encode_target("client", Partition(1, "demo", 0), broker_pb.AuthorizedInfo())
FRAMES = SendFrames(encode_attributes(None, "news", "202611222031"), "news", "202611222031", 10_000)


@pytest.mark.parametrize("seed", range(20))
def test_random_sends_have_the_same_bytes(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        compare_frames(chance)


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, (1 << 31) - 100))
def test_bodies_have_the_same_bytes(bodies: list[bytes], first: int) -> None:
    parts, sizes = FRAMES.encode(first, [TARGET] * len(bodies), bodies)
    wanted = [plain_frame(first + n, TARGET, body, FRAMES) for n, body in enumerate(bodies)]
    assert b"".join(parts) == b"".join(wanted)
    assert sizes == list(map(len, wanted))


def test_the_longest_body_that_fits_has_a_frame_of_one_block() -> None:
    longest = max(size for size in range(RPC_MAX_BUFFER_SIZE) if FRAMES.fits(TARGET, size))
    assert longest > RPC_MAX_BUFFER_SIZE - 300
    parts, _ = FRAMES.encode(1, [TARGET], [bytes(longest)])
    frame = b"".join(parts)
    assert frame == plain_frame(1, TARGET, bytes(longest), FRAMES)
    assert int.from_bytes(frame[8:12], "big") == 1


def test_many_sizes_and_targets_need_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubemq_spark.protocol.send_frames._MAX_HEADS", 5)
    frames = SendFrames(b"a=b", None, None, 10_000)
    bodies = [b"x" * (size % 40) for size in range(200)]
    targets = [TARGET + bytes(2 * (n % 7)) for n in range(200)]
    parts, _ = frames.encode(1, targets, bodies)
    wanted = [plain_frame(1 + n, *send, frames) for n, send in enumerate(zip(targets, bodies, strict=True))]
    assert b"".join(parts) == b"".join(wanted)
    assert sum(map(len, frames._heads.values())) <= 5
    assert [serial_no for serial_no, _ in FrameDecoder(Framing.STANDARD).feed(b"".join(parts))] == [*range(1, 201)]
