# SPDX-License-Identifier: Apache-2.0
"""`messageFormat` and `compression`, and the columns of packs: what is written is read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import MINUTE, Task, Writing, batches, own, read_back, save, schema
from tubemq_spark.compression import CODECS, decompress
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.source.inlong.inlongmsg import unpack

BODIES = [b"", b"a", bytes(range(256)), b"again and " * 2000, "日本".encode()]


@pytest.mark.sink_option("compression")
@pytest.mark.parametrize("by_rows", [False, True])
def test_the_source_decompresses(cluster: Cluster, topic: str, by_rows: bool) -> None:
    """All codecs are in one topic, with uncompressed messages."""
    sent = []
    for codec in (*CODECS, "none", "GZip"):
        rows = [
            {"value": body, "attributes": {"n": f"{codec} {n}"} if n else None, "msg_type": codec.lower()}
            for n, body in enumerate(BODIES)
        ]
        save(cluster, rows, topic, compression=codec, by_rows=by_rows)
        sent += [(body, {"n": f"{codec} {n}"} if n else {}, codec.lower()) for n, body in enumerate(BODIES)]
    for message in stored_in(cluster, topic):
        codec = own(message).get("spark_compression", "none")
        assert codec == message.attributes.msg_type
        assert (message.body if codec == "none" else decompress(codec, message.body)) in BODIES
    shortest = dict.fromkeys(CODECS, 20_000)
    for message in stored_in(cluster, topic):
        if own(message).get("n", "").endswith("3") and message.attributes.msg_type != "none":
            shortest[own(message)["spark_compression"]] = len(message.body)
    assert all(size < 2000 for size in shortest.values())
    back = [(row["value"], dict(row["attributes"] or {}), row["msg_type"]) for row in read_back(cluster, topic)]
    assert sorted(map(repr, back)) == sorted(map(repr, sent))


@pytest.mark.sink_option("compression")
def test_a_compressed_value_may_exceed_the_topics_limit(cluster: Cluster, topic: str) -> None:
    """The limit counts the bytes that are sent."""
    body = b"again and " * 200_000
    with pytest.raises(ConfigError, match="value has 2000000 bytes, and topic"):
        save(cluster, [{"value": body}], topic)
    save(cluster, [{"value": body}], topic, compression="zstd")
    assert [row["value"] for row in read_back(cluster, topic)] == [body]


MOMENT = MINUTE + timedelta(seconds=59, milliseconds=123)
PACKED: list[dict[str, Any]] = [
    {
        "inlong_group": "g_one",
        "inlong_stream": "s_one",
        "inlong_time": MOMENT,
        "inlong_attributes": {"a": "1", "日": ""},
    },
    {"inlong_group": "日本", "inlong_stream": "s two", "inlong_time": MOMENT, "inlong_attributes": {}},
    {"inlong_group": "g", "inlong_stream": "s", "inlong_time": MOMENT, "inlong_attributes": None},
]


@pytest.mark.sink_option("messageFormat", "compression")
@pytest.mark.column("inlong_group", "inlong_stream", "inlong_time", "inlong_attributes")
@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_packs_are_read_as_rows(cluster: Cluster, topic: str, codec: str, by_rows: bool) -> None:
    rows = [{"value": b"%d" % n, "attributes": {"own": str(n)}, **pack} for n, pack in enumerate(PACKED)]
    given = rows
    if by_rows:  # Spark's rows have times without a zone, in that of the process
        given = [{**row, "inlong_time": row["inlong_time"].astimezone().replace(tzinfo=None)} for row in rows]
    save(cluster, given, topic, messageFormat="InLongMsg", compression=codec, by_rows=by_rows)
    back = {row["value"]: row for row in read_back(cluster, topic, messageFormat="inlongmsg")}
    assert len(back) == 3
    for row in rows:
        found = back[row["value"]]
        assert (found["inlong_group"], found["inlong_stream"]) == (row["inlong_group"], row["inlong_stream"])
        assert found["inlong_time"] == MOMENT
        dt = str(int(MINUTE.timestamp()) * 1000 + 59_123)
        expected = {"groupId": row["inlong_group"], "streamId": row["inlong_stream"], "dt": dt, "cnt": "1"}
        assert dict(found["inlong_attributes"]) == expected | (row["inlong_attributes"] or {})
        assert dict(found["attributes"]) == row["attributes"]
        assert found["msg_type"] == row["inlong_stream"]  # as DataProxy sends it


@pytest.mark.sink_option("messageFormat")
@pytest.mark.column("inlong_stream", "msg_type")
def test_the_brokers_filter_packs_by_their_stream(cluster: Cluster, topic: str) -> None:
    """A type of the row wins."""
    pack = {"value": b"a", "inlong_group": "g", "inlong_stream": "stream"}
    save(cluster, [{**pack, "msg_type": "other"}, {**pack, "msg_type": None}], topic, messageFormat="inlongmsg")
    assert [len(stored_in(cluster, topic, filters=[kind])) for kind in ("stream", "other")] == [1, 1]


@pytest.mark.sink_option("messageFormat")
@pytest.mark.column("inlong_time")
def test_a_pack_without_a_time_has_the_present_time(cluster: Cluster, topic: str) -> None:
    pack = {"value": b"a", "inlong_group": "g", "inlong_stream": "s"}
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    save(cluster, [pack, {**pack, "inlong_time": None}], topic, messageFormat="inlongmsg")
    after = datetime.now(timezone.utc)
    times = [row["inlong_time"] for row in read_back(cluster, topic, messageFormat="inlongmsg")]
    assert len(times) == 2
    assert all(before <= time <= after for time in times)


V1: dict[str, Any] = {"messageFormat": "inlongmsg", "inlongPackFormat": "protobuf"}


@pytest.mark.sink_option("inlongPackFormat", "inlongPackCompression", "inlongPackRows", "compression")
@pytest.mark.column("inlong_group", "inlong_stream", "inlong_time", "inlong_attributes")
@pytest.mark.parametrize("rows_of_a_pack", [1, 100])
@pytest.mark.parametrize(
    ("inside", "codec"), [("none", "none"), ("gzip", "none"), ("snappy", "none"), ("snappy", "zstd")]
)
def test_protobuf_is_read_as_rows(cluster: Cluster, topic: str, inside: str, codec: str, rows_of_a_pack: int) -> None:
    rows = [{"value": b"%d" % n, "attributes": {"own": "x"}, **pack} for n, pack in enumerate([*PACKED, PACKED[0]])]
    given: dict[str, Any] = {
        "inlongPackCompression": inside,
        "compression": codec,
        "inlongPackRows": rows_of_a_pack,
    }
    save(cluster, rows, topic, **V1, **given)
    stored = stored_in(cluster, topic)
    assert {own(message)["compressType"] for message in stored} == {{"none": "0", "gzip": "1", "snappy": "2"}[inside]}
    assert sum(int(own(message)["msgCount"]) for message in stored) == 4
    assert len(stored) == (4 if rows_of_a_pack == 1 else 3)
    back = {row["value"]: row for row in read_back(cluster, topic, messageFormat="inlong")}
    assert len(back) == 4
    for row in rows:
        found = back[row["value"]]
        assert (found["inlong_group"], found["inlong_stream"]) == (row["inlong_group"], row["inlong_stream"])
        assert (found["inlong_time"], found["msg_type"]) == (MOMENT, row["inlong_stream"])
        params, attributes = dict(found["inlong_attributes"]), dict(found["attributes"])
        assert params == {**params, "inlongStreamId": row["inlong_stream"], **(row["inlong_attributes"] or {})}
        assert attributes == {**attributes, "own": "x", "version": "1", "inlongGroupId": row["inlong_group"]}


@pytest.mark.sink_option("inlongPackFormat", "effectivelyOnce")
def test_stamped_rows_in_protobuf(cluster: Cluster, topic: str) -> None:
    rows = [{"value": b"%d" % n, **PACKED[0]} for n in range(3)]
    task = Task()
    writing = Writing(
        cluster, schema(rows), topic, streaming=True, effectivelyOnce=True, checkpointLocation=new_checkpoint(), **V1
    )
    writing.write(rows, task)
    assert writing.write(rows, task.again()).already_stored == 3
    back = read_back(cluster, topic, messageFormat="inlong")
    assert sorted((row["value"], dict(row["attributes"])["spark_row"][-1]) for row in back) == [
        (b"%d" % n, f"{n}") for n in range(3)
    ]


def packs_of(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """Return the values of the rows in each message."""
    return [[body for _, part in unpack(pack.body) for body in part.to_pylist()] for pack in stored_in(cluster, topic)]


ROWS = [{"value": b"%03d" % n, "inlong_group": "g", "inlong_stream": "s"} for n in range(100)]


@pytest.mark.sink_option("inlongPackRows", "inlongPackCompression")
@pytest.mark.parametrize(("by_rows", "inside"), [(False, "snappy"), (False, "none"), (True, "none")])
def test_packs_have_many_rows(cluster: Cluster, topic: str, by_rows: bool, inside: str) -> None:
    given: dict[str, Any] = {"messageFormat": "inlongmsg", "inlongPackCompression": inside}
    save(cluster, ROWS, topic, inlongPackRows=40, by_rows=by_rows, **given)
    first = stored_in(cluster, topic)[0].body
    assert first[first.index(b"&cnt=40") + 11] == (inside == "snappy")
    found = sorted(packs_of(cluster, topic))
    assert [len(part) for part in found] == [40, 40, 20]
    assert [value for part in found for value in part] == [row["value"] for row in ROWS]
    back = read_back(cluster, topic, messageFormat="inlongmsg")
    assert sorted((row["value"], row["inlong_index"]) for row in back) == [
        (row["value"], n % 40) for n, row in enumerate(ROWS)
    ]
    assert {(row["inlong_group"], row["inlong_stream"], row["msg_type"]) for row in back} == {("g", "s", "s")}


@pytest.mark.sink_option("inlongPackBytes")
def test_packs_have_a_limited_size(cluster: Cluster, topic: str) -> None:
    save(cluster, ROWS, topic, messageFormat="inlongmsg", inlongPackRows=100, inlongPackBytes=300)
    assert sorted(value for part in packs_of(cluster, topic) for value in part) == [row["value"] for row in ROWS]
    assert all(len(message.body) <= 300 for message in stored_in(cluster, topic))
    assert len(stored_in(cluster, topic)) > 2


@pytest.mark.sink_option("inlongPackMs")
@pytest.mark.parametrize(("wait", "packs"), [(0, 3), (3_600_000, 1)])
def test_packs_do_not_wait_for_long(cluster: Cluster, topic: str, wait: int, packs: int) -> None:
    """Each row comes in an Arrow batch of its own here."""
    rows = ROWS[:3]
    given: dict[str, Any] = {"messageFormat": "inlongmsg", "inlongPackRows": 100, "inlongPackMs": wait}
    writing = Writing(cluster, schema(rows), topic, **given)
    write_batches(writing.plan, batches(rows, schema(rows), 1))
    assert len(stored_in(cluster, topic)) == packs
    assert sorted([value for part in packs_of(cluster, topic) for value in part]) == [row["value"] for row in rows]


@pytest.mark.sink_option("compression")
@pytest.mark.parametrize("pack_format", ["inlongmsg", "protobuf"])
@pytest.mark.parametrize(("option", "codec"), [("compression", "gzip"), ("inlongPackCompression", "snappy")])
def test_compressed_packs_are_warned_of(
    cluster: Cluster, topic: str, option: str, codec: str, pack_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[dict[str, Any]] = [{"value": b"a", "inlong_group": "g", "inlong_stream": "s"}]
    given: dict[str, Any] = {option: codec, "inlongPackFormat": pack_format}
    save(cluster, rows, topic, messageFormat="inlongmsg", **given)
    assert ("[compressed-packs]" in caplog.text) == (option == "compression")
