# SPDX-License-Identifier: Apache-2.0
"""Messages of InLong's DataProxy are opened by their attributes."""

from __future__ import annotations

import gzip
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.inlong_packs import field, message_obj, message_objs, pack_grouped, snappy
from tests.source.test_row_maker import batch_of, batches_of, message, row_maker
from tubemq_spark.errors import ProtocolError
from tubemq_spark.source.row_format import RowFormat

TIME = 1_709_251_140_123
MOMENT = datetime(2024, 2, 29, 23, 59, 0, 123_000, timezone.utc)
IDS = "inlongGroupId=g,inlongStreamId=s"
PARAMS = [("k", "1"), ("msgTime", f"{TIME}"), ("k", "2")]
V1 = message_objs([message_obj(TIME, b"one", PARAMS), message_obj(TIME, b"two", PARAMS), message_obj(-5, b"")])
V0 = pack_grouped(1, [(f"groupId=g&streamId=s&dt={TIME}", b"one")])
COMPRESSIONS = {
    "none": (V1, (None, "0", "+0", "NONE")),
    "gzip": (gzip.compress(V1), ("1", "01", "INLONG_GZ")),
    "snappy": (snappy(V1), ("2", "INLONG_SNAPPY")),
}


def form(**given: Any) -> RowFormat:
    return RowFormat(message_format="inlong", **given)


def rows(body: bytes, attributes: str, **given: Any) -> list[dict[str, Any]]:
    batch = batch_of(row_maker(form(**given)), [message(body, attributes.encode())])
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def inner(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("value", "inlong_group", "inlong_stream", "inlong_time", "inlong_attributes", "inlong_index")
    return tuple(row[name] for name in names)


# Which format


@pytest.mark.parametrize(
    "spelling", ["version=1", "version=01", "version=+1,msgEnType=V0", "msgEnType=1", "msgEnType=V1"]
)
@pytest.mark.parametrize(
    ("compression", "name"), [(c, name) for c, (_, names) in COMPRESSIONS.items() for name in names]
)
def test_protobuf(spelling: str, compression: str, name: str | None) -> None:
    """Group and stream are the message's attributes, whatever those inside say."""
    attributes = f"{spelling},{IDS}" + ("" if name is None else f",compressType={name}")
    params = [("k", "2"), ("msgTime", f"{TIME}")]
    first, second, third = rows(COMPRESSIONS[compression][0], attributes)
    assert inner(first) == (b"one", "g", "s", MOMENT, params, 0)
    assert inner(second) == (b"two", "g", "s", MOMENT, params, 1)
    assert inner(third) == (b"", "g", "s", datetime(1969, 12, 31, 23, 59, 59, 995_000, timezone.utc), [], 2)
    assert dict(first["attributes"])["inlongGroupId"] == "g"


@pytest.mark.parametrize(
    "spelling", ["version=2,k=v", "msgEnType=2,compressType=9", "msgEnType=V0", "dataproxyip=1", ""]
)
def test_inlongmsg(spelling: str) -> None:
    (row,) = rows(V0, spelling)
    assert inner(row)[:4] == (b"one", "g", "s", MOMENT)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (f"version=0,{IDS},msgTime={TIME},compressType=1,$msgType$=x", ("g", "s", MOMENT)),
        ("msgEnType=0,msgTime=soon", (None, None, None)),
    ],
)
def test_plain_body(attributes: str, expected: tuple[Any, ...]) -> None:
    """It is never decompressed."""
    (row,) = rows(b"body", attributes)
    own = [(key, value) for key, _, value in (one.partition("=") for one in attributes.split(",")) if key[0] != "$"]
    assert inner(row) == (b"body", *expected, own, 0)


def test_default_format() -> None:
    (row,) = rows(b"body", "", default_format="raw")
    assert inner(row) == (b"body", None, None, None, [], 0)
    with pytest.raises(ProtocolError, match="is not an InLongMsg"):
        rows(b"body", "")


@pytest.mark.parametrize(
    "attribute", ["version=V1", "version=3", "version=-1", "version=", "msgEnType=V2", "msgEnType=99"]
)
def test_unknown_version(attribute: str) -> None:
    with pytest.raises(ProtocolError, match=r"its InLong version .* is none of 0"):
        rows(V1, attribute)


# Corrupt protobuf

MANY = message_obj(1, b"", [("", "")] * 100_001)
NO_MESSAGE = "its body is not a whole MessageObjs"
BAD = {
    "cut": (V1[:-1], "0", NO_MESSAGE),
    "cut inside": (field(1, message_obj(1, b"body")[:-1]), "0", NO_MESSAGE),
    "zeros": (bytes(8), "0", NO_MESSAGE),
    "group": (V1 + b"\x13\x14", "0", NO_MESSAGE),
    "without time": (V1 + field(1, field(2, b"ip") + field(3, b"body")), "0", "a message without msgTime"),
    "unknown compression": (V1, "3", "its compressType '3' is none of NONE, INLONG_GZ"),
    "unknown name": (V1, "inlong_gz", "its compressType 'inlong_gz' is none of"),
    "other compression": (V1, "1", "damaged gzip"),
    "trailer": (gzip.compress(V1)[:-4] + b"abcd", "1", "damaged gzip"),
    "two members": (gzip.compress(V1) * 2, "1", "more than one member"),
    "no snappy": (gzip.compress(V1), "2", "snappy"),
    "bomb": (gzip.compress(bytes(65 << 20)), "1", "larger than 67108864 bytes"),
    "attributes": (field(1, MANY), "0", "more than 100000 attributes"),
    "small messages": (message_objs([message_obj(1, b"", source=b"")]) * 900_000, "0", "more than 67108864 bytes, the"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.thorough] if one == "small messages" else []) for one in BAD]
)
def test_corrupt_protobuf(name: str) -> None:
    """It gives no row at all, and is kept as it is."""
    body, compression, reason = BAD[name]
    attributes = f"version=1,compressType={compression}"
    with pytest.raises(ProtocolError, match=rf"^3:clicks:10001: message 7: .*{reason}.*'corruptMessages'"):
        rows(body, attributes)
    (row,) = rows(body, attributes, corrupt="keep")
    assert row["corrupt"]
    assert inner(row) == (body, None, None, None, None, None)
    assert rows(body, attributes, corrupt="skip") == []


def test_what_other_versions_may_add() -> None:
    """Unknown fields, texts that are not UTF-8, and bytes behind gzip are read as InLong reads them."""
    extended = message_obj(TIME, b"body") + field(4, field(1, b"\xff")) + field(9, 5) + field(10, b"more")
    body = field(2, b"x") + field(3, 1) + b"\x25abcd" + b"\x31abcdefgh" + field(1, extended)
    (row,) = rows(gzip.compress(body) + b"behind", "version=1,compressType=1")
    assert inner(row) == (b"body", None, None, MOMENT, [("\ufffd", "")], 0)
    assert rows(b"", "version=1") == []


def test_all_formats_in_one_topic() -> None:
    bodies = [(V1, b"version=1"), (b"plain", b"version=0"), (V0, b"version=2"), (b"bad", b"version=1"), (V0, b"")]
    messages = [message(body, attributes, message_id=number) for number, (body, attributes) in enumerate(bodies)]
    (batch,) = batches_of(row_maker(form(corrupt="keep", columns=("message_id", "inlong_index", "value"))), messages)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (0, 0, b"one"),
        (0, 1, b"two"),
        (0, 2, b""),
        (1, 0, b"plain"),
        (2, 0, b"one"),
        (3, None, b"bad"),
        (4, 0, b"one"),
    ]
