# SPDX-License-Identifier: Apache-2.0
"""Replies to fetches, usual and damaged, that are read by columns and by the parser: both must give the same."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pyarrow as pa

from tests.decoders import WAYS, decoding
from tests.inlong_packs import message_obj, message_objs, pack_grouped
from tubemq_spark.client.consumer.broker_requests import unwrap_fetch
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.compression import compress
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message_columns import split_reply
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.source.row_format import RowFormat
from tubemq_spark.source.row_maker import RowMaker
from tubemq_spark.source.schema import arrow_schema

HERE = Partition(1, "fuzz", 0)
BROKER = Broker(1, Address("127.0.0.1", 8123))
FORMATS = [
    RowFormat(),
    RowFormat(corrupt="skip"),
    RowFormat(corrupt="keep"),
    RowFormat(corrupt="keep", msg_types={"fuzz": frozenset({"a", ""})}),
    RowFormat(columns=("value",)),
    RowFormat(corrupt="skip", columns=("message_id", "value")),
    RowFormat(corrupt="keep", columns=("corrupt", "offset")),
    RowFormat(columns=("topic",), msg_types={"fuzz": frozenset({"b"})}),
    RowFormat(corrupt="skip", message_format="inlongmsg"),
    RowFormat(corrupt="keep", message_format="inlong", default_format="raw"),
    RowFormat(corrupt="keep", message_format="inlongmsg", columns=("inlong_group", "msg_type", "corrupt")),
    RowFormat(corrupt="keep", message_format="inlongmsg", msg_types={"fuzz": frozenset({"a"})}),
]
_SIZES = [0, 1, 3, 4, 5, 20, 100, 120, 127, 128, 129, 300, 1024]
_LONG_SIZES = [16_383, 16_384, 70_000]
_IDS = [0, 1, 127, 128, 1 << 49, (1 << 56) - 1, 1 << 56, (1 << 61) + 7, (1 << 63) - 1, -1, -(1 << 63)]
_FLAGS = [0, 0, 0, 0, 1, 1, 1, 2, 3, 127, 128, 129, (1 << 31) - 1, -1]
_HEADERS = [
    b"",
    b"k=v",
    b"$msgType$=a,k=v",
    b"$msgType$=b,$msgTime$=202402292359",
    b"\xff=\xff",
    b",,",
    b"a=" + b"x" * 300,
    b"version=1",
    b"msgEnType=2",
]

_PACKS = [pack_grouped(1, [("groupId=g", b"body")] * 3), message_objs([message_obj(5, b"body", [("k", "v")])] * 3)]


def outcome_of(work: Callable[..., Any], *args: Any) -> Any:
    """Return what `work` returns, or its error as text."""
    try:
        return work(*args)
    except TubeMQError as error:
        return type(error).__name__, str(error)


class ReplyFuzz:
    """Makes replies, the same ones for the same state of `chance`."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    def reply(self) -> bytes:
        """Return the bytes of a reply: of the usual shape, of another valid one, or damaged."""
        chance = self._random
        first_id = chance.choice(_IDS[:-2])
        usual = chance.random() < 0.7
        messages = [self._message(first_id + number, usual) for number in range(chance.choice([0, 1, 1, 2, 3, 9]))]
        fields = [b"".join(_field(4, self._encoded(one, usual), self._pad(usual)) for one in messages)]
        head = pb.GetMessageResponseB2C(success=True, errCode=200, errMsg="OK!").SerializeToString()
        tail = pb.GetMessageResponseB2C(currOffset=28, currDataDlt=chance.choice([-1, 5]), maxOffset=1 << 40)
        fields = [head, *fields, tail.SerializePartialToString() * (chance.random() < 0.7)]
        if not usual:
            fields += [_field(4, self._encoded(self._message(1, False), False), 0), _field(11, b"unknown", 0)]
            chance.shuffle(fields)
        data = b"".join(fields)
        for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 5])):
            data = self._damaged(data)
        return data

    def _message(self, message_id: int, usual: bool) -> tuple[int, int, bytes, int]:
        chance = self._random
        flag = chance.choice(_FLAGS[:7] if usual else _FLAGS)
        size = chance.choice(_LONG_SIZES if chance.random() < 0.002 else _SIZES)
        payload = chance.randbytes(size) if chance.random() < 0.8 else chance.choice(_PACKS)
        if flag & 1 and chance.random() < 0.95:
            header = chance.choice(_HEADERS)
            if chance.random() < 0.1:
                header, payload = header + b",spark_compression=gzip", compress("gzip", payload)
            size = len(header) if chance.random() < 0.95 else chance.choice([-1, -5, len(payload) + 99, 3])
            payload = struct.pack(">i", size) + header + payload
        if not usual and chance.random() < 0.3:
            message_id = chance.choice(_IDS)
        check_sum = crc32(payload) & 0x7FFFFFFF
        if chance.random() < (0.01 if usual else 0.1):
            check_sum = chance.choice([check_sum ^ 1, check_sum - (1 << 31), 0, -1])
        return message_id if message_id < 1 << 63 else 5, check_sum, payload, flag

    def _encoded(self, message: tuple[int, int, bytes, int], usual: bool) -> bytes:
        message_id, check_sum, payload, flag = message
        pad = self._pad(usual)
        fields = [
            b"\x08" + _varint(message_id, pad),
            b"\x10" + _varint(check_sum, pad),
            _field(3, payload, pad),
            b"\x20" + _varint(flag, pad),
        ]
        if not usual:
            chance = self._random
            for _ in range(chance.choice([0, 0, 1, 2])):
                fields.append(chance.choice([*fields, _field(9, b"more", 0), b"\x28\x05"]))
            if chance.random() < 0.2:
                chance.shuffle(fields)
            if chance.random() < 0.1:
                fields.pop()
        return b"".join(fields)

    def _pad(self, usual: bool) -> int:
        """Return by how many bytes a varint is longer than it needs to be."""
        return 0 if usual or self._random.random() < 0.9 else self._random.choice([1, 2, 5])

    def _damaged(self, data: bytes) -> bytes:
        chance = self._random
        # Most bytes are of payloads, so damage a place before one as often as any.
        at = chance.randrange(len(data) + 1)
        if chance.random() < 0.5 and (found := data.find(chance.choice([b"\x1a", b"\x22", b"\x10"]), at)) >= 0:
            at = max(0, found + chance.randint(-2, 2))
        match chance.randrange(5):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + data[at + 1 :]
            case 2:
                return data[:at] + chance.randbytes(1) + data[at:]
            case 3:
                other = chance.choice([0x08, 0x10, 0x1A, 0x20, 0x22, 0x7F, 0x80, 0xFF, chance.randrange(256)])
                return data[:at] + bytes([other]) + data[at + 1 :]
            case _:
                end = at + chance.randint(1, 40)
                return data[:end] + data[at:]


def difference(replies: Sequence[bytes], form: RowFormat) -> str | None:
    """Return what differs between columns, decoded in each way, and the parser, or None. The replies are read one after
    the other."""
    for way in WAYS:
        with decoding(way):
            if (found := _difference(replies, form)) is not None:
                return f"{way}: {found}"
    return None


def _difference(replies: Sequence[bytes], form: RowFormat) -> str | None:
    by_columns: list[FetchedBatch] = []
    by_parser: list[FetchedBatch] = []
    for data in replies:
        found = outcome_of(unwrap_fetch, Response(17, data), "fetching")
        wanted = outcome_of(unwrap_reply, Response(17, data), pb.GetMessageResponseB2C, "fetching")
        if not isinstance(wanted, pb.GetMessageResponseB2C):
            if found != wanted:
                return f"{found!r} instead of {wanted!r}"
            continue
        rest, messages = found
        plain = [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in wanted.messages]
        if [(one.messageId, one.checkSum, one.payLoadData, one.flag) for one in messages] != plain:
            return f"other messages: {list(messages)} instead of {plain}"
        if _without_messages(rest) != _without_messages(wanted):
            return f"{rest} instead of {wanted}"
        count = len(messages)
        positions = range(0, 28 * count, 28) if count % 2 else None
        by_columns.append(FetchedBatch(messages, positions, 0, 28 * count))
        by_parser.append(FetchedBatch(wanted.messages, positions, 0, 28 * count))
    found, wanted = _rows(form, by_columns, form.columns), _rows(replace(form, columns=None), by_parser, form.columns)
    return None if found == wanted else f"{found} instead of {wanted}"


def _without_messages(reply: pb.GetMessageResponseB2C) -> bytes:
    found = pb.GetMessageResponseB2C()
    found.CopyFrom(reply)
    del found.messages[:]
    return found.SerializeToString(deterministic=True)


def _rows(form: RowFormat, batches: Sequence[FetchedBatch], columns: Sequence[str] | None) -> Any:
    maker = RowMaker(form, HERE, BROKER)

    def rows() -> pa.Table:
        schema = arrow_schema(form)
        table = pa.Table.from_batches(maker.rows(batches), schema).combine_chunks()
        return table if columns is None else table.select(columns)

    found = outcome_of(rows)
    if isinstance(found, pa.Table):
        found.validate(full=True)
    # Which pack is found to be corrupt first depends on how many messages are opened together.
    return found, maker.corrupt() if form.message_format == "raw" else maker.corrupt().partition("; the first")[0]


def differences(seed: int, count: int) -> Iterator[str]:
    """Yield the differences that `count` replies show, and a complaint if few of them came as columns."""
    fuzz = ReplyFuzz(random.Random(seed))
    done = columns = 0
    while done < count:
        replies = [fuzz.reply() for _ in range(1 + done % 5)]
        done += len(replies)
        form = FORMATS[done % len(FORMATS)]
        if (problem := difference(replies, form)) is not None:
            yield f"seed {seed}, reply {done}: {replies!r} as {form}: {problem}"
        for data in replies:
            columns += split_reply(data) is not None
    if columns < count // 10:
        yield f"seed {seed}: only {columns} of {count} replies were read by columns"


def _field(number: int, data: bytes, pad: int) -> bytes:
    return _varint(number << 3 | 2, 0) + _varint(len(data), pad) + data


def _varint(number: int, pad: int) -> bytes:
    """Encode `number` with `pad` bytes more than it needs, 10 at most in total."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    for _ in range(min(pad, 10 - len(found))):
        found[-1] |= 0x80
        found.append(0)
    return bytes(found)
