# SPDX-License-Identifier: Apache-2.0
"""Sends that are encoded together have the same bytes as each one alone."""

from __future__ import annotations

import pytest

from tests.protocol.send_differences import Send, encoded, plain_frame
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.message import encode_target
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.send_frames import SendEncoder

TARGET = encode_target("client", Partition(1, "demo", 0), broker_pb.AuthorizedInfo())


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("size", [*range(7900, 8200, 7), 100_000])
def test_bodies_around_one_block_have_the_same_bytes(framing: Framing, size: int) -> None:
    send = Send(bytes(size), b"a=b")
    assert encoded(SendEncoder(framing, 10_000), 1, TARGET, [send])[0] == plain_frame(1, TARGET, send, framing)


def test_a_body_that_no_frame_takes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="prefixed framing"):
        encoded(SendEncoder(Framing.PREFIXED, 10_000), 1, TARGET, [Send(b"short"), Send(bytes(6 << 20))])


def test_many_sizes_types_and_targets_need_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubemq_spark.protocol.send_frames._MAX_HEADS", 5)
    monkeypatch.setattr("tubemq_spark.protocol.send_frames._MAX_KINDS", 5)
    encoder = SendEncoder(Framing.STANDARD, 10_000)
    for number in range(200):
        send, target = Send(b"x" * (number % 40), b"a=b", (f"t{number % 11}", None)), TARGET + bytes(2 * (number % 7))
        assert encoded(encoder, number, target, [send])[0] == plain_frame(number, target, send)
    assert sum(map(len, encoder._heads.values())) <= 5
    assert len(encoder._fields) <= 5
