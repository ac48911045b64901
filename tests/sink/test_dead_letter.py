# SPDX-License-Identifier: Apache-2.0
"""Rows to dead letters; what the source reads of them has the whole row."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.source.test_row_maker import message, rows
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import decode_attributes, encode_payload, format_msg_time
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.schema import Cells

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NOON = 1_795_262_400.25  # 2026-11-21T12:00:00.250Z
MEBIBYTE = 1 << 20

texts = st.text(max_size=30) | st.sampled_from(["", "a,b=c", "100%", "a+b", "$msgType$", " x ", "日本,語", "\0"])
odd_rows = st.builds(
    Cells,
    value=st.none() | st.binary(max_size=3000),
    topic=st.none() | texts,
    attributes=st.none() | st.dictionaries(texts, st.none() | texts, max_size=4),
    msg_type=st.none() | texts,
    msg_time=st.none() | texts | st.integers(-(2**40), 2**40),
    key=st.none() | st.binary(max_size=100),
    broker_id=st.none() | st.integers(-(2**31), 2**31 - 1),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
    inlong_group=st.none() | texts,
    inlong_stream=st.none() | texts,
    inlong_time=st.none() | st.integers(-(2**55), 2**55),
    inlong_attributes=st.none() | st.dictionaries(texts, st.none() | texts, max_size=2),
)


def dead_letter(cells: Cells, reason: str = "because", time: float = NOON, row: int | None = 3) -> DeadLetter:
    return DeadLetter(cells, reason, time, spark_id="query", spark_batch=7, spark_partition=1, row=row)


def sent(cells: Cells, limit: int = MEBIBYTE, **others: Any) -> list[tuple[bytes, bytes]]:
    return dead_letter(cells, **others).messages(limit)


def read(messages: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, Mapping[str, str]]]:
    """Return value and attributes of each message, as the source's rows have them."""
    found = rows([message(body, attributes) for body, attributes in messages])
    assert all(row["msg_type"] is None and row["msg_time"] is None for row in found)
    return [(row["value"], dict(row["attributes"])) for row in found]


def attributes_of(cells: Cells, **others: Any) -> Mapping[str, str]:
    ((_, found),) = read(sent(cells, **others))
    return found


def row_again(messages: Sequence[tuple[bytes, bytes]]) -> Cells:
    """Decode dead letters by the rules of the module's docstring, in plain Python."""
    pieces = read(messages)
    (count,) = {found.get("dead_pieces", "1") for _, found in pieces}
    by_number = {int(found.get("dead_piece", 0)): body for body, found in pieces}
    assert sorted(by_number) == list(range(int(count)))
    content = b"".join(by_number[number] for number in sorted(by_number))
    found = dict(pieces[0][1])
    head = int(found.get("dead_head", 0))
    found |= decode_attributes(content[:head]).own or {}
    texts = {name.removeprefix("dead_"): unquote(text, errors="strict") for name, text in found.items()}
    broker_id, partition = texts.get("target", ":").split(":")
    return Cells(
        value=None if texts.get("value") == "null" else content[head:],
        topic=texts.get("topic"),
        attributes=pairs(texts.get("attributes")),
        msg_type=texts.get("msg_type"),
        msg_time=texts.get("msg_time"),
        key=base64.b64decode(texts["key"], validate=True) if "key" in texts else None,
        broker_id=int(broker_id) if broker_id else None,
        partition=int(partition) if partition else None,
        inlong_group=texts.get("inlong_group"),
        inlong_stream=texts.get("inlong_stream"),
        inlong_time=int(texts["inlong_time"]) if "inlong_time" in texts else None,
        inlong_attributes=pairs(texts.get("inlong_attributes")),
    )


def pairs(text: str | None) -> dict[str, str | None] | None:
    return None if text is None else dict(json.loads(text))


def expected(cells: Cells) -> Cells:
    """Return the row that a dead letter gives back: the time as text, and `corrupt` only in the reason."""
    cells = cells._replace(corrupt=None)
    moment = cells.msg_time
    if not isinstance(moment, int):
        return cells
    try:
        return cells._replace(msg_time=format_msg_time(EPOCH + timedelta(minutes=moment)))
    except OverflowError:
        return cells._replace(msg_time=f"{moment} minutes since 1970")


@settings(deadline=None)
@given(cells=odd_rows, reason=texts, limit=st.sampled_from([600, 900, 2000, MEBIBYTE]), seed=st.randoms())
def test_nothing_is_lost(cells: Cells, reason: str, limit: int, seed: random.Random) -> None:
    messages = sent(cells, limit, reason=reason)
    assert all(len(encode_payload(body, attributes)[0]) <= limit for body, attributes in messages)
    seed.shuffle(messages)
    assert row_again(messages) == expected(cells)


def test_attributes_describe_the_row() -> None:
    cells = Cells(b"v", "orders", {"city": "a,b"}, "news", 0, key=b"\xfb\xff", broker_id=3)
    ((body, attributes),) = sent(cells, reason="the attribute city has ',' in it")
    assert body == b"v"
    found = {name: unquote(text) for name, text in read([(body, attributes)])[0][1].items()}
    name = found.pop("dead_letter")
    assert len(bytes.fromhex(name)) == 16
    assert found == {
        "dead_reason": "the attribute city has ',' in it",
        "dead_time": "2026-11-21T12:00:00.250Z",
        "dead_id": "query",
        "dead_batch": "7",
        "dead_partition": "1",
        "dead_row": "3",
        "dead_topic": "orders",
        "dead_msg_type": "news",
        "dead_msg_time": "197001010000",
        "dead_attributes": '[["city", "a,b"]]',
        "dead_key": "+/8=",
        "dead_target": "3:",
    }


def test_attributes_that_do_not_apply_are_left_out() -> None:
    ((body, attributes),) = DeadLetter(Cells(None), "it is null", NOON).messages(MEBIBYTE)
    assert body == b""
    assert read([(body, attributes)])[0][1].keys() == {"dead_reason", "dead_time", "dead_letter", "dead_value"}


@pytest.mark.parametrize("limit", [1000, MEBIBYTE])
def test_a_long_value_is_cut_into_as_few_pieces_as_possible(limit: int) -> None:
    value = bytes(number % 251 for number in range(3 * limit))
    messages = sent(Cells(value, "orders"), limit)
    assert b"".join(body for body, _ in messages) == value
    found = [attributes for _, attributes in read(messages)]
    numbers = [(each["dead_piece"], each["dead_pieces"]) for each in found]
    assert numbers == [(str(number), str(len(messages))) for number in range(len(messages))]
    assert {each["dead_topic"] for each in found} == {"orders"}
    assert {len(body) for body, _ in messages[:-1]} == {len(messages[0][0])}
    assert len(messages[0][0]) > limit - (8192 if limit == MEBIBYTE else 600)


@pytest.mark.parametrize(("reason", "limit"), [("x" * 10_000, MEBIBYTE), ("日" * 10_000, MEBIBYTE), ("=" * 400, 1000)])
def test_a_long_reason_is_shortened(reason: str, limit: int) -> None:
    most = min(4000, limit // 4)
    shown = attributes_of(Cells(b"v"), reason=reason, limit=limit)["dead_reason"]
    assert most - len("%E6%97%A5") < len(shown) <= most
    assert shown.endswith("...")
    assert reason.startswith(unquote(shown, errors="strict")[:-3])


def test_a_topic_with_too_short_messages_is_a_config_error() -> None:
    with pytest.raises(
        ConfigError, match="250 bytes, the longest message of the topic, are too few; ask an administrator"
    ):
        sent(Cells(b"value"), 250)
    assert row_again(sent(Cells(b"value"), 450)) == Cells(b"value")


# Copies


def names(messages: Sequence[tuple[bytes, bytes]]) -> set[str]:
    return {attributes["dead_letter"] for _, attributes in read(messages)}


@pytest.mark.parametrize("value", [b"v", b"v" * 5000], ids=["whole", "cut"])
def test_a_row_that_fails_again_makes_the_same_dead_letter(value: bytes) -> None:
    """Even later and with another reason, its pieces are cut at the same bytes."""
    first = sent(Cells(value), 1000)
    again = sent(Cells(value), 1000, time=NOON + 1.5, reason="for a reason in many more words than before")
    assert names(first) == names(again)
    assert len(names(first)) == 1
    assert [body for body, _ in first] == [body for body, _ in again]


OTHERS = {
    "row": dead_letter(Cells(b"v"), row=4),
    "value": dead_letter(Cells(b"w")),
    "empty": dead_letter(Cells(b"")),
    "null": dead_letter(Cells(None)),
    "topic": dead_letter(Cells(b"v", "orders")),
    "attributes": dead_letter(Cells(b"v", attributes={})),
    "batch": DeadLetter(Cells(b"v"), "because", NOON, "query", 8, 1, 3),
    "partition": DeadLetter(Cells(b"v"), "because", NOON, "query", 7, 2, 3),
    "query": DeadLetter(Cells(b"v"), "because", NOON, "other", 7, 1, 3),
    "write": DeadLetter(Cells(b"v"), "because", NOON, "query", None, 1, 3),
}


def test_another_row_makes_another_dead_letter() -> None:
    found = [names(each.messages(1000)) for each in (dead_letter(Cells(b"v")), *OTHERS.values())]
    assert len(set.union(*found)) == len(found)


def test_pieces_of_another_length_belong_to_another_dead_letter() -> None:
    """A reader must not join them."""
    value = b"v" * 5000
    assert names(sent(Cells(value), 1000)).isdisjoint(names(sent(Cells(value), 1001)))


@pytest.mark.parametrize("unknown", ["spark_id", "spark_partition", "row"])
def test_rows_of_unknown_origin_are_no_copies(unknown: str) -> None:
    origin: dict[str, Any] = {"spark_id": "write", "spark_partition": 1, "row": 3, unknown: None}
    found = [names(DeadLetter(Cells(b"v"), "because", NOON, **origin).messages(1000)) for _ in range(2)]
    assert found[0].isdisjoint(found[1])
