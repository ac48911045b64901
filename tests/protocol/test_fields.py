"""Tests that the fields of a long message are counted before it is parsed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol import fields
from tubemq_spark.protocol.envelope import parse
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat short messages as long ones."""
    monkeypatch.setattr(fields, "COUNTED_FROM", 0)
    monkeypatch.setattr(fields, "MAX_FIELDS", 10)


def varint(number: int) -> bytes:
    head = bytearray()
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*head, number])


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


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_raise_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
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
