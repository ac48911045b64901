# SPDX-License-Identifier: Apache-2.0
"""InLongMsg packs of InLong's DataProxy are decoded."""

from __future__ import annotations

import base64
import struct
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inlong_packs import (
    Messages,
    frame,
    group,
    header,
    pack_3,
    pack_4,
    pack_grouped,
    sized,
    snappy,
    with_attributes,
)
from tubemq_spark.errors import ProtocolError
from tubemq_spark.source.inlong.inlongmsg import Head, unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "inlong"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NAMES = sorted(file.stem for file in GOLDEN.glob("*.bin"))


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


def messages(pack: bytes, **given: Any) -> list[tuple[Head, bytes]]:
    return [(head, body) for head, bodies in unpack(pack, **given) for body in bodies.to_pylist()]


def attributes_of(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (part.partition("=") for part in text.split("&") if part)}


def microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


# Packs that InLong's own class wrote


@pytest.mark.parametrize("name", NAMES)
def test_messages_equal_those_that_inlongs_own_class_reads(name: str) -> None:
    """InLong's class reorders only messages with their own attributes between others; there are none here."""
    lines = [line.split(" ") for line in (GOLDEN / f"{name}.txt").read_text().splitlines()]
    theirs = [(attributes_of(base64.b64decode(text).decode()), base64.b64decode(body)) for text, body in lines]
    assert [(dict(head.attributes), body) for head, body in messages(golden(name))] == theirs


@pytest.mark.parametrize("form", ["plain", "snappy"])
def test_heads_of_binary_packs(form: str) -> None:
    time = microseconds("2024-02-29T23:59:00+00:00")
    (named, _), *_ = messages(golden(f"v4-named-{form}"))
    assert (named.group, named.stream, named.time) == ("g_bin", "s_bin", time)
    assert named.attributes == {"groupId": "g_bin", "streamId": "s_bin", "rtms": "7", "dt": "1709251140000", "cnt": "4"}
    (numbered, _), *_ = messages(golden(f"v4-numbered-{form}"))
    assert (numbered.group, numbered.stream, numbered.time) == ("101", "202", time)
    own = [(head.attributes.get("a"), body) for head, body in messages(golden(f"v4-attributes-{form}"))]
    assert own == [("1", b"first"), ("2", b"second"), ("2", b"third"), ("3", b"fourth")]


# Any pack

keys = st.text("abcdefg", min_size=1, max_size=4)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="&="), max_size=6)
texts = st.dictionaries(keys, values, max_size=3).map(lambda own: "&".join(f"{key}={own[key]}" for key in own))
some = st.lists(st.tuples(texts, st.binary(max_size=30)), max_size=5)


def taken_apart(pack: bytes) -> list[tuple[dict[str, str], bytes]]:
    return [(dict(head.attributes), body) for head, body in messages(pack)]


@given(some, st.sampled_from([0, 1, 2]), st.booleans())
def test_any_pack_of_groups_is_unpacked(sent: Messages, version: int, compressed: bool) -> None:
    assert taken_apart(pack_grouped(version, sent, compressed)) == [(attributes_of(text), body) for text, body in sent]


@given(texts, st.lists(some, max_size=3), st.booleans())
def test_any_pack_of_messages_with_attributes_is_unpacked(
    common: str, blocks: list[Messages], compressed: bool
) -> None:
    expected = [(attributes_of(common) | attributes_of(text), body) for sent in blocks for text, body in sent]
    assert taken_apart(pack_3(common, blocks, compressed)) == expected


@given(texts, some, st.booleans(), st.tuples(*[st.integers(0, 2**16 - 1)] * 2), st.integers(0, 2**32 - 1))
def test_any_binary_pack_is_unpacked(
    common: str, sent: Messages, compressed: bool, ids: tuple[int, int], seconds: int
) -> None:
    told = {"cnt": "3", "dt": str(seconds * 1000)}
    given: dict[str, Any] = {"ids": ids, "seconds": seconds, "count": 3, "compressed": compressed}
    named = pack_4(sized(body for _, body in sent), common, flags=4, **given)
    assert taken_apart(named) == [(attributes_of(common) | told, body) for _, body in sent]
    numbers = {"groupId": str(ids[0]), "streamId": str(ids[1])}
    numbered = pack_4(with_attributes(sent), common, flags=1, **given)
    assert taken_apart(numbered) == [
        (attributes_of(text) | attributes_of(common) | told | numbers, body) for text, body in sent
    ]


# Attributes


def head_of(text: str, zone: str = "UTC") -> Head:
    ((head, _),) = messages(pack_grouped(1, [(text, b"")]), zone=ZoneInfo(zone))
    return head


@pytest.mark.parametrize(
    ("text", "group_name", "stream"),
    [
        ("groupId=g&streamId=s&bid=b&tid=t", "g", "s"),
        ("bid=b&tid=t", "b", "t"),
        ("groupId=&streamId", "", ""),
        ("dt=1", None, None),
        ("", None, None),
        ("groupId=1&groupId=2", "2", None),
        ("groupId=a=b", "a=b", None),
    ],
)
def test_group_and_stream(text: str, group_name: str | None, stream: str | None) -> None:
    head = head_of(text)
    assert (head.group, head.stream) == (group_name, stream)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("dt=1709251140123", "2024-02-29T23:59:00.123+00:00"),
        ("dt= 0 ", "1970-01-01T00:00:00+00:00"),
        ("dt=-1", "1969-12-31T23:59:59.999+00:00"),
        ("dt=253402300799999", "9999-12-31T23:59:59.999+00:00"),
        ("dt=253402300800000", None),
        ("dt=-62135596800001", None),
        ("dt=" + "9" * 5000, None),
        ("dt=٣", None),
        ("dt=soon", None),
        ("dt=-", None),
        ("dt=", None),
        ("t=202402292359", "2024-02-29T23:59:00+08:00"),
        ("t=20240229235959&dt=0", "2024-02-29T23:59:00+08:00"),
        ("t=2024022923", "2024-02-29T23:00:00+08:00"),
        ("t=20240229235", "2024-02-29T23:00:00+08:00"),
        ("t=20240229", "2024-02-29T00:00:00+08:00"),
        ("t=2024022&dt=0", "1970-01-01T00:00:00+00:00"),
        ("t=20240230&dt=0", "1970-01-01T00:00:00+00:00"),
        ("", None),
    ],
)
def test_time(text: str, time: str | None) -> None:
    assert head_of(text, "Asia/Shanghai").time == (None if time is None else microseconds(time))


def test_lone_surrogates_and_damaged_texts_of_messages_are_replaced() -> None:
    assert head_of("a=\ud83d").attributes == {"a": "\N{REPLACEMENT CHARACTER}"}
    pack = pack_4(sized([b"", b"a=\xff"]), flags=5)
    ((head, _),) = messages(pack)
    assert head.attributes["a"] == "\N{REPLACEMENT CHARACTER}"


# Damage


HUGE = b"\xff\xff\xff\xff"
GROUP_HEAD = header(1, 1) + b"\0\0"  # of a group without attributes

DAMAGED = {
    "nothing": (b"", "0 bytes is not an InLongMsg"),
    "another version": (frame(5, b"\0\0\0\0"), "not an InLongMsg"),
    "another end": (frame(1, header(1, 0))[:-1] + b"\2", "not an InLongMsg"),
    "one mark": (b"\x0f\x01", "is not an InLongMsg"),
    "three bytes": (b"\x0f\x0f\x0f", "not an InLongMsg"),
    "no fields": (frame(2, b"\0" * 8), "4 bytes of its number of messages, but 0 are left"),
    "many groups": (frame(1, header(1, 2**32 - 1)), "2 bytes of the size of attributes, but 0 are left"),
    "long attributes": (frame(1, header(1, 1) + b"\xff\xff"), "65535 bytes of attributes, but 0 are left"),
    "no text": (frame(1, header(1, 1) + b"\0\x01\xff\0\0\0\1\0"), "attributes that are not text"),
    "a huge group": (frame(1, GROUP_HEAD + HUGE), "4294967295 bytes of a group, but 0 are left"),
    "an empty group": (frame(1, GROUP_HEAD + b"\0\0\0\0"), "a group with an unknown compression"),
    "another compression": (frame(1, GROUP_HEAD + sized([b"\2abc"])), "a group with an unknown compression"),
    "more groups": (frame(1, header(1, 0) + b"abc"), "has 3 bytes after its end"),
    "a huge message": (
        frame(1, GROUP_HEAD + sized([b"\0" + HUGE + b"abc"])),
        "4294967295 bytes of a message, but 3 are left",
    ),
    "half a size": (frame(1, GROUP_HEAD + sized([b"\0\0\0"])), "ends within the size of a message"),
    "no attributes": (frame(3, header(3, 1) + group(3, "", sized([sized([b"body"])]))), "without its attributes"),
    "binary, no attributes": (pack_4(sized([b"body"]), flags=5), "without its attributes"),
    "binary, short": (frame(4, b"\0" * 24), "25 bytes of its header, but 24 are left"),
    "binary, huge": (pack_4(b"")[:23] + HUGE + pack_4(b"")[27:], "4294967295 bytes of its data, but 4 are left"),
    "binary, another end": (
        pack_4(b"")[:-3] + b"\2" + pack_4(b"")[-2:],
        "size than its header says, or no end",
    ),
    "binary, another size": (
        pack_4(b"")[:5] + b"\x18" + pack_4(b"")[6:],
        "size than its header says, or no end",
    ),
    "binary, more": (pack_4(b"")[:-2] + b"!" + pack_4(b"")[-2:], "has 1 bytes after its end"),
    "binary, gzip": (pack_4(b"", kind=0x47), "has the unknown compression 2"),
    "no snappy": (frame(1, GROUP_HEAD + sized([b"\1"])), "snappy data without its size"),
    "endless size": (frame(1, GROUP_HEAD + sized([b"\1" + b"\x80" * 9])), "snappy data without its size"),
    "huge snappy": (frame(1, GROUP_HEAD + sized([b"\1\xff\xff\xff\xff\x0f"])), "5 bytes of snappy cannot become"),
    "damaged snappy": (frame(1, GROUP_HEAD + sized([b"\1" + snappy(b"abc")[:-1]])), "damaged snappy data"),
    "longer snappy": (frame(1, GROUP_HEAD + sized([b"\1\4" + snappy(b"abc")[1:]])), "damaged snappy data"),
}


@pytest.mark.parametrize(("pack", "says"), DAMAGED.values(), ids=DAMAGED)
def test_error_describes_the_damage(pack: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        unpack(pack)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "pack",
    [
        pack_grouped(1, [("", bytes(2000))], compressed=True),
        pack_grouped(1, [("", b"")] * 20),  # each message counts, however short
        pack_grouped(1, [("a" * 1000, b"")]),
        pack_grouped(1, [("&".join("abcdefghijklmnopq" * 4), b"")]),
        frame(1, header(1, 1) + group(1, "", bytes(4 * 20))),
        frame(1, header(1, 1) + group(1, "a" * 300, bytes(4 * 3))),
        pack_3("", [[("a" * 300, b"")] * 3], compressed=True),
        pack_4(bytes(4 * 20)),
    ],
    ids=["snappy", "groups", "attributes", "entries", "messages", "repeated", "own", "binary"],
)
def test_pack_that_takes_too_much_memory_is_refused(pack: bytes) -> None:
    assert list(unpack(pack)) != []
    with pytest.raises(ProtocolError, match="its InLongMsg takes more than 1000 bytes"):
        unpack(pack, most=1000)


def test_message_counts_in_packs_are_ignored() -> None:
    """InLong's own reader ignores them, too."""
    for told in (0, 1, 2**31):
        inside = struct.pack(">qII", 7, told, 1) + b"\0\0" + struct.pack(">I", told) + sized([b"\0" + sized([b"body"])])
        assert messages(frame(2, inside)) == [(Head({}, None, None, None), b"body")]


def test_times_without_a_zone_are_utc() -> None:
    ((head, _),) = unpack(pack_grouped(1, [("t=20240229", b"")]))
    assert head.time == microseconds("2024-02-29T00:00:00+00:00")
