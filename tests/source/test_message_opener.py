# SPDX-License-Identifier: Apache-2.0
"""Messages that are opened by columns give the rows that they give one by one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timezone
from typing import Any

import pyarrow as pa
import pytest

from tests.source.test_row_maker import compressed, corrupt_pair, message, row_maker
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import MAX_ATTRIBUTES, NO_ATTRIBUTES
from tubemq_spark.protocol.message_columns import MessageColumns, split_reply
from tubemq_spark.protocol.pb.BrokerService_pb2 import GetMessageResponseB2C
from tubemq_spark.source.message_opener import Opened, open_messages
from tubemq_spark.source.row_format import RowFormat

ROOM = 1 << 20
HEADERS = [b"", b"k=v", b"$msgType$=a,k=v", b"$msgType$=b,$msgTime$=202402292359", b"\xc3\xa9=v", b",,"]


def columns(messages: Sequence[Any]) -> MessageColumns:
    split = split_reply(GetMessageResponseB2C(messages=messages).SerializePartialToString())
    assert split is not None
    return split[1]


def opened(*replies: Sequence[Any], room: int = ROOM) -> Opened | None:
    return open_messages(batches([columns(reply) for reply in replies]), timezone.utc, room)


def batches(replies: Sequence[Sequence[Any]], begin: int | None = 0) -> list[FetchedBatch]:
    found = []
    for number, messages in enumerate(replies):
        start = 28 * 100 * number
        end = start + 28 * len(messages)
        known: Sequence[int] | None = range(start, end, 28)
        if begin is None or number == 1:
            known = None
        elif number == 2:
            known = [position + 28 for position in range(start, end, 28)]
        found.append(FetchedBatch(messages, known, start, end))
    return found


@pytest.mark.parametrize("begin", [0, None])
@pytest.mark.parametrize(
    "form",
    [
        RowFormat(),
        RowFormat(corrupt="keep"),
        RowFormat(msg_types={"clicks": frozenset({"a", "b"})}),
        RowFormat(msg_types={"clicks": frozenset({"none"})}),
        RowFormat(columns=("value",)),
        RowFormat(columns=("message_id", "topic"), msg_types={"clicks": frozenset({"a"})}),
    ],
)
def test_rows_of_several_replies(form: RowFormat, begin: int | None) -> None:
    replies = [[message(b"%d" % n, HEADERS[(n + at) % 6], message_id=n) for n in range(9)] for at in range(4)]
    assert opened(*replies) is not None
    (by_columns,) = row_maker(form).rows(batches([columns(reply) for reply in replies], begin))
    (one_by_one,) = row_maker(form).rows(batches(replies, begin))
    by_columns.validate(full=True)
    assert by_columns.equals(one_by_one)


def test_opened_messages_share_the_attributes_of_equal_headers() -> None:
    found = opened([message(b"a", b"k=v"), message(b"b")], [message(b"c", b"k=v"), message(b"", b"k=w")])
    assert found is not None
    assert found.headers.own.to_pylist() == [[("k", "v")], None, [("k", "w")]]
    assert found.numbers.to_pylist() == [0, 1, 0, 2]
    assert found.bodies.to_pylist() == [b"a", b"b", b"c", b""]


def test_flag_without_attributes_leaves_the_whole_payload_as_body() -> None:
    found = opened([message(b"\xff\xff\xff\xffbody", flag=1), message(b"\0\0\0\0body", flag=1), message(b"a", flag=2)])
    assert found is not None
    assert found.bodies.to_pylist() == [b"\xff\xff\xff\xffbody", b"body", b"a"]
    assert found.attributes() == [NO_ATTRIBUTES] * 3


@pytest.mark.parametrize(
    "special",
    [
        *corrupt_pair(),
        message(b"abc", flag=1),
        message(b"\x7f\xff\xff\xffabc", flag=1),
        message(b"", b"\xff=\xff"),
        compressed("gzip", b"b"),
    ],
)
def test_special_messages_are_opened_one_by_one(special: Any) -> None:
    """And with them the messages of their reply, but not those of others."""
    sent = [[message(b"a%d" % n, message_id=n)] for n in range(3)]
    sent[1].append(special)
    assert opened(*sent) is None
    form = RowFormat(corrupt="skip")
    by_columns = list(row_maker(form).rows(batches([columns(reply) for reply in sent])))
    (one_by_one,) = row_maker(form).rows(batches(sent))
    assert [len(batch) for batch in by_columns] == [1, len(one_by_one) - 2, 1]
    assert pa.Table.from_batches(by_columns).combine_chunks().to_batches()[0].equals(one_by_one)


@pytest.mark.parametrize(
    ("special", "headers"),
    [
        (message(b"b", b"k=v," * 9), 1),
        (message(b"b", bytes(MAX_ATTRIBUTES - 4)), 1),
        (message(b"b", bytes(MAX_ATTRIBUTES)), 2),
        (message(b"spark_compression=gzip", b"k=v"), 2),
        (compressed("gzip", b"b"), None),
    ],
)
@pytest.mark.parametrize("needs_bodies", [True, False])
def test_headers_that_nobody_needs(special: Any, headers: int | None, needs_bodies: bool) -> None:
    """They are decoded only if one may name a codec or have too many attributes."""
    sent = batches([columns([message(b"a"), special])])
    found = open_messages(sent, timezone.utc, ROOM, needs_attributes=False, needs_bodies=needs_bodies)
    assert (found and len(found.headers.own)) == headers


def test_messages_of_the_parser_are_opened_one_by_one() -> None:
    assert open_messages(batches([columns([message(b"a")]), [message(b"b")]]), timezone.utc, ROOM) is None
    assert open_messages([], timezone.utc, ROOM) is None


def test_memory_of_attributes_is_bounded() -> None:
    """In memory, a short attribute takes many times its size on the wire."""
    distinct = [message(b"", b",".join(b"%d%d" % (n, number) for number in range(100))) for n in range(400)]
    assert opened(distinct) is None
    assert opened(distinct[:200]) is not None
    assert opened([distinct[0]] * 250) is not None
    assert opened([distinct[0]] * 400) is None
    assert opened([message(bytes(1000))] * 1100) is None
    assert opened([message(b"", b"," * MAX_ATTRIBUTES)], room=1 << 30) is None
    assert opened([message(b"", b"%d" % n + b"," * 40_000) for n in range(10)], room=1 << 30) is None
