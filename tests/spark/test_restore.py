# SPDX-License-Identifier: Apache-2.0
"""`restore` turns dead letters that the source reads into rows that the sink accepts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

from tubemq_spark import restore
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import decode_attributes
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.schema import Cells
from tubemq_spark.source.schema import SPARK_SCHEMA

NOON = 1_795_262_400
HALF_PAST_EIGHT = 29_920_830  # minutes since the epoch
LIMIT = 1000

Message = tuple[bytes, bytes]

ROWS = {
    "plain": Cells(b"plain"),
    "empty": Cells(b""),
    "null": Cells(None, "orders"),
    "cut": Cells(bytes(range(256)) * 20, "orders", msg_type="news"),
    "odd": Cells(
        b"\xff\x00",
        "a topic, =%2C+/ 語",
        {"a,b": None, "=": "x=,", "": '\0"\\\n+%25😀', "plain": ""},
        " ,bad",
        "yesterday",
        key=b"\x00\xfb\xff",
        broker_id=3,
    ),
    "blank": Cells(b"v", "", {}, "", "", key=b"", partition=-1),
    "both": Cells(b"v", broker_id=2**31 - 1, partition=10_001),
    "timed": Cells(b"v", msg_time=HALF_PAST_EIGHT),
    "timeless": Cells(b"v", msg_time=2**36),
    "crowded": Cells(b"value", "t" * 5000, {"k" * 60_000: "語" * 20_000, "none": None}),
    "nothing but columns": Cells(None, attributes={"k": "v" * 5000}),
}
TIMES = {"timed": "202611210830", "timeless": f"{2**36} minutes since 1970"}


def messages(cells: Cells, row: int = 0, *, spark_id: str | None = "query", time: float = NOON) -> list[Message]:
    return DeadLetter(cells, "because: a=b, c", time, spark_id, 7, 1, row).messages(LIMIT)


def as_read(spark: SparkSession, sent: Sequence[Message]) -> DataFrame:
    place = {"topic": "dead", "broker_id": 1, "partition": 0}
    rows = [
        {**place, "value": body, "attributes": decode_attributes(attributes).own, "message_id": number}
        for number, (body, attributes) in enumerate(sent)
    ]
    return spark.createDataFrame(rows, SPARK_SCHEMA)


def found(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the rows by value."""
    dicts = [{name: plain(cell) for name, cell in row.asDict().items()} for row in rows.collect()]
    return sorted(dicts, key=by_value)


def by_value(row: dict[str, Any]) -> str:
    return repr((row["value"], row["topic"], row["msg_time"]))


def plain(cell: Any) -> Any:
    return bytes(cell) if isinstance(cell, bytearray) else cell


def expected(cells: Cells, msg_time: str | None = None) -> dict[str, Any]:
    told = cells._asdict() | ({} if msg_time is None else {"msg_time": msg_time})
    return {name: cell for name, cell in told.items() if name != "corrupt" and not name.startswith("inlong_")}


def test_restored_columns_are_the_sinks(spark: SparkSession) -> None:
    assert restore(as_read(spark, [])).schema.simpleString() == (
        "struct<value:binary,attributes:map<string,string>,msg_type:string,msg_time:string,topic:string,key:binary,"
        "broker_id:int,partition:int>"
    )


def test_rows_of_all_shapes_are_restored(spark: SparkSession) -> None:
    """Each piece exists twice, in any order."""
    sent = [message for row, cells in enumerate(ROWS.values()) for message in messages(cells, row)]
    sent += [message for row, cells in enumerate(ROWS.values()) for message in messages(cells, row, time=NOON + 60)]
    random.Random(7).shuffle(sent)
    assert found(restore(as_read(spark, sent))) == sorted(
        (expected(cells, TIMES.get(name)) for name, cells in ROWS.items()), key=by_value
    )


def test_pieces_are_sorted_by_number(spark: SparkSession) -> None:
    """They are sorted by number, not by text."""
    cells = Cells(bytes(number % 251 for number in range(20_000)))
    sent = messages(cells)
    assert len(sent) > 20
    assert found(restore(as_read(spark, sent[::-1]))) == [expected(cells)]


def test_equal_rows_are_not_copies(spark: SparkSession) -> None:
    """Their origin is unknown; a row too many is better than one too few."""
    equal = messages(ROWS["cut"], 0) + messages(ROWS["cut"], 1)
    unknown = messages(ROWS["plain"], spark_id=None) + messages(ROWS["plain"], spark_id=None)
    rows = found(restore(as_read(spark, equal + unknown)))
    assert Counter(row["value"] for row in rows) == {ROWS["cut"].value: 2, ROWS["plain"].value: 2}


def test_a_letter_does_not_replace_another_of_its_name(spark: SparkSession) -> None:
    real, forged = Cells(b"pay 10", "orders", {"to": "a"}), Cells(b"pay 10", "orders", {"to": "b"})
    (sent,), ((body, attributes),) = messages(real), messages(forged)
    name, other = ((decode_attributes(each).own or {})["dead_letter"].encode() for each in (sent[1], attributes))
    both = [(body, attributes.replace(other, name)), sent]
    rows = sorted(found(restore(as_read(spark, both))), key=lambda row: str(row["attributes"]))
    assert rows == [expected(real), expected(forged)]


def test_letters_may_be_filtered_before(spark: SparkSession) -> None:
    sent = messages(ROWS["cut"]) + messages(ROWS["null"], 1)
    chosen = as_read(spark, sent).where("attributes.dead_row = 1 AND attributes.dead_reason LIKE 'because: a%'")
    assert found(restore(chosen)) == [expected(ROWS["null"])]


def test_missing_pieces_raise_an_error(spark: SparkSession) -> None:
    sent = messages(ROWS["cut"])
    name = (decode_attributes(sent[0][1]).own or {})["dead_letter"]
    dead = as_read(spark, sent[1:] + messages(ROWS["plain"], 1))
    with pytest.raises(SparkRuntimeException) as caught:
        restore(dead).count()
    assert f"dead letter {name} has {len(sent)} pieces, but {len(sent) - 1} were read" in str(caught.value)

    hint = f"attributes.dead_letter <> '{name}'"
    assert f'"{hint}"' in str(caught.value)
    assert found(restore(dead.where(hint))) == [expected(ROWS["plain"])]


BAD = "bad0" * 8
EVIL = b"dead_letter=$(touch x)\ntubemq_spark.errors.ConfigError: run this"


@pytest.mark.parametrize("attributes", [b"city=Rome", EVIL], ids=["no name", "another name"])
def test_other_messages_raise_an_error(spark: SparkSession, attributes: bytes) -> None:
    """Its text has no text of the message, which the user might paste into a shell."""
    sent = messages(ROWS["plain"])
    dead = as_read(spark, [*sent, (b"another", attributes)])
    with pytest.raises(
        SparkRuntimeException, match="message 1 of broker 1, topic dead, partition 0 is not a dead"
    ) as caught:
        restore(dead).count()
    assert "touch" not in str(caught.value)
    hint = "length(unhex(attributes.dead_letter)) = 16"
    assert f'"{hint}"' in str(caught.value)
    assert found(restore(dead.where(hint))) == [expected(ROWS["plain"])]


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("dead_pieces", "x"),
        ("dead_head", "7"),  # the value has 6 bytes
        ("dead_attributes", '[["a"%2C"b"]%2C["a"%2C"c"]]'),
        ("dead_inlong_time", "9223372036854775807"),
        *(
            pytest.param(*letter, marks=pytest.mark.thorough)
            for letter in (
                ("dead_head", "6"),  # attribute b twice
                ("dead_target", "a"),
                ("dead_topic", "%zz"),
                ("dead_key", "A"),
                ("dead_attributes", '[[null%2C"b"]]'),
            )
        ),
    ],
)
def test_malformed_letters_are_named(spark: SparkSession, attribute: str, text: str) -> None:
    malformed = b"b=c,b=", f"dead_letter={BAD},dead_value=null,{attribute}={text}".encode()
    dead = as_read(spark, [malformed, *messages(ROWS["plain"])])
    kind = "inlongmsg" if "inlong" in attribute else "raw"
    with pytest.raises(SparkRuntimeException) as caught:
        restore(dead, kind).collect()
    assert f"dead letter {BAD} is malformed: {attribute} has '{text}'. " in str(caught.value)
    assert f"\"attributes.dead_letter <> '{BAD}'\"" in str(caught.value)


INLONG = Cells(b"v", inlong_group="g,1", inlong_time=NOON * 1000 + 250, inlong_attributes={"a": None})


def test_rows_of_packs_are_restored(spark: SparkSession) -> None:
    dead = as_read(spark, messages(INLONG) + messages(ROWS["plain"], 1))
    rows = restore(dead, message_format="inlongmsg").selectExpr("* EXCEPT (inlong_time)", "unix_millis(inlong_time) ms")
    none = dict.fromkeys(("inlong_group", "inlong_stream", "inlong_attributes", "ms"))
    assert found(rows) == [
        {**expected(ROWS["plain"]), **none},
        {**expected(INLONG), **none, "inlong_group": "g,1", "inlong_attributes": {"a": None}, "ms": NOON * 1000 + 250},
    ]


def test_rows_of_packs_are_not_mistaken_for_others(spark: SparkSession) -> None:
    with pytest.raises(SparkRuntimeException, match=r'inlongmsg\. Give restore\(\) message_format="inlongmsg"'):
        restore(as_read(spark, messages(INLONG))).count()


def test_restore_refuses_other_frames(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="column value, broker_id is missing: change columns after restore"):
        restore(as_read(spark, []).drop("value", "broker_id"))
    with pytest.raises(ConfigError, match="expected raw or inlongmsg; did you mean 'inlongmsg'"):
        restore(as_read(spark, []), message_format="inlong")
    with pytest.raises(ConfigError, match=r"read the dead letter topic with spark\.read"):
        restore(spark.readStream.format("rate").load())
