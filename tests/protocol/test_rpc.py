# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response, encode_reply
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.rpc import RpcProtocol


def request(method: int = 17, data: bytes = b"") -> Request:
    return Request(2, method, 10_000, data)


def reply_frame(serial_no: int, reply: Response | Failure, framing: Framing = Framing.STANDARD) -> bytes:
    return encode_frame(serial_no, encode_reply(reply), framing)


@given(st.sampled_from(Framing), st.integers(1, 8).flatmap(lambda size: st.permutations(range(size))))
def test_matches_replies_to_requests_in_any_order(framing: Framing, order: list[int]) -> None:
    rpc = RpcProtocol(framing)
    numbers = [rpc.request(request(method))[0] for method in range(len(order))]
    assert len(set(numbers)) == len(order)
    wire = b"".join(reply_frame(numbers[n], Response(n, b"%d" % n), framing) for n in order)
    assert rpc.receive(wire) == [(numbers[n], Response(n, b"%d" % n)) for n in order]


def invalid_replies(number: int) -> dict[str, bytes]:
    return {
        "which no request waits for": reply_frame(number + 1, Response(17, b"")),
        "answered as method 18": reply_frame(number, Response(18, b"")),
        "length of its RspResponseBody": encode_frame(number, b"\2\x08\1\2\x08\0", Framing.STANDARD),
        "starts with": b"HTTP/1.1 400 Bad Request",
    }


@pytest.mark.parametrize("reason", invalid_replies(0))
def test_refuses_an_invalid_reply_and_all_bytes_after_it(reason: str) -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    number, _ = rpc.request(request())
    with pytest.raises(ProtocolError, match=reason):
        rpc.receive(invalid_replies(number)[reason])
    with pytest.raises(ProtocolError, match=reason):
        rpc.receive(reply_frame(number, Response(17, b"")))


@pytest.mark.parametrize("reason", invalid_replies(0))
def test_returns_the_replies_before_an_invalid_one_first(reason: str) -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    first, _ = rpc.request(request())
    second, _ = rpc.request(request())
    wire = reply_frame(first, Response(17, b"kept")) + invalid_replies(second)[reason]
    assert rpc.receive(wire) == [(first, Response(17, b"kept"))]
    with pytest.raises(ProtocolError, match=reason):
        rpc.receive(b"")


def test_refuses_a_second_reply_to_a_request() -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    number, _ = rpc.request(request())
    rpc.receive(reply_frame(number, Response(17, b"")))
    with pytest.raises(ProtocolError, match="no request waits for"):
        rpc.receive(reply_frame(number, Response(17, b"")))


def test_a_request_that_is_too_long_stays_unsent() -> None:
    rpc = RpcProtocol(Framing.PREFIXED)
    with pytest.raises(ProtocolError, match="prefixed framing"):
        rpc.request(request(data=bytes(6 * 1024 * 1024)))
    assert rpc.request(request())[0] == 1


def acknowledgement(serial_no: int, *, code: int = 200, framing: Framing = Framing.STANDARD) -> bytes:
    answer = broker_pb.SendMessageResponseB2P(success=code == 200, errCode=code, errMsg="Ok!", messageId=serial_no)
    return reply_frame(serial_no, Response(Method.SEND_MESSAGE, answer.SerializeToString()), framing)


def begin(rpc: RpcProtocol, count: int) -> int:
    """Begin so many sends, and return the serial number of the first one."""
    sends = rpc.next_sends(count)
    rpc.sent(sends)
    return sends.start


@pytest.mark.parametrize("framing", Framing)
def test_sends_that_are_stored_are_counted(framing: Framing) -> None:
    rpc = RpcProtocol(framing)
    assert [begin(rpc, 3), begin(rpc, 4)] == [1, 4]
    assert rpc.unanswered == 7
    acks = [acknowledgement(n, framing=framing) for n in range(8)]
    assert rpc.receive(acks[1]) + rpc.receive(b"".join(acks[2:6])) == []
    assert (rpc.take_outcomes(), rpc.unanswered) == ([5], 2)
    number, _ = rpc.request(request())
    assert number == 8
    assert rpc.receive(reply_frame(8, Response(17, b"other"), framing)) == [(8, Response(17, b"other"))]
    rest = acks[6] + acks[7]
    assert rpc.receive(rest[:30]) + rpc.receive(rest[30:]) == []
    assert (rpc.take_outcomes(), rpc.take_outcomes(), rpc.unanswered) == ([2], [], 0)


def test_the_answers_of_sends_are_returned_where_they_are_wanted() -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    rpc.wants_answers = True
    begin(rpc, 5)
    rpc.receive(b"".join(map(acknowledgement, [1, 2, 3])))
    rpc.receive(acknowledgement(4))
    (answers,) = rpc.take_outcomes()
    assert isinstance(answers, list)
    assert [answer.messageId for answer in answers] == [1, 2, 3, 4]


def test_an_acknowledgement_inside_another_reply_counts_for_no_send() -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    begin(rpc, 2)
    rpc.receive(acknowledgement(1))  # from now on, acknowledgements are known by their shape
    number, _ = rpc.request(request())
    inside = acknowledgement(2)
    wire = reply_frame(number, Response(17, inside))
    cut = wire.index(inside)
    assert rpc.receive(wire[:cut]) + rpc.receive(wire[cut:]) == [(number, Response(17, inside))]
    assert (rpc.take_outcomes(), rpc.unanswered) == ([1], 1)


def test_sends_that_cannot_be_encoded_stay_unsent() -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    assert rpc.next_sends(3) == range(1, 4)
    assert (rpc.unanswered, begin(rpc, 1)) == (0, 1)


def test_sends_begin_anew_where_the_serial_numbers_end() -> None:
    rpc = RpcProtocol(Framing.STANDARD)
    rpc._last_serial_no = 0x7FFFFFFF - 5
    assert [begin(rpc, 5), begin(rpc, 2), rpc.request(request())[0]] == [0x7FFFFFFF - 4, 1, 3]
