# SPDX-License-Identifier: Apache-2.0
"""Replies of the usual shape become columns with the values that the parser finds; all others are left to the parser.

`tests/fuzz/replies.py` compares both on random and damaged replies, `tests/golden/test_bytes.py` on replies of brokers.
"""

from __future__ import annotations

from typing import Any

import pytest

from tubemq_spark.protocol.message_columns import MessageColumns, WireMessage, split_reply
from tubemq_spark.protocol.pb.BrokerService_pb2 import GetMessageResponseB2C, TransferedMessage

pytestmark = pytest.mark.usefixtures("decoders")

HEAD = GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!")
TAIL = GetMessageResponseB2C(currOffset=28, currDataDlt=-1, requireSlow=False, maxOffset=1 << 40)


def message(message_id: int = 1 << 60, payload: bytes = b"body", flag: int = 0, check_sum: int = 77) -> Any:
    return TransferedMessage(messageId=message_id, checkSum=check_sum, payLoadData=payload, flag=flag)


def reply(*encoded: bytes, tail: bytes | None = None) -> bytes:
    """A reply as Java writes it, with messages that are already encoded, each with less than 128 bytes."""
    fields = b"".join(b"\x22" + bytes([len(one)]) + one for one in encoded)
    return HEAD.SerializeToString() + fields + (TAIL.SerializePartialToString() if tail is None else tail)


def plain(data: bytes) -> list[tuple[int, int, bytes, int]]:
    messages = GetMessageResponseB2C.FromString(data).messages
    return [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in messages]


def columns(data: bytes) -> MessageColumns:
    found = split_reply(data)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("tail", [None, b""], ids=["fields behind", "nothing behind"])
@pytest.mark.parametrize("size", [0, 1, 4, 5, 99, 100, 101, 127, 128, 1000, 16_383, 16_384, 1_100_000])
@pytest.mark.parametrize("first_id", [0, 100, 16_380, (1 << 56) - 3, 1 << 60, (1 << 63) - 6])
def test_columns_have_the_values_that_the_parser_finds(first_id: int, size: int, tail: bytes | None) -> None:
    sums = [0, 127, 128, (1 << 31) - 1, 1 << 30]
    count = 1 if size > 1_000_000 else 5
    messages = [message(first_id + n, b"p" * max(0, size - n), n % 2, sums[n]) for n in range(count)]
    ending = TAIL.SerializePartialToString() if tail is None else tail
    whole = HEAD.SerializeToString() + GetMessageResponseB2C(messages=messages).SerializePartialToString() + ending
    found = split_reply(whole)
    assert found is not None
    rest, read = found
    assert rest == HEAD.SerializeToString() + ending
    assert list(read) == plain(whole)
    assert read.size == sum(len(one.payLoadData) for one in messages)


ID, SUM, BODY, FLAG = b"\x08\x05", b"\x10\x07", b"\x1a\x04body", b"\x20\x00"
USUAL = ID + SUM + BODY + FLAG


@pytest.mark.parametrize(
    "odd",
    [
        SUM + ID + BODY + FLAG,
        ID + SUM + FLAG + BODY,
        ID + SUM + BODY,
        ID + BODY + FLAG,
        USUAL + FLAG,
        ID + USUAL,
        USUAL + b"\x2a\x01x",
        b"\x88\x00\x05" + SUM + BODY + FLAG,  # tags may be longer than they need to be
        ID + SUM + BODY + b"\x20\x80\x01",
        ID + b"\x10" + b"\xff" * 9 + b"\x01" + BODY + FLAG,
        ID + b"\x10\xff\xff\xff\xff\x0f" + BODY + FLAG,
        b"\x08" + b"\xff" * 9 + b"\x01" + SUM + BODY + FLAG,
        ID + SUM + b"\x1a\x05body" + FLAG,
        ID + SUM + b"\x1a\x03body" + FLAG,
        b"",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_other_shapes_are_left_to_the_parser(odd: bytes, place: int) -> None:
    messages = [USUAL, USUAL]
    assert split_reply(reply(*messages)) is not None
    messages.insert(place, odd)
    for tail in (None, b""):
        assert split_reply(reply(*messages, tail=tail)) is None


@pytest.mark.parametrize("cut", range(1, len(USUAL) + 2))
def test_reply_that_ends_too_early_is_left_to_the_parser(cut: int) -> None:
    assert split_reply(reply(USUAL, USUAL, tail=b"")[:-cut]) is None


@pytest.mark.parametrize("head", [b"\x8a\x01\x00", b"\x0d\0\0\0\0", b"\x1a\x80\x01" + b"x" * 128, b"\x08", b""])
def test_reply_with_other_fields_or_none_before_the_messages(head: bytes) -> None:
    assert (split_reply(head + b"\x22" + bytes([len(USUAL)]) + USUAL) is None) == bool(head)
    assert split_reply(head) is None


def test_long_replies_are_left_to_the_parser_which_counts_their_fields() -> None:
    assert (
        split_reply(GetMessageResponseB2C(messages=[message(payload=bytes(2 << 20))]).SerializePartialToString())
        is None
    )


def test_columns_are_a_sequence_of_messages() -> None:
    read = columns(reply(*(b"\x08" + bytes([n]) + SUM + BODY + FLAG for n in range(5))))
    every = [WireMessage(n, 7, b"body", 0) for n in range(5)]
    assert list(read) == every
    assert [read[0], read[4], read[-1]] == [every[0], every[4], every[4]]
    assert (list(read[1:3]), list(read[:-1]), list(read[5:])) == (every[1:3], every[:-1], [])
    assert (len(read[2:]), read[2:].size, list(read[3:].keys())) == (3, 12, [(3, 7), (4, 7)])
    with pytest.raises(IndexError):
        read[5]
