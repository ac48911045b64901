# SPDX-License-Identifier: Apache-2.0
"""InLongMsg packs become rows."""

from __future__ import annotations

import tracemalloc
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tests.inlong_packs import frame, group, header, pack_3, pack_4, pack_grouped, sized
from tests.source.test_row_maker import MINUTE, batch_of, batches_of, message, row_maker
from tubemq_spark.errors import ProtocolError
from tubemq_spark.source.row_format import BYTES, ROWS, RowFormat
from tubemq_spark.source.row_maker import RowMaker
from tubemq_spark.source.schema import SPARK_SCHEMA, arrow_schema, spark_schema

ONE, OTHER = "groupId=g&streamId=s&dt=1709251140123", "bid=b&t=202402292359"
INLONG = ["inlong_group", "inlong_stream", "inlong_time", "inlong_attributes", "inlong_index"]


def maker(**given: Any) -> RowMaker:
    return row_maker(RowFormat(message_format="inlongmsg", **given))


def rows(maker: RowMaker, messages: list[Any], positions: list[int] | None = None) -> list[dict[str, Any]]:
    batch = batch_of(maker, messages, positions)
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.mark.parametrize("corrupt", ["fail", "skip", "keep"])
def test_columns(corrupt: str) -> None:
    """`corrupt` stays the last column."""
    spark = spark_schema(RowFormat(corrupt=corrupt, message_format="inlongmsg"))
    assert spark.fieldNames() == [*SPARK_SCHEMA.fieldNames(), *INLONG, *(["corrupt"] if corrupt == "keep" else [])]
    assert all(field.nullable for field in spark)
    assert to_arrow_schema(spark, timezone="UTC") == arrow_schema(
        RowFormat(corrupt=corrupt, message_format="inlongmsg")
    )
    for messages in ([message(pack_grouped(1, []))], [message(pack_grouped(1, [(ONE, b"body")]))]):
        assert batch_of(maker(corrupt=corrupt), messages, None).schema == arrow_schema(
            RowFormat(corrupt=corrupt, message_format="inlongmsg")
        )


def test_each_message_of_a_pack_is_a_row() -> None:
    packs = [
        message(pack_grouped(1, [(ONE, b"a"), (OTHER, b"b")], compressed=True), b"$msgType$=x,k=v", message_id=5),
        message(pack_3("", []), message_id=6),
        message(pack_4(sized([b"c", b"d", b"e"])), message_id=7),
    ]
    found = rows(maker(zone=ZoneInfo("Asia/Shanghai")), packs, [0, 28, 56])
    first, second, *third = found
    (outer,) = rows(row_maker(RowFormat()), packs[:1], [0])
    assert (outer["attributes"], outer["msg_type"], outer["message_id"]) == ([("k", "v")], "x", 5)
    assert first == outer | {
        "value": b"a",
        "inlong_group": "g",
        "inlong_stream": "s",
        "inlong_time": MINUTE.replace(microsecond=123_000),
        "inlong_attributes": [("groupId", "g"), ("streamId", "s"), ("dt", "1709251140123")],
        "inlong_index": 0,
    }
    assert second == outer | {
        "value": b"b",
        "inlong_group": "b",
        "inlong_stream": None,
        "inlong_time": datetime(2024, 2, 29, 15, 59, tzinfo=timezone.utc),
        "inlong_attributes": [("bid", "b"), ("t", "202402292359")],
        "inlong_index": 1,
    }
    assert [row["value"] for row in third] == [b"c", b"d", b"e"]
    assert {(row["offset"], row["message_id"], row["msg_type"]) for row in third} == {(56, 7, None)}
    keys = [(row["topic"], row["broker_id"], row["partition"], row["message_id"], row["inlong_index"]) for row in found]
    assert [key[4] for key in keys] == [0, 1, 0, 1, 2]
    assert len(set(keys)) == 5


def test_rows_do_not_depend_on_batching() -> None:
    packs = [message(pack_grouped(1, [(ONE, b"%d" % n)] * n), message_id=n) for n in range(5)]
    one_by_one = [row for pack in packs for row in rows(maker(), [pack])]
    assert rows(maker(), packs) == one_by_one
    assert len(one_by_one) == 10


def good_and_bad() -> list[Any]:
    """Messages that are not a pack, or have a wrong check sum or header, between packs."""
    wrong_sum = message(pack_grouped(1, [(ONE, b"lost")]), message_id=3)
    wrong_sum.checkSum ^= 1
    return [
        message(pack_grouped(1, [(ONE, b"a")]), message_id=1),
        message(b"no pack", b"$msgType$=x,k=v", message_id=2),
        wrong_sum,
        message(b"\x00\x00\x00\x09two", message_id=4, flag=1),
        message(pack_grouped(1, [(ONE, b"b"), (ONE, b"c")]), message_id=5),
    ]


def test_message_that_is_not_a_pack_is_kept_unchanged() -> None:
    """It is one row with the message's own columns."""
    bad = good_and_bad()[1:4]
    found = rows(maker(corrupt="keep"), good_and_bad())
    assert [row["message_id"] for row in found] == [1, 2, 3, 4, 5, 5]
    assert [row["corrupt"] for row in found] == [False, True, True, True, False, False]
    assert [row["value"] for row in found[1:4]] == [b"no pack", bad[1].payLoadData, bad[2].payLoadData]
    assert [row["msg_type"] for row in found[1:4]] == ["x", None, None]
    assert found[1]["attributes"] == [("k", "v")]
    assert all(row[name] is None for row in found[1:4] for name in INLONG)


@pytest.mark.parametrize("corrupt", ["fail", "skip", "keep"])
def test_packs_of_unwanted_types_are_not_unpacked(corrupt: str) -> None:
    reader = maker(corrupt=corrupt, msg_types={"clicks": frozenset({"y"})})
    packs = [message(b"no pack", b"$msgType$=x"), message(pack_grouped(1, [(ONE, b"a")] * 2), b"$msgType$=y")]
    assert [row["value"] for row in rows(reader, packs, [0, 28])] == [b"a", b"a"]
    assert reader.corrupt() == ""


# Long packs


def long_pack(count: int, body: bytes) -> bytes:
    """A pack of version 1 with all messages in one compressed group."""
    return frame(1, header(1, 1) + group(1, ONE, sized([body] * count), compressed=True))


@pytest.mark.parametrize(
    ("pack", "count"),
    [
        (long_pack(50_000, bytes(1000)), 50_000),
        (long_pack(200_000, b""), 200_000),
        (pack_3("k=" + "x" * 60_000, [[("", b"")] * 500], compressed=True), 500),
        (pack_3("&".join(map(str, range(9999))), [[("", b"")] * 200], compressed=True), 200),
        (pack_3("", [[(f"dt={number}&a=b&c=d", b"") for number in range(30_000)]], compressed=True), 30_000),
    ],
    ids=["bodies", "empty bodies", "long attributes", "many attributes", "own attributes"],
)
def test_batches_have_a_bounded_size(pack: bytes, count: int) -> None:
    """This does not depend on the size on the wire."""
    assert len(pack) < 3 << 20
    batches = 0
    indexes: list[int] = []
    for batch in batches_of(maker(), [message(pack), message(pack)], None):
        assert batch.num_rows <= ROWS
        assert batch.nbytes < BYTES + (1 << 20)
        indexes += batch.column("inlong_index").to_pylist()
        batches += 1
    assert indexes == [*range(count)] * 2
    assert batches > 2


def test_repeated_attributes_count_towards_the_size() -> None:
    outer = b"k=" + bytes(100_000)
    batches = list(batches_of(maker(), [message(pack_4(sized([b"x"] * 300)), outer)], None))
    assert sum(batch.num_rows for batch in batches) == 300
    assert all(batch.nbytes < BYTES + (1 << 20) for batch in batches)
    with pytest.raises(ProtocolError, match="its InLongMsg takes more than 67108864 bytes"):
        list(batches_of(maker(), [message(pack_4(sized([b"x"] * 700)), outer)], None))


@pytest.mark.parametrize("corrupt", ["skip", "keep"])
def test_damaged_pack_gives_no_row_at_all(corrupt: str) -> None:
    """Even if the first rows would fill batches."""
    half = group(1, ONE, sized([bytes(1000)] * 30_000), compressed=True)
    damaged = frame(1, header(1, 2) + half + half[:-1])
    packs = [message(pack_grouped(1, [(ONE, b"a")])), message(damaged), message(pack_grouped(1, [(ONE, b"b")]))]
    (batch,) = batches_of(maker(corrupt=corrupt), packs, None)
    kept = [damaged] if corrupt == "keep" else []
    assert batch.column("value").to_pylist() == [b"a", *kept, b"b"]


def test_memory_of_packs_is_bounded() -> None:
    """Five packs of 10 MB in total, each 40 MB after decompression."""
    packs = [message(long_pack(4_000, bytes(10_000)), message_id=number) for number in range(5)]
    tracemalloc.start()
    try:
        rows = sum(batch.num_rows for batch in batches_of(maker(), packs, None))
        assert tracemalloc.get_traced_memory()[1] < 130 << 20
    finally:
        tracemalloc.stop()
    assert rows == 20_000
