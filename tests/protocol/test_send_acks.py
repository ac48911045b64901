# SPDX-License-Identifier: Apache-2.0
"""An acknowledgement that is recognised by its shape is one for the parser, too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Response, encode_reply
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.send_acks import AckShapes


def ack(message_id: int, offset: int = 28, *, code: int = 200, text: str | None = None) -> bytes:
    """Return the envelope of an answer as servers write it."""
    text = str(message_id) if text is None else text
    answer = broker_pb.SendMessageResponseB2P(
        success=code == 200, errCode=code, errMsg=text, messageId=message_id, appendTime=1 << 40, appendOffset=offset
    )
    return encode_reply(Response(Method.SEND_MESSAGE, answer.SerializeToString()))


def frame(serial_no: int, body: bytes) -> bytes:
    return encode_frame(serial_no, body, Framing.STANDARD)


def shapes(bodies: Iterable[bytes]) -> AckShapes:
    known = AckShapes(Framing.STANDARD)
    assert all(map(known.learn, bodies))
    return known


def test_acknowledgements_with_other_numbers_are_recognised() -> None:
    data = b"".join(frame(7 + n, ack(300_000 + n, 28 * (100 + n))) for n in range(50))
    assert shapes([ack(212_345, 28 * 90)]).count(data, 0, 7, 99, None) == (50, len(data))
    assert shapes([ack(212_345, 28 * 90)]).count(data, 0, 7, 20, None)[0] == 20
    assert shapes([ack(212_345, 28 * 90)]).count(data[:-1], 0, 7, 99, None)[0] == 49
    answers: list[broker_pb.SendMessageResponseB2P] = []
    assert shapes([ack(212_345, 28 * 90)]).count(data, 0, 7, 99, answers)[0] == 50
    assert [(answer.messageId, answer.appendOffset) for answer in answers] == [
        (300_000 + n, 28 * (100 + n)) for n in range(50)
    ]


def test_shapes_of_several_stores_are_recognised_together() -> None:
    known = shapes([ack(1000), ack(9_000_000_000, 1 << 40), ack(1000, 1 << 30)])
    bodies = [ack(1001), ack(9_000_000_001, 1 << 41), ack(1001, 1 << 31), ack(1002)]
    data = b"".join(frame(1 + n, body) for n, body in enumerate(bodies))
    assert known.count(data, 0, 1, 99, None) == (4, len(data))


@pytest.mark.parametrize(
    ("body", "serial_no"),
    [
        pytest.param(ack(1000), 2, id="another send"),
        pytest.param(ack(1000, code=500), 1, id="another code"),
        pytest.param(ack(10_000), 1, id="longer numbers"),
        pytest.param(ack(1000, text="Zür"), 1, id="another text"),
        pytest.param(ack(1000).replace(b"\x28\xe8", b"\x48\xe8"), 1, id="another field"),
        pytest.param(encode_reply(Failure("java.io.IOException", "no disk")), 1, id="exception"),
        pytest.param(b"", 1, id="nothing"),
    ],
)
def test_what_is_no_such_acknowledgement_is_left_to_the_parser(body: bytes, serial_no: int) -> None:
    data = frame(serial_no, body) if body else b""
    assert shapes([ack(2000)]).count(data, 0, 1, 99, None) == (0, 0)


@pytest.mark.parametrize("position", range(len(frame(1, ack(1000)))))
def test_whatever_is_recognised_with_a_changed_byte_is_an_acknowledgement(position: int) -> None:
    usual = frame(1, ack(1000))
    known = shapes([ack(2000)])
    for byte in range(256):
        data = usual[:position] + bytes([byte]) + usual[position + 1 :]
        if known.count(data, 0, 1, 1, None)[0]:
            ((serial_no, body),) = FrameDecoder(Framing.STANDARD).feed(data)
            assert serial_no == 1
            assert AckShapes(Framing.STANDARD).learn(body)


@pytest.mark.parametrize(
    "body",
    [
        ack(1000, code=500),
        encode_reply(Failure("java.io.IOException", "no disk")),
        encode_reply(Response(Method.GET_MESSAGE, b"")),
        encode_reply(Response(Method.SEND_MESSAGE, b"\x08\x01")),
        b"no envelope",
    ],
)
def test_other_replies_are_no_acknowledgements(body: bytes) -> None:
    assert not AckShapes(Framing.STANDARD).learn(body)


def test_the_shapes_of_a_strange_server_take_bounded_memory() -> None:
    known = AckShapes(Framing.STANDARD)
    for size in range(200):
        for text in ("é", "è", "x", "y" * 2):
            assert known.learn(ack(1, text=text + "z" * size))
    assert sum(map(len, known._shapes.values())) <= 64 * 8
