# SPDX-License-Identifier: Apache-2.0
"""The wire's messages become rows in Arrow batches."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from tubemq_spark import compression
from tubemq_spark.compression import CODECS, compress
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import encode_payload
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.pb.BrokerService_pb2 import TransferedMessage
from tubemq_spark.source import message_opener
from tubemq_spark.source.row_format import RowFormat
from tubemq_spark.source.row_maker import RowMaker
from tubemq_spark.source.schema import (
    SPARK_SCHEMA,
    arrow_schema,
    spark_schema,
)

HERE = Partition(3, "clicks", 10_001)
MINUTE = datetime(2024, 2, 29, 23, 59, tzinfo=timezone.utc)


def message(body: bytes, attributes: bytes = b"", *, message_id: int = 7, flag: int | None = None) -> Any:
    payload, usual = encode_payload(body, attributes)
    return TransferedMessage(
        messageId=message_id,
        checkSum=zlib.crc32(payload) & 0x7FFFFFFF,
        payLoadData=payload,
        flag=usual if flag is None else flag,
    )


def row_maker(form: RowFormat, where: Partition = HERE) -> RowMaker:
    return RowMaker(form, where, Broker(where.broker_id, Address("host-of-broker", 8123)))


def batches_of(maker: RowMaker, messages: Sequence[Any], positions: Sequence[int] | None = None) -> Iterator[Any]:
    return maker.rows([FetchedBatch(messages, positions, 0, 28 * len(messages))])


def batch_of(maker: RowMaker, messages: Sequence[Any], positions: Sequence[int] | None = None) -> Any:
    """The only batch."""
    (batch,) = batches_of(maker, messages, positions)
    return batch


def rows(messages: Sequence[Any], positions: Sequence[int] | None = None) -> list[dict[str, Any]]:
    batch = batch_of(row_maker(RowFormat()), messages, positions)
    assert batch.schema == arrow_schema(RowFormat())
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_columns_are_those_of_the_contract() -> None:
    assert SPARK_SCHEMA.simpleString() == (
        "struct<value:binary,attributes:map<string,string>,msg_type:string,msg_time:timestamp,topic:string,"
        "broker_id:int,partition:int,offset:bigint,message_id:bigint>"
    )


def test_arrow_columns_match_the_spark_schema() -> None:
    """Spark refuses a first batch whose names, order, types or nullability differ from these."""
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC") == arrow_schema(RowFormat())


def test_row_has_all_columns() -> None:
    attributes = b"$msgType$=order,$msgTime$=202402292359,k=v"
    first, second = rows([message(b"a", attributes, message_id=5), message(b"b", message_id=6)], [56, 84])
    assert first == {
        "value": b"a",
        "attributes": [("k", "v")],
        "msg_type": "order",
        "msg_time": MINUTE,
        "topic": "clicks",
        "broker_id": 3,
        "partition": 10_001,
        "offset": 56,
        "message_id": 5,
    }
    plain = {"value": b"b", "attributes": None, "msg_type": None, "msg_time": None, "offset": 84, "message_id": 6}
    assert second == first | plain


def test_body_may_be_empty_or_look_like_a_header() -> None:
    header_like = (4).to_bytes(4, "big") + b"a=b,body"
    bodies = [b"", header_like]
    assert [row["value"] for row in rows([message(body) for body in bodies])] == bodies
    assert [row["value"] for row in rows([message(body, b"k=v") for body in bodies])] == bodies


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",=$"), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.binary(max_size=20), st.dictionaries(texts, texts, max_size=3)), min_size=1, max_size=6))
def test_any_mix_of_messages_becomes_rows(contents: list[tuple[bytes, dict[str, str]]]) -> None:
    messages = [
        message(body, ",".join(f"{key}={value}" for key, value in own.items()).encode(), message_id=number)
        for number, (body, own) in enumerate(contents)
    ]
    found = [(row["message_id"], row["value"], dict(row["attributes"] or {})) for row in rows(messages)]
    assert found == [(number, body, own) for number, (body, own) in enumerate(contents)]


@pytest.mark.parametrize(
    "payload", [b"", b"abc", b"\x00\x00\x00\x05abcd", b"\x7f\xff\xff\xffabcd", b"\x7f\xff\xff\xff"]
)
def test_error_about_a_wrong_attribute_header_names_the_message(payload: bytes) -> None:
    bad = message(payload, message_id=42, flag=1)
    with pytest.raises(ProtocolError, match=r"^3:clicks:10001: message 42: .*'corruptMessages'"):
        batch_of(row_maker(RowFormat()), [message(b"fine", b"k=v"), bad], None)


def test_positions_must_fit_the_messages() -> None:
    with pytest.raises(ValueError, match="length"):
        batch_of(row_maker(RowFormat()), [message(b"a"), message(b"b")], [28])


# Corrupt messages and unwanted types


def corrupt_pair() -> list[Any]:
    """One message with a wrong check sum, one with a wrong header."""
    one = message(b"one", b"$msgType$=a,k=v", message_id=2)
    one.checkSum ^= 1
    return [one, message(b"\x00\x00\x00\x09two", message_id=3, flag=1)]


def test_column_corrupt_exists_if_corrupt_messages_are_kept() -> None:
    assert to_arrow_schema(spark_schema(RowFormat(corrupt="keep")), timezone="UTC") == arrow_schema(
        RowFormat(corrupt="keep")
    )
    assert spark_schema(RowFormat(corrupt="skip")) == SPARK_SCHEMA


@pytest.mark.parametrize("positions", [None, [0, 28, 56, 84]])
def test_messages_of_unwanted_types_are_left_out(positions: list[int] | None) -> None:
    """The broker compares hashes; `Aa` and `BB` have the same hash."""
    form = RowFormat(msg_types={"clicks": frozenset({"Aa", "c"})})
    messages = [message(b"", b"$msgType$=%b" % kind) for kind in (b"Aa", b"BB", b"c")] + [message(b"")]
    batch = batch_of(row_maker(form), messages, positions)
    assert batch.column("msg_type").to_pylist() == ["Aa", "c"]
    assert batch.column("offset").to_pylist() == ([None, None] if positions is None else [0, 56])
    assert batch_of(row_maker(form, Partition(3, "other", 0)), messages, positions).num_rows == 4


@pytest.mark.parametrize(("mode", "ids"), [("skip", []), ("keep", [2, 3])])
def test_corrupt_message_has_no_type(mode: str, ids: list[int]) -> None:
    maker = row_maker(RowFormat(corrupt=mode, msg_types={"clicks": frozenset({"b"})}))
    batch = batch_of(maker, [message(b"", b"$msgType$=a", message_id=1), *corrupt_pair()], None)
    assert batch.column("message_id").to_pylist() == ids


# A schema of the user's


VALUE = StructField("value", BinaryType())
TEXTS_TO_BYTES = MapType(StringType(), BinaryType())


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ([StructField("value", LongType())], "value bigint"),
        ([StructField("value", BinaryType(), nullable=False)], "value binary NOT NULL"),
        ([StructField("VALUE", BinaryType())], "VALUE binary; did you mean 'value'?"),
        (
            [
                VALUE,
                StructField("topc", StringType()),
                StructField("id", StringType()),
                StructField("Value", BinaryType()),
            ],
            "topc string, id string, Value binary; did you mean 'topic'?",
        ),
        ([VALUE, StructField("body", BinaryType()), StructField("corrupt", LongType())], "body binary, corrupt bigint"),
        ([StructField("attributes", TEXTS_TO_BYTES)], "attributes map<string,binary>"),
        ([VALUE, *SPARK_SCHEMA.fields], "value binary, value binary"),
        ([], "no column"),
    ],
)
@pytest.mark.parametrize("reader", ["reader", "streamReader"])
def test_other_columns_are_refused(fields: list[StructField], shown: str, reader: str) -> None:
    source = TubeMQDataSource({"tubemq.master": "m", "tubemq.group": "g1", "subscribe": "t"})
    known = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in SPARK_SCHEMA)
    then = " Expected" if "?" in shown else "; expected"
    expected = f"the schema asks for {shown}{then} any of these columns, each once: {known}"
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}$"):
        getattr(source, reader)(StructType(fields))


@pytest.mark.parametrize(
    "columns", [("message_id", "value"), ("offset",), ("msg_time", "attributes"), ("corrupt", "topic")]
)
@pytest.mark.parametrize("corrupt", ["keep", "skip"])
def test_rows_have_only_the_wanted_columns(columns: tuple[str, ...], corrupt: str) -> None:
    messages = [message(b"a"), *corrupt_pair(), message(b"b", b"$msgTime$=202402292359,k=v")]
    columns = columns if corrupt == "keep" else columns[-1:]
    form = RowFormat(corrupt=corrupt, columns=columns)
    wanted = batch_of(row_maker(replace(form, columns=None)), messages, [0, 28, 56, 84]).select(columns)
    assert batch_of(row_maker(form), messages, [0, 28, 56, 84]).equals(wanted)


# Compressed bodies


def compressed(codec: str, body: bytes, attributes: bytes = b"", **given: Any) -> Any:
    own = attributes + b"," if attributes else b""
    return message(compress(codec, body), own + b"spark_compression=" + codec.encode(), **given)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", [b"", b"body " * 50], ids=len)
def test_compressed_bodies_are_decompressed(codec: str, body: bytes) -> None:
    attributes = b"$msgType$=order,$msgTime$=202402292359,k=v"
    (found,) = rows([compressed(codec, body, attributes)])
    assert [found] == rows([message(body, attributes)])


def test_compression_attribute_is_removed() -> None:
    found = rows([compressed("gzip", b"a"), compressed("gzip", b"b", b"$msgType$=t"), compressed("gzip", b"c", b"k=v")])
    assert [row["attributes"] for row in found] == [None, None, [("k", "v")]]
    assert [row["msg_type"] for row in found] == [None, "t", None]


def test_compressed_and_plain_messages_mix() -> None:
    mixed = [compressed("lz4", b"a"), message(b"b", b"k=v"), compressed("zstd", b"c"), message(b"d")]
    assert [row["value"] for row in rows(mixed)] == [b"a", b"b", b"c", b"d"]


BAD_BODIES = {
    "damaged": (b"spark_compression=zstd", "it has damaged zstd data"),
    "too long": (
        b"spark_compression=gzip",
        "it becomes larger than 1000 bytes, which option 'maxUnpackedBytes' limits",
    ),
    "unknown": (b"k=v,spark_compression=x", "it is compressed with 'x', which is not one of"),
}


def bad_body(name: str) -> Any:
    return message(compress("gzip", bytes(1001)), BAD_BODIES[name][0], message_id=5)


@pytest.mark.parametrize("name", BAD_BODIES)
def test_body_that_cannot_be_decompressed_fails_or_is_skipped(name: str) -> None:
    sent = [compressed("gzip", b"a"), bad_body(name), message(b"b")]
    with pytest.raises(ProtocolError, match=f"^3:clicks:10001: message 5: {BAD_BODIES[name][1]}.*'corruptMessages'"):
        batch_of(row_maker(RowFormat(max_unpacked=1000)), sent, None)
    maker = row_maker(RowFormat(corrupt="skip", max_unpacked=1000))
    batch = batch_of(maker, sent, [0, 28, 56])
    assert batch.column("value").to_pylist() == [b"a", b"b"]
    assert batch.column("offset").to_pylist() == [0, 56]
    assert f"1 corrupt messages were skipped; the first: message 5: {BAD_BODIES[name][1]}" in maker.corrupt()


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("message_format", ["raw", "inlongmsg"])
def test_body_that_cannot_be_decompressed_is_kept_as_received(name: str, message_format: str) -> None:
    """The value includes the attribute header, which names the codec."""
    bad = bad_body(name)
    maker = row_maker(RowFormat(corrupt="keep", message_format=message_format, max_unpacked=1000))
    (row,) = batch_of(maker, [bad], None).to_pylist()
    assert (row["value"], row["attributes"], row["corrupt"]) == (bad.payLoadData, None, True)


def test_unwanted_message_is_not_decompressed() -> None:
    maker = row_maker(RowFormat(msg_types={"clicks": frozenset({"BB"})}))
    damaged = message(b"no gzip", b"$msgType$=Aa,spark_compression=gzip")
    batch = batch_of(maker, [damaged, compressed("gzip", b"body", b"$msgType$=BB")], None)
    assert batch.column("value").to_pylist() == [b"body"]


def test_missing_codec_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = compressed("zstd", b"body")
    monkeypatch.setattr(compression, "is_available", lambda codec: False)
    with pytest.raises(ConfigError, match="was built without zstd"):
        batch_of(row_maker(RowFormat(corrupt="skip")), [sent], None)


@pytest.mark.parametrize("positions", [None, [28 * n for n in range(7)]])
def test_long_decompressed_bodies_come_in_several_batches(
    positions: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_opener, "_MAX_BYTES", 1000)
    sent = [compressed("zstd", bytes(600), message_id=n) for n in range(5)]
    sent.insert(2, message(bytes(9999), b"k=v", message_id=7))
    sent.append(message(b"", message_id=8))
    batches = list(batches_of(row_maker(RowFormat()), sent, positions))
    assert [batch.column("message_id").to_pylist() for batch in batches] == [[0, 1], [7], [2, 3], [4, 8]]
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == ([None] * 7 if positions is None else positions)
    for batch in batches:
        batch.validate(full=True)


def test_many_messages_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_opener, "_MAX_ROWS", 3)
    sent = [message(b"", message_id=n) for n in range(7)]
    batches = list(batches_of(row_maker(RowFormat()), sent, None))
    assert [batch.column("message_id").to_pylist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]


def test_many_attributes_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, a short attribute takes a hundred times its size on the wire."""
    monkeypatch.setattr(message_opener, "_MAX_BYTES", 30_000)
    sent = [message(b"", b",".join(b"%d" % number for number in range(100)))] * 6
    batches = list(batches_of(row_maker(RowFormat()), sent, None))
    assert [batch.num_rows for batch in batches] == [2, 2, 2]


def test_one_body_may_exceed_the_batch_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_opener, "_MAX_BYTES", 1000)
    batches = batches_of(row_maker(RowFormat()), [compressed("zstd", bytes(5000))] * 2, None)
    assert [batch.num_rows for batch in batches] == [1, 1]


def test_long_headers_are_not_cached() -> None:
    """A process may read for days, so the cache must not grow with what producers write."""
    message_opener._decode_short.cache_clear()
    batch_of(row_maker(RowFormat()), [message(b"", b"k=" + bytes(1000)), message(b"", b"k=v")], None)
    assert message_opener._decode_short.cache_info().currsize == 1
