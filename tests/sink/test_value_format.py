# SPDX-License-Identifier: Apache-2.0
"""Value formats of the sink: packs that the source and InLong's own class read, and bodies with fewer bytes."""

from __future__ import annotations

import time
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inlong_packs import message_obj, message_objs
from tubemq_spark.compression import CODECS, decompress
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import decode_attributes
from tubemq_spark.sink.inlong.inlongmsg import InLongMsgFormat
from tubemq_spark.sink.inlong.message_objs import MessageObjsFormat
from tubemq_spark.sink.inlong.pack_format import PackGroup
from tubemq_spark.sink.row_encoder import RowEncoder
from tubemq_spark.sink.schema import BadRowError, Cells
from tubemq_spark.sink.value_format import ValueFormat
from tubemq_spark.source.inlong.inlongmsg import Head, unpack
from tubemq_spark.source.inlong.message_objs import open_message

GOLDEN = Path(__file__).parents[1] / "golden" / "inlong"
PACKS = InLongMsgFormat()
MOMENT = 1_709_251_140_123
ROW = Cells(b"single", inlong_group="g_one", inlong_stream="s_one", inlong_time=MOMENT)


def read_back(cells: Cells, form: ValueFormat = PACKS) -> tuple[Head, bytes]:
    ((head, (body,)),) = unpack(form.encode(cells.value or b"", cells))
    return head, body.as_py()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", [b"", b"body " * 99], ids=len)
def test_bodies_are_compressed(codec: str, body: bytes) -> None:
    """Empty bodies are compressed too, so that readers need not handle them differently."""
    form = ValueFormat(codec)
    assert form.compression_attribute == f"spark_compression={codec}".encode()
    assert decompress(codec, form.encode(body, Cells(body))) == body


def test_a_missing_codec_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails before any row, because no row is to blame."""
    monkeypatch.setattr("tubemq_spark.compression.is_available", lambda codec: False)
    with pytest.raises(ConfigError, match="was built without zstd"):
        ValueFormat("zstd")


# Packs


def test_a_pack_equals_that_of_inlongs_java_class() -> None:
    cells = ROW._replace(inlong_attributes={"NodeIP": "127.0.0.1", "note": "\0größer \u503c \N{GRINNING FACE}"})
    assert PACKS.encode(b"single", cells) == (GOLDEN / "v1-single.bin").read_bytes()


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="&="), min_size=1, max_size=8)
columns_keys = {"groupId", "bid", "streamId", "tid", "dt", "t", "cnt"}  # set by columns, whatever the row says
keys = texts.filter(lambda key: key not in columns_keys)
INSIDE = st.sampled_from(["none", "snappy"])
times = st.integers(-62_135_596_800_000, 253_402_300_799_999)


@given(st.binary(max_size=40), texts, texts, times, st.dictionaries(keys, texts, max_size=4), INSIDE)
def test_random_packs_are_decoded_as_they_were(
    body: bytes, group: str, stream: str, moment: int, own: dict[str, str], inside: str
) -> None:
    head, found = read_back(
        Cells(body, None, None, None, None)._replace(
            inlong_group=group, inlong_stream=stream, inlong_time=moment, inlong_attributes=own
        ),
        InLongMsgFormat(inside=inside),
    )
    assert (found, head.group, head.stream, head.time) == (body, group, stream, moment * 1000)
    assert {key: value for key, value in head.attributes.items() if key in own} == own


def test_columns_win_over_attributes_of_the_same_meaning() -> None:
    """Rows that the source read can be written again with changed columns."""
    stale = {"groupId": "x", "bid": "x", "streamId": "x", "tid": "x", "t": "20200101", "dt": "7", "cnt": "9", "k": "v"}
    head, _ = read_back(ROW._replace(inlong_attributes=stale))
    expected = {"groupId": "g_one", "streamId": "s_one", "dt": str(MOMENT), "cnt": "1", "k": "v"}
    assert (dict(head.attributes), head.time) == (expected, MOMENT * 1000)


@pytest.mark.parametrize(
    ("cells", "column", "reason"),
    [
        ({"inlong_group": None}, "inlong_group", "it is null"),
        ({"inlong_stream": None}, "inlong_stream", "it is null"),
        ({"inlong_group": ""}, "inlong_group", "it is empty"),
        ({"inlong_stream": "a&b"}, "inlong_stream", "the name 'a&b' contains '&' or '=', which InLong uses"),
        ({"inlong_group": "a=b"}, "inlong_group", "the name 'a=b' contains"),
        ({"inlong_attributes": {"a&b": "1"}}, "inlong_attributes", "the key 'a&b' contains"),
        ({"inlong_attributes": {"a=b": "1"}}, "inlong_attributes", "the key 'a=b' contains"),
        ({"inlong_attributes": {"a": "1&b=2"}}, "inlong_attributes", "attribute 'a' '1&b=2' contains"),
        ({"inlong_attributes": {"a": "="}}, "inlong_attributes", "attribute 'a' '=' contains"),
        ({"inlong_attributes": {"": "1"}}, "inlong_attributes", "an attribute has an empty key"),
        ({"inlong_attributes": {"a": None}}, "inlong_attributes", "attribute 'a' is null; packs have only texts"),
        ({"inlong_attributes": {"a": "x" * 65_500}}, "inlong_attributes", "65554 bytes of attributes, but"),
    ],
)
def test_cells_that_no_pack_can_hold_are_bad_rows(cells: dict[str, object], column: str, reason: str) -> None:
    with pytest.raises(BadRowError) as caught:
        PACKS.encode(b"body", ROW._replace(**cells))  # type: ignore[arg-type]
    assert caught.value.column == column
    assert reason in str(caught.value)


def test_the_longest_attributes_fit() -> None:
    longest = "x" * (65_535 - len(f"groupId=g_one&streamId=s_one&dt={MOMENT}&cnt=1&a="))
    assert read_back(ROW._replace(inlong_attributes={"a": longest}))[0].attributes["a"] == longest


def test_the_type_of_a_pack_is_its_stream() -> None:
    """DataProxy does the same. The row's own type wins."""
    packs, bodies = (RowEncoder("demo", codec, stamped=False) for codec in (PACKS, ValueFormat()))
    assert packs.encode(ROW).msg_type == "s_one"
    assert packs.encode(ROW._replace(msg_type="t")).msg_type == "t"
    assert bodies.encode(Cells(b"")).msg_type is None
    assert bodies.encode(Cells(b"", msg_type="t")).msg_type == "t"


# Packs of protobuf


def protobuf(inside: str = "none") -> MessageObjsFormat:
    return MessageObjsFormat(inside=inside)


def opened(codec: ValueFormat, cells: Cells) -> tuple[Head, bytes]:
    value = cells.value or b""
    own = decode_attributes(codec.attributes(value, cells)).own or {}
    ((head, (body,)),) = open_message(codec.encode(value, cells), own, timezone.utc, 1 << 20, 0)
    return head, body.as_py()


@pytest.mark.parametrize(("codec", "number"), [("none", "0"), ("gzip", "1"), ("snappy", "2")])
def test_a_pack_is_what_dataproxy_makes_of_the_same_events(
    codec: str, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tubemq_spark.client.system.host_address", lambda: "10.0.0.9")
    form = protobuf(codec)
    ids = [("inlongGroupId", "g_one"), ("inlongStreamId", "s_one"), ("msgTime", f"{MOMENT}")]
    behind = [("sourceIp", "10.0.0.9"), ("sourceTime", f"{MOMENT}")]
    own = ROW._replace(inlong_attributes={"NodeIP": "1", "cnt": "9", "inlongGroupId": "x", "sourceIp": "10.0.0.1"})
    groups = [PackGroup(ROW, [b"first", b""]), PackGroup(own, [b"third"])]
    body = form.pack(groups)
    with_own = [*ids, ("sourceIp", "10.0.0.1"), behind[1], ("NodeIP", "1")]
    assert (body if codec == "none" else decompress(codec, body)) == message_objs(
        [
            *(message_obj(MOMENT, value, ids + behind, b"10.0.0.9") for value in (b"first", b"")),
            message_obj(MOMENT, b"third", with_own, b"10.0.0.1"),
        ]
    )
    found = dict(decode_attributes(form.pack_attributes(groups)).own or {})
    assert abs(int(found.pop("packTime")) / 1000 - time.time()) < 100
    assert found == {
        "msgEnType": "1",
        "version": "1",
        "inlongGroupId": "g_one",
        "inlongStreamId": "s_one",
        "proxyName": "10.0.0.9",
        "msgCount": "3",
        "srcLength": "10",
        "compressType": number,
    }


any_keys = st.text(min_size=1).filter(lambda key: key not in columns_keys)


@given(st.binary(max_size=40), times, st.dictionaries(any_keys, st.text(), max_size=4), INSIDE)
def test_random_protobuf_is_decoded_as_it_was(body: bytes, moment: int, own: dict[str, str], inside: str) -> None:
    """Its attributes may have any characters."""
    cells = ROW._replace(value=body, inlong_time=moment, inlong_attributes=own)
    head, found = opened(protobuf(inside), cells)
    assert (found, head.group, head.stream, head.time) == (body, "g_one", "s_one", moment * 1000)
    kept = {"inlongGroupId": "g_one", "inlongStreamId": "s_one", "msgTime": f"{moment}"}
    assert {**head.attributes} == {**head.attributes, **own, **kept}


def test_ids_of_protobuf_are_attributes_of_the_message() -> None:
    """So they cannot have TubeMQ's separators, either."""
    encoder = RowEncoder("demo", protobuf(), stamped=False)
    comma: Any
    for column, comma in (("inlong_group", {"inlong_group": "a,b"}), ("inlong_stream", {"inlong_stream": "a,b"})):
        with pytest.raises(BadRowError, match=rf"^column '{column}': the name 'a,b' contains '&' or '=' or ','"):
            encoder.encode(ROW._replace(**comma, msg_type="t"))


@pytest.mark.parametrize("form", [PACKS, protobuf()], ids=["inlongmsg", "protobuf"])
def test_attributes_of_a_pack_that_was_read_do_not_describe_the_new_one(form: ValueFormat) -> None:
    stale = {"version": "1", "msgEnType": "V1", "compressType": "INLONG_GZ", "srcLength": "9", "own": "kept"}
    encoded = RowEncoder("demo", form, stamped=False).encode(ROW._replace(attributes=stale, msg_time="202611222031"))
    assert encoded.attributes == b"$msgType$=s_one,$msgTime$=202611222031,own=kept"
