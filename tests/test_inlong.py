# SPDX-License-Identifier: Apache-2.0
"""InLong's formats as functions of Spark. The decoders of packs have tests of their own in `tests/source`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.inlong_packs import message_obj, message_objs, pack_grouped
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.inlong import parse_csv, parse_kv, unpack

TIME = 1_709_251_140_123
MOMENT = datetime(2024, 2, 29, 23, 59, 0, 123_000, timezone.utc)
HEAD = f"groupId=g&streamId=s&dt={TIME}"
V0 = pack_grouped(1, [(HEAD, b"one"), (HEAD, b"two"), ("streamId=u&t=20240229", b"three")])
V1 = message_objs([message_obj(TIME, b"four", [("k", "1")]), message_obj(TIME, b"five", [])])
OF_V1 = {"version": "1", "inlongGroupId": "g"}


def row(body: bytes, index: int, group: str | None, stream: str | None, time: datetime, **own: str) -> dict[str, Any]:
    names = ("inlong_group", "inlong_stream", "inlong_time", "inlong_attributes", "inlong_index", "value")
    return dict(zip(names, (group, stream, time, own, index, body), strict=True))


IN_V0 = [
    row(b"one", 0, "g", "s", MOMENT, groupId="g", streamId="s", dt=f"{TIME}"),
    row(b"two", 1, "g", "s", MOMENT, groupId="g", streamId="s", dt=f"{TIME}"),
    row(b"three", 2, None, "u", datetime(2024, 2, 28, 16, tzinfo=timezone.utc), streamId="u", t="20240229"),
]
IN_V1 = [row(b"four", 0, "g", None, MOMENT, k="1"), row(b"five", 1, "g", None, MOMENT)]


def test_unpack_bytes() -> None:
    assert unpack(V0, zone="Asia/Shanghai") == IN_V0
    assert unpack(V1, "inlong", OF_V1) == IN_V1
    assert unpack(V0, "inlong", {}, zone="Asia/Shanghai") == IN_V0
    assert unpack(V0[:-1], corrupt="null") is None
    with pytest.raises(ProtocolError, match="not an InLongMsg"):
        unpack(V0[:-1])
    with pytest.raises(ProtocolError, match="takes more than 100 bytes"):
        unpack(V0, max_unpacked_bytes=100)
    for wrong in ({"format": "inlong"}, {"attributes": OF_V1}, {"zone": "Moon"}):
        with pytest.raises(ConfigError, match=r"needs 'attributes'|msgTimeZone"):
            unpack(V0, **wrong)


def test_unpack_columns(spark: SparkSession) -> None:
    """A column is as many rows at once, with null for null and, if so wanted, for damage."""
    rows = [(V0, None), (None, OF_V1), (V1, OF_V1), (b"?", None), (V0, None)]
    frame = spark.createDataFrame(rows, "body BINARY, attributes MAP<STRING, STRING>").coalesce(1)
    opened = unpack("body", "inlong", sf.col("attributes"), zone="Asia/Shanghai", corrupt="null")
    found = [one.messages for one in frame.select(opened.alias("messages")).collect()]
    wanted = [IN_V0, None, IN_V1, None, IN_V0]
    assert [one and [cells(message.asDict()) for message in one] for one in found] == [
        one and [cells(message) for message in one] for one in wanted
    ]
    with pytest.raises(PythonException, match="not an InLongMsg"):
        frame.select(unpack(frame.body)).collect()


def cells(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "value": bytes(message["value"]), "inlong_time": message["inlong_time"].timestamp()}


# What InLong's `StringUtils` makes of these texts
@pytest.mark.parametrize(
    ("text", "fields", "entries"),
    [
        ("", [""], {}),
        ("a,b,,", ["a", "b", "", ""], {}),
        (r"a\,b,c\\d\n,\ ", ["a,b", r"c\dn", " "], {}),
        ('"a,b"c,""d"",e\\",f"g', ["a,bc", "d", 'e"', "fg"], {}),
        (r'"a\",b\"",c', ["a\\", 'b",c'], {}),
        ("a=1&b=2&a=3", ["a=1&b=2&a=3"], {"a": "3", "b": "2"}),
        ("a=1=2&b", ["a=1=2&b"], {"a": "1=2&b"}),
        ("a=1&b&c=2", ["a=1&b&c=2"], {"a": "1", "b&c": "2"}),
        ("a=1&&b=2&", ["a=1&&b=2&"], {"a": "1&", "b": "2&"}),
        ("b", ["b"], {}),
        (r"a\=b=1\&2&c=\\", ["a=b=1&2&c=\\"], {"a=b": "1&2", "c": "\\"}),
        ('a="1&b=2"&"c=d"=3', ["a=1&b=2&c=d=3"], {"a": "1&b=2", "c=d": "3"}),
        ("a=1&b=\\", ["a=1&b="], {"a": "1", "b": ""}),
    ],
)  # fmt: skip
def test_texts(text: str, fields: list[str], entries: dict[str, str]) -> None:
    assert parse_csv(text.encode(), escape="\\", quote='"') == fields
    assert parse_kv(text.encode(), escape="\\", quote='"') == entries


def test_text_columns(spark: SparkSession) -> None:
    rows = [("名=1;值=2".encode("gbk"), "a|b"), (None, None), (b"\xff=", "")]
    frame = spark.createDataFrame(rows, "body BINARY, text STRING").coalesce(1)
    found = frame.select(parse_kv("body", ";", charset="gbk"), parse_csv(frame.text, "|")).collect()
    assert list(map(tuple, found)) == [({"名": "1", "值": "2"}, ["a", "b"]), (None, None), ({"\ufffd": ""}, [""])]


@pytest.mark.parametrize("wrong", [{"delimiter": ""}, {"delimiter": "||"}, {"quote": ","}, {"escape": "\\\\"}])
def test_signs_are_single_characters(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="are single characters, which differ"):
        parse_csv(b"", **wrong)
