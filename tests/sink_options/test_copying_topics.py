# SPDX-License-Identifier: Apache-2.0
"""Frames in the source's own shape: rows that were read are written as they are."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.types import DataType

from tests.clusters import Cluster
from tests.messages import partitions
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import MINUTE, STRING, TIMESTAMP, Task, Writing, bodies, own, read_back, save, schema
from tubemq_spark.columns import written
from tubemq_spark.errors import ConfigError

AS_READ: Mapping[str, DataType] = {"msg_time": TIMESTAMP}
ROWS: Sequence[dict[str, Any]] = [
    {"value": b"plain", "attributes": None, "msg_type": None, "msg_time": "202611210830"},
    {"value": b"full", "attributes": {"city": "Zürich"}, "msg_type": "news", "msg_time": "202611210830"},
    *({"value": b"%d" % n, "attributes": {"n": str(n)}, "msg_type": "n", "msg_time": None} for n in range(20)),
]
ORIGIN = {"broker_id": 77, "partition": 3, "offset": 28, "message_id": 5}  # no server has this broker
NOWHERE = {"value": b"a", "topic": "nowhere", **ORIGIN}


@pytest.fixture
def read(cluster: Cluster, demo: str) -> list[dict[str, Any]]:
    """Return the source's rows of `ROWS`, which are stored in `demo`."""
    save(cluster, ROWS, demo)
    return rows_of(cluster, demo)


def rows_of(cluster: Cluster, topic: str, **given: Any) -> list[dict[str, Any]]:
    """The same rows as Spark's DataFrames have them."""
    maps = ("attributes", "inlong_attributes")
    return [
        {name: dict(cell) if name in maps and cell is not None else cell for name, cell in row.items()}
        for row in read_back(cluster, topic, **given)
    ]


def in_zone_of_the_process(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same rows as Spark gives them to writers without Arrow."""
    return [{**row, "msg_time": row["msg_time"] and row["msg_time"].astimezone().replace(tzinfo=None)} for row in rows]


def contents(
    rows: Sequence[Mapping[str, Any]], message_format: str = "raw", without: tuple[str, ...] = ()
) -> list[str]:
    """What a copy keeps: all columns that the source has and the sink takes, but the place of the message."""
    names = [one.name for one in written(message_format) if one.read is not None and not one.is_position]
    return sorted(repr([row[name] for name in names if name not in ("topic", *without)]) for row in rows)


@pytest.mark.sink_option("topic")
@pytest.mark.column("topic", "broker_id", "partition", "corrupt")
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("corrupt", ["fail", "keep"])
def test_a_topic_is_copied(
    cluster: Cluster, demo: str, read: list[dict[str, Any]], by_rows: bool, corrupt: str
) -> None:
    """Copies have all parts of the messages, and do not go back to where they were read."""
    copy = cluster.new_topic("one")
    rows = rows_of(cluster, demo, corruptMessages=corrupt)
    assert ("corrupt" in rows[0]) == (corrupt == "keep")
    written = save(cluster, in_zone_of_the_process(rows) if by_rows else rows, copy, kinds=AS_READ, by_rows=by_rows)
    assert sum(written.rows.values()) == len(ROWS)
    assert contents(rows_of(cluster, copy)) == contents(read)
    assert bodies(cluster, demo) == bodies(cluster, copy) == sorted(row["value"] for row in ROWS)


@pytest.mark.column("msg_time", "attributes")
def test_milliseconds_of_times_are_read_and_copied(cluster: Cluster, demo: str) -> None:
    copy = cluster.new_topic("one")
    millis = {"spark_msg_millis": "30123"}
    save(cluster, [{"value": b"a", "msg_time": "202611210830", "attributes": millis}], demo)
    rows = rows_of(cluster, demo)
    assert (rows[0]["msg_time"], rows[0]["attributes"]) == (MINUTE + timedelta(seconds=30, milliseconds=123), millis)
    save(cluster, rows, copy, kinds=AS_READ)
    assert contents(rows_of(cluster, copy)) == contents(rows)


@pytest.mark.column("broker_id", "partition")
@pytest.mark.parametrize("kept", [("offset",), ("message_id",), ("broker_id", "message_id"), tuple(ORIGIN)])
def test_the_position_a_row_was_read_from_is_no_target(cluster: Cluster, demo: str, kept: tuple[str, ...]) -> None:
    """Half of a position is not a target either."""
    save(cluster, [{"value": b"a", **{name: ORIGIN[name] for name in kept}}], demo)
    assert bodies(cluster, demo) == [b"a"]


@pytest.mark.column("broker_id", "partition")
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_row_that_was_not_read_goes_to_its_target(cluster: Cluster, by_rows: bool) -> None:
    """INSERT INTO a view gives null to the columns that the statement does not name."""
    topic = cluster.new_topic("three")
    target = partitions(cluster, topic)[-1]
    given: Mapping[str, Any] = {
        "broker_id": target.broker_id,
        "partition": target.partition_id,
        "offset": None,
        "message_id": None,
    }
    rows: list[dict[str, Any]] = [
        {"value": b"new", **given},
        {"value": b"copied", **ORIGIN},
        {"value": b"new", **given},
    ]
    save(cluster, rows, topic, by_rows=by_rows)
    there = [message.partition for message in stored_in(cluster, topic) if message.body == b"new"]
    assert there == [target, target]


@pytest.mark.column("topic")
def test_the_column_topic_says_where_copies_go(cluster: Cluster, demo: str, read: list[dict[str, Any]]) -> None:
    """Without option `topic`, the column says where a row goes."""
    first, second = cluster.new_topic("one"), cluster.new_topic("one")
    rows = [{**row, "topic": (first, second)[n % 2]} for n, row in enumerate(read)]
    save(cluster, rows, kinds=AS_READ)
    assert contents(rows_of(cluster, first)) == contents(rows[::2])
    assert contents(rows_of(cluster, second)) == contents(rows[1::2])
    assert len(bodies(cluster, demo)) == len(ROWS)


@pytest.mark.column("key")
def test_copies_may_get_a_key(cluster: Cluster, demo: str) -> None:
    for _ in range(2):
        save(cluster, [{**NOWHERE, "key": b"%d" % (n % 4), "value": b"%d" % (n % 4)} for n in range(40)], demo)
    assert len({(message.body, message.partition) for message in stored_in(cluster, demo)}) == 4


@pytest.mark.sink_option("failedRows", "deadLetterTopic")
@pytest.mark.parametrize("once", [False, True])
def test_the_dead_letter_of_a_copy_has_no_target(cluster: Cluster, demo: str, once: bool) -> None:
    """It names the topic of the option, and no partition."""
    dead = cluster.new_topic("one")
    rows = [NOWHERE, {**NOWHERE, "value": b"bad", "attributes": {"a": "b=c"}}, {**NOWHERE, "topic": dead}]
    given: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": dead}
    if once:
        given |= {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()}
    written = Writing(cluster, schema(rows), demo, streaming=True, **given).write(rows, Task())
    assert written.dead_letters == 1
    assert bodies(cluster, demo) == [b"a", b"a"]
    (dead_letter,) = stored_in(cluster, dead)
    assert own(dead_letter)["dead_topic"] == demo
    assert "dead_target" not in own(dead_letter)


PACK = {"inlong_group": "g", "inlong_stream": "s", "inlong_time": MINUTE, "inlong_attributes": {"a": "1"}}
PACKS: dict[str, Any] = {"messageFormat": "inlongmsg"}


@pytest.mark.sink_option("messageFormat")
@pytest.mark.parametrize("corrupt", ["fail", "keep"])
def test_packs_are_copied(cluster: Cluster, demo: str, corrupt: str) -> None:
    """Their index in the pack also says where they were read."""
    copy = cluster.new_topic("one")
    save(cluster, [{"value": b"%d" % n, **PACK} for n in range(10)], demo, **PACKS)
    rows = rows_of(cluster, demo, corruptMessages=corrupt, **PACKS)
    assert rows[0]["inlong_index"] == 0
    save(cluster, rows, copy, kinds=AS_READ, **PACKS)
    copied = rows_of(cluster, copy, **PACKS)
    assert len(copied) == 10
    assert contents(copied, "inlongmsg") == contents(rows, "inlongmsg")


@pytest.mark.sink_option("messageFormat", "inlongPackFormat")
@pytest.mark.parametrize(("first", "second"), [("protobuf", "inlongmsg"), ("inlongmsg", "protobuf")])
def test_packs_are_copied_to_the_other_format(cluster: Cluster, demo: str, first: str, second: str) -> None:
    """What said how to open those that were read does not say it of the new ones."""
    copy = cluster.new_topic("one")
    packs = {**PACKS, "inlongPackCompression": "snappy"}
    save(cluster, [{"value": b"%d" % n, **PACK} for n in range(5)], demo, inlongPackFormat=first, **packs)
    rows = rows_of(cluster, demo, messageFormat="inlong")
    save(cluster, rows, copy, kinds=AS_READ, inlongPackFormat=second, **packs)
    copied = rows_of(cluster, copy, messageFormat="inlong")
    changed = ("attributes", "inlong_attributes")  # they say how a pack is opened
    assert contents(copied, "inlongmsg", changed) == contents(rows, "inlongmsg", changed)
    assert {row["inlong_attributes"]["a"] for row in copied} == {"1"}


@pytest.mark.sink_option("messageFormat")
@pytest.mark.column("corrupt")
def test_a_corrupt_pack_is_not_written(cluster: Cluster, demo: str) -> None:
    copy, group = cluster.new_topic("one"), f"kept_{uuid.uuid4().hex[:12]}"
    save(cluster, [{"value": b"no pack"}], demo)
    kept = {"tubemq.group": group, "corruptMessages": "keep", **PACKS}
    (row,) = rows_of(cluster, demo, **kept)
    assert row["corrupt"] is True
    for given in (PACKS, {}):
        names = [name for name in row if given or not name.startswith("inlong")]
        with pytest.raises(ConfigError, match=r"^row 0 of .*, column 'corrupt': it is true: the source could not"):
            save(cluster, [{name: row[name] for name in names}], copy, kinds=AS_READ, **given)
    assert bodies(cluster, copy) == []


@pytest.mark.column("corrupt")
def test_rows_that_are_not_corrupt_are_written(cluster: Cluster, demo: str) -> None:
    save(cluster, [{**NOWHERE, "corrupt": False}, {**NOWHERE, "corrupt": None}], demo, kinds={"key": STRING})
    assert bodies(cluster, demo) == [b"a", b"a"]
