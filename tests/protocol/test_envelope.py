# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol import envelope
from tubemq_spark.protocol.envelope import (
    Failure,
    Request,
    Response,
    decode_reply,
    encode_request,
    parse,
)
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.protocol.pb import RPC_pb2 as rpc_pb
from tubemq_spark.protocol.varint import varint


def test_a_request_byte_by_byte() -> None:
    """Flag 0; service 2, protocol version 3; method 17, a timeout of 300 ms, the request."""
    assert encode_request(Request(2, 17, 300, b"call")) == b"\x02\x08\x00" + b"\x04\x08\x02\x10\x03" + (
        b"\x0b" + b"\x08\x11" + b"\x10\xac\x02" + b"\x1a\x04call"
    )


FLAG = b"\x02\x08\x01"


@pytest.mark.parametrize("status", [1, 2])
def test_error_and_fatal_are_failures(status: int) -> None:
    data = rpc_pb.RspExceptionBody(exceptionName="a.b.C", stackTrace="why").SerializeToString()
    header = bytes([4, 8, status, 24, 3])
    assert decode_reply(FLAG + header + bytes([len(data)]) + data) == Failure("a.b.C", "why", fatal=status == 2)


@pytest.mark.parametrize(
    ("name", "simple"),
    [
        ("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "StandbyException"),
        ("com.tencent.tubemq.corerpc.exception.StandbyException", "StandbyException"),
        ("a.Outer$Inner", "Inner"),
        ("Bare", "Bare"),
        ("", ""),
    ],
)
def test_the_simple_name_has_no_package(name: str, simple: str) -> None:
    assert Failure(name, "").simple_name == simple


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "length of its RpcConnHeader"),
        (b"\x02\x08", "RpcConnHeader of 2 bytes is longer than"),
        (FLAG, "length of its ResponseHeader"),
        (FLAG + b"\x80\x80\x80\x80\x80\x80", "length of its ResponseHeader"),
        (FLAG + b"\xff\xff\xff\xff\x7f", "is longer than"),
        (FLAG + b"\x00", "ResponseHeader came without status"),
        (FLAG + b"\x02\x08\x07" + b"\x00", "ResponseHeader came without status"),
        (FLAG + b"\x02\x08\x00", "length of its RspResponseBody"),
        (FLAG + b"\x02\x08\x00" + b"\x00", "RspResponseBody came without method"),
        (FLAG + b"\x02\x08\x01" + b"\x00", "RspExceptionBody came without exceptionName"),
        (FLAG + b"\x02\xff\xff", "not a ResponseHeader"),
    ],
)
def test_refuses_bytes_that_are_no_reply(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_reply(body)


def test_ignores_unknown_fields() -> None:
    unknown = b"\x9a\x06\x03new"  # field 99
    kept = broker_pb.RegisterResponseB2C(success=True, errCode=200, errMsg="", currOffset=28)
    assert parse(broker_pb.RegisterResponseB2C, kept.SerializeToString() + unknown).currOffset == 28


# A reply of 4 bytes to a request of method 17, and other encodings of lengths and fields.
REPLY = b"\x08\x08\x11\x12\x04data"
OTHER_ENCODINGS = [
    (REPLY, Response(17, b"data")),
    (b"\x88\x00\x08\x11\x12\x04data", Response(17, b"data")),  # the length takes more bytes than needed
    (b"\x09\x08\x91\x00\x12\x04data", Response(17, b"data")),  # the method, too
    (b"\x09\x08\x11\x12\x84\x00data", Response(17, b"data")),  # the length of the data, too
    (b"\x08\x12\x04data\x08\x11", Response(17, b"data")),  # another order
    (b"\x0a\x08\x12\x08\x11\x12\x04data", Response(17, b"data")),  # two methods: the last one counts
    (b"\x0e\x08\x11\x12\x04none\x12\x04data", Response(17, b"data")),  # two data fields: the last one counts
    (b"\x0a\x08\x11\x12\x04data\x08\x12", Response(18, b"data")),  # the length covers a second method
    (REPLY + b"more", Response(17, b"data")),  # bytes behind it have no meaning
    (b"\x04\x08\x11\x12\x00", Response(17, b"")),
]


@pytest.mark.parametrize("method", [None, 17, 18])
@pytest.mark.parametrize(("data", "reply"), OTHER_ENCODINGS)
def test_decodes_replies_that_are_encoded_in_another_way(data: bytes, reply: Response, method: int | None) -> None:
    assert decode_reply(FLAG + b"\x04\x08\x00\x18\x03" + data, method) == reply


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat short messages as long ones."""
    monkeypatch.setattr(envelope, "COUNTED_FROM", 0)
    monkeypatch.setattr(envelope, "MAX_FIELDS", 10)


def field(wire_type: int, value: bytes) -> bytes:
    """Return a field with a number that no message has."""
    return varint(1000 << 3 | wire_type) + value


ONE_FIELD = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda number: (0, varint(number))),
    st.binary(min_size=8, max_size=8).map(lambda data: (1, data)),
    st.binary(max_size=300).map(lambda data: (2, varint(len(data)) + data)),
    st.binary(min_size=4, max_size=4).map(lambda data: (5, data)),
)


@settings(deadline=None)
@given(st.lists(ONE_FIELD, max_size=15))
def test_fields_of_all_kinds_count(given: list[tuple[int, bytes]]) -> None:
    token = b"\x08\x01"  # the required field
    data = token + b"".join(field(wire_type, value) for wire_type, value in given)
    if len(given) < 10:
        assert parse(broker_pb.AuthorizedInfo, data).visitAuthorizedToken == 1
    else:
        with pytest.raises(ProtocolError, match=rf"^a AuthorizedInfo of {len(data)} bytes has more than 10 fields$"):
            parse(broker_pb.AuthorizedInfo, data)


def test_nested_fields_do_not_count() -> None:
    texts = [f"{number}:h:1" for number in range(8)]
    reply = master_pb.GetPartMetaResponseM2C(errCode=200, errMsg="", brokerConfigList=texts)
    assert parse(master_pb.GetPartMetaResponseM2C, reply.SerializeToString()) == reply
    message = broker_pb.TransferedMessage(messageId=1, checkSum=2, flag=0, payLoadData=b"x")
    got = broker_pb.GetMessageResponseB2C(success=True, errCode=200, errMsg="", messages=[message] * 6)
    assert parse(broker_pb.GetMessageResponseB2C, got.SerializeToString()) == got


def test_reports_the_first_message_that_lacks_a_field() -> None:
    whole = broker_pb.TransferedMessage(messageId=1, checkSum=2, flag=0, payLoadData=b"x")
    lacking = [broker_pb.TransferedMessage(messageId=1), broker_pb.TransferedMessage()]
    got = broker_pb.GetMessageResponseB2C(success=True, errCode=200, messages=[whole, *lacking])
    with pytest.raises(ProtocolError) as caught:
        parse(broker_pb.GetMessageResponseB2C, got.SerializePartialToString())
    assert str(caught.value) == (
        "a GetMessageResponseB2C came without messages.checkSum, messages.payLoadData, messages.flag"
    )
    with pytest.raises(ProtocolError, match=r"^a GetMessageResponseB2C came without success, errCode$"):
        parse(broker_pb.GetMessageResponseB2C, b"")
