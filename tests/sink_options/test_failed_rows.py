# SPDX-License-Identifier: Apache-2.0
"""`failedRows` and `deadLetterTopic`, with each kind of row that can never be sent: nothing of it is sent.

More texts that cannot be attributes, types or times: tests/protocol/test_message.py; cells that no pack can hold:
tests/sink/test_value_format.py.
"""

from __future__ import annotations

import base64
import logging
import re
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

import pyarrow as pa
import pytest

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import KINDS, TIMESTAMP, Task, Writing, as_json, bodies, own, save, schema
from tubemq_spark.errors import ConfigError, RowError
from tubemq_spark.sink.task_writer import write_batches

ON_THE_CLIENT = pytest.mark.parametrize("cluster", [EMBEDDED, *REAL_THOROUGHLY], indirect=True)
"""The client alone decides; a real server proves it once more."""


LONG = 1 << 20  # bytes that a topic takes, unless it says otherwise


class BadRow(NamedTuple):
    """A bad row: the bad column, the cells that differ from a good row, and the reason in the error."""

    column: str
    cells: Mapping[str, Any]
    reason: str
    given: Mapping[str, Any] = {}


PACK = {"inlong_group": "g", "inlong_stream": "s"}
PACKS = {"messageFormat": "inlongmsg"}
BAD_ROWS = {
    "null": BadRow("value", {"value": None}, "it is null"),
    "too long": BadRow("value", {"value": bytes(LONG + 1)}, r"value has 1048577 bytes, and topic \w+ takes 1048576"),
    "no topic": BadRow("topic", {"topic": None}, "it is null, and option 'topic' is not given", {"topic": None}),
    "empty topic": BadRow("topic", {"topic": ""}, "it is empty", {"topic": None}),
    "unknown topic": BadRow("topic", {"topic": "nowhere"}, "has no topic nowhere", {"topic": None}),
    "topic of the brokers": BadRow(
        "topic", {"topic": " __offset_history__\0"}, "__offset_history__ belongs to the brokers", {"topic": None}
    ),
    "no broker": BadRow("broker_id", {"broker_id": None, "partition": 0}, "it is null, but the other half of the targ"),
    "no partition": BadRow("partition", {"broker_id": 1, "partition": None}, "it is null, but the other half of the"),
    "unknown broker": BadRow(
        "broker_id", {"broker_id": 9, "partition": 0}, r"topic \w+ has no partition 0 on a broker 9; .*broker_id and pa"
    ),
    "unknown partition": BadRow(
        "partition", {"broker_id": 1, "partition": 77}, r"topic \w+ has no partition 77 on a broker 1; .*broker_id and"
    ),
    "negative partition": BadRow(
        "partition", {"broker_id": 1, "partition": -1}, r"topic \w+ has no partition -1 on a broker 1; .*broker_id and"
    ),
    "value with ,": BadRow("attributes", {"attributes": {"a": "b,c"}}, "the attribute 'a' 'b,c' contains ','"),
    "null attribute": BadRow("attributes", {"attributes": {"a": None, "b": "c"}}, "attribute 'a' is null; TubeMQ has"),
    "key of the type": BadRow("attributes", {"attributes": {"$msgType$": "a"}}, r"'\$msgType\$' 'a' contains"),
    "type in a value": BadRow("attributes", {"attributes": {"a": "see $msgType$"}}, r"'a' 'see \$msgType\$' c"),
    "key of a codec": BadRow(
        "attributes",
        {"attributes": {"spark_compression": "gzip"}},
        "attribute spark_compression is reserved: leave it out",
    ),
    "key of a stamp": BadRow(
        "attributes", {"attributes": {"spark_row": "1"}}, "attribute spark_row is reserved where", {"stampRows": True}
    ),
    "too long attributes": BadRow(
        "attributes", {"attributes": {"a": "b" * (LONG + 20_000)}}, r"value and attributes have \d+ bytes, and topic"
    ),
    "type with a blank": BadRow("msg_type", {"msg_type": " a"}, "' a' has blanks around it: write trim"),
    "long type": BadRow("msg_type", {"msg_type": "a" * 256}, "… has 256 characters; at most 255 can be sent: write a"),
    "no time": BadRow("msg_time", {"msg_time": "tomorrow"}, "msg_time 'tomorrow' is not a time of the form yyyyMM"),
    "no group": BadRow("inlong_group", {**PACK, "inlong_group": None}, "it is null", PACKS),
    "group with &": BadRow(
        "inlong_group", {**PACK, "inlong_group": "a&b"}, "the name 'a&b' contains '&' or '='", PACKS
    ),
    "stream that is not a type": BadRow("inlong_stream", {**PACK, "inlong_stream": "a,b"}, "'a,b' contains ','", PACKS),
    "corrupt": BadRow("corrupt", {"corrupt": True, "message_id": 1}, "it is true: the source could not decode this"),
    "null in a pack": BadRow(
        "inlong_attributes", {**PACK, "inlong_attributes": {"a": None}}, "attribute 'a' is null; packs have only", PACKS
    ),
}

bad_rows = pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=list(BAD_ROWS))
SIMPLE = [BAD_ROWS[name] for name in ("null", "value with ,", "unknown topic", "unknown broker", "too long")]


def rows_of(bad: BadRow, topic: str) -> list[dict[str, Any]]:
    """Return good rows around a bad one at index 2."""
    good: dict[str, Any] = {"topic": topic} if "topic" in bad.cells else {}
    if "broker_id" in bad.cells:
        good |= {"broker_id": 1, "partition": 0}
    if PACK.keys() <= bad.cells.keys():
        good |= PACK
    return [
        {**good, "value": b"first"},
        {**good, "value": b"second"},
        {**good, "value": b"bad", **bad.cells},
        {**good, "value": b"fourth"},
    ]


def given_of(bad: BadRow, topic: str) -> dict[str, Any]:
    return {"topic": topic, **bad.given}


@pytest.fixture(scope="module")
def one_for_all(cluster: Cluster) -> str:
    """A topic of all these tests; each counts only new messages."""
    return cluster.new_topic("one")


@ON_THE_CLIENT
@pytest.mark.sink_option("failedRows")
@bad_rows
def test_a_bad_row_fails_the_task(cluster: Cluster, one_for_all: str, bad: BadRow) -> None:
    """The error names the row and the column in one line. Only the rows before it are stored."""
    rows = rows_of(bad, one_for_all)
    before = len(stored_in(cluster, one_for_all))
    writing = Writing(cluster, schema(rows), streaming=True, **given_of(bad, one_for_all))
    with pytest.raises(RowError) as caught:
        writing.write(rows, Task(partition=5))
    error_text = str(caught.value)
    is_null = rows[2]["value"] is None
    beginning = "" if is_null else rf" \(value '{rows[2]['value'][:48].decode()}'(…, \d+ bytes)?\)"
    assert re.match(rf"row 2 of task partition 5{beginning}(, column '\w+'|): ", error_text.replace(r"\x00", "\0"))
    assert re.search(bad.reason, error_text)
    assert bad.column in error_text
    assert "\n" not in error_text
    assert error_text.endswith(
        "; drop or repair such rows in the query, or set option 'failedRows' to drop or deadLetter"
    )
    assert "another exception" not in "".join(traceback.format_exception(caught.value))
    assert "direct cause" not in "".join(traceback.format_exception(caught.value))
    assert len(stored_in(cluster, one_for_all)) == before + 2


@ON_THE_CLIENT
@pytest.mark.sink_option("failedRows")
@pytest.mark.parametrize("bad", SIMPLE, ids=lambda bad: bad.reason[:20])
def test_a_bad_row_is_dropped(
    cluster: Cluster, one_for_all: str, bad: BadRow, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(bad, one_for_all)
    before = len(stored_in(cluster, one_for_all))
    writing = Writing(cluster, schema(rows), streaming=True, failedRows="drop", **given_of(bad, one_for_all))
    written = writing.write(rows, Task(partition=5))
    assert (written.dropped, written.dead_letters, sum(written.rows.values())) == (1, 0, 3)
    assert len(stored_in(cluster, one_for_all)) == before + 3
    warnings = _warnings(caplog)
    assert re.match(rf"\[bad-row\] row 2 of task partition 5( \(.*\))? can never be sent: .*{bad.reason}", warnings[0])
    assert (
        warnings[1]
        == "[task-rows-dropped] 1 rows of task partition 5 can never be sent and were dropped (failedRows=drop)"
    )
    caplog.clear()
    writing.commit([written, written], batch=4)
    assert _warnings(caplog) == [
        "[batch-rows-dropped] batch 4: 2 rows could never be sent and were dropped (failedRows=drop)"
    ]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the sink, without those of other tests' heartbeats."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name.startswith("tubemq_spark.sink")
    ]


TYPE = {"msg_type": "secret,type"}


@ON_THE_CLIENT
@pytest.mark.sink_option("showFailedRows")
@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ({**TYPE, "value": b'{"user": 17}'}, """ (value '{"user": 17}')"""),
        ({**TYPE, "value": b"secret value", "key": b"user-17"}, " (key 'user-17')"),
        ({**TYPE, "key": b""}, " (key '')"),
        ({**TYPE, "value": "a\n\x1b[31mö ".encode()}, r" (value 'a\n\x1b[31mö ')"),
        ({**TYPE, "value": "日".encode() * 20}, f" (value '{'日' * 16}'…, 60 bytes)"),
        ({**TYPE, "value": b"a" + "日".encode() * 20}, f" (value 'a{'日' * 15}'…, 61 bytes)"),
        ({**TYPE, "value": b"\xff" * 90}, " (value b'" + r"\xff" * 48 + "'…, 90 bytes)"),
        ({"value": None}, ""),
        ({"msg_time": "secret"}, " (value 'bad')"),
        ({"attributes": {"a": "secret,"}}, " (value 'bad')"),
        ({"attributes": {"secret": ","}}, " (value 'bad')"),
        ({"attributes": {"secret,": "a"}}, " (value 'bad')"),
        ({"attributes": {"secret": None}}, " (value 'bad')"),
        ({"attributes": {"a": f"{'secret' * 20}="}}, " (value 'bad')"),
    ],
    ids=str,
)
def test_errors_and_log_show_a_row_by_default(
    cluster: Cluster, one_for_all: str, cells: Mapping[str, Any], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    """For data that must not be logged, they name its number and its column only."""
    rows: list[dict[str, Any]] = [{"value": b"good"}, {"value": b"bad", **cells}]
    (column, *_) = cells.keys() & {"msg_type", "msg_time", "attributes"} or {"value"}
    texts = {}
    for show in (True, False):
        writing = Writing(cluster, schema(rows), one_for_all, streaming=True, showFailedRows=show)
        with pytest.raises(RowError) as caught:
            writing.write(rows, Task(partition=5))
        caplog.clear()
        dropping = Writing(cluster, schema(rows), one_for_all, streaming=True, showFailedRows=show, failedRows="drop")
        dropping.write(rows, Task(partition=5))
        texts[show] = str(caught.value), _warnings(caplog)[0]
    error, line = texts[True]
    assert error.startswith(f"row 1 of task partition 5{shown}, column '{column}': ")
    assert line.startswith(f"[bad-row] row 1 of task partition 5{shown} can never be sent: column '{column}': ")
    error, line = texts[False]
    assert error.startswith(f"row 1 of task partition 5, column '{column}': ")
    assert line.startswith(f"[bad-row] row 1 of task partition 5 can never be sent: column '{column}': ")
    assert not re.search("secret|user|日", error + line)


@ON_THE_CLIENT
@pytest.mark.sink_option("failedRows", "deadLetterTopic")
@bad_rows
def test_a_bad_row_becomes_a_dead_letter(cluster: Cluster, one_for_all: str, dead_topic: str, bad: BadRow) -> None:
    """The dead letter has all cells of the row and the reason."""
    rows = rows_of(bad, one_for_all)
    before, dead_before = len(stored_in(cluster, one_for_all)), len(stored_in(cluster, dead_topic))
    dead: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": dead_topic}
    writing = Writing(cluster, schema(rows), streaming=True, **dead, **given_of(bad, one_for_all))
    task = Task(batch=3, partition=5)
    began = datetime.now(timezone.utc)
    written = writing.write(rows, task)
    ended = datetime.now(timezone.utc)
    assert (written.dropped, written.dead_letters) == (0, 1)
    assert len(stored_in(cluster, one_for_all)) == before + 3
    stored = [message for message in stored_in(cluster, dead_topic) if own(message)["dead_id"] == task.query]
    assert len(stored_in(cluster, dead_topic)) - dead_before == len(stored) == sum(written.rows.values()) - 3
    texts = {key: unquote(text) for key, text in own(stored[0]).items()}
    assert re.search(bad.reason, texts["dead_reason"])
    assert (texts["dead_batch"], texts["dead_partition"], texts["dead_row"]) == ("3", "5", "2")
    assert began.timestamp() - 0.001 <= datetime.fromisoformat(texts["dead_time"].replace("Z", "+00:00")).timestamp()
    assert datetime.fromisoformat(texts["dead_time"].replace("Z", "+00:00")) <= ended
    pieces = sorted(stored, key=lambda message: int(own(message).get("dead_piece", 0)))
    content = b"".join(message.body for message in pieces)
    head = int(texts.get("dead_head", 0))
    parts = [part.split("=") for part in content[:head].decode().split(",") if part]
    texts |= {key: unquote(text) for key, text in parts}
    row = rows[2]
    assert content[head:] == (row["value"] or b"")
    assert texts.get("dead_value") == ("null" if row["value"] is None else None)
    assert texts.get("dead_topic") == (
        given_of(bad, one_for_all)["topic"] if row.get("topic") is None else row["topic"]
    )
    for name in ("msg_type", "msg_time", "inlong_group", "inlong_stream"):
        assert texts.get(f"dead_{name}") == row.get(name)
    for name in ("attributes", "inlong_attributes"):
        assert texts.get(f"dead_{name}") == (as_json(row[name]) if name in row else None)
    target = [row.get("broker_id"), row.get("partition")]
    shown = ":".join("" if part is None else str(part) for part in target)
    assert texts.get("dead_target") == (None if target == [None, None] else shown)


@pytest.fixture(scope="module")
def dead_topic(cluster: Cluster) -> str:
    return cluster.new_topic("one")


@pytest.mark.sink_option("failedRows", "deadLetterTopic")
@pytest.mark.parametrize("by_rows", [False, True])
def test_many_bad_rows_are_counted(
    cluster: Cluster, topic: str, by_rows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A few are logged one by one; all are counted."""
    dead = cluster.new_topic("one")
    rows = [{"value": None if n % 3 == 0 else b"%d" % n, "key": b"k%d" % n} for n in range(300)]
    given: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": dead, "by_rows": by_rows}
    written = save(cluster, rows, topic, task=Task(), **given)
    assert (written.dead_letters, sum(written.rows.values())) == (100, 300)
    assert bodies(cluster, topic) == sorted(row["value"] for row in rows if row["value"] is not None)
    dead_letters = [own(message) for message in stored_in(cluster, dead)]
    assert sorted(int(dead_letter["dead_row"]) for dead_letter in dead_letters) == list(range(0, 300, 3))
    for dead_letter in dead_letters:
        assert base64.b64decode(unquote(dead_letter["dead_key"])) == f"k{dead_letter['dead_row']}".encode()
    assert sum("can never be sent: column 'value': it is null" in message for message in caplog.messages) == 5
    assert _warnings(caplog)[5:] == [
        f"[batch-dead-letters] {'batch 0' if by_rows else 'a batch write'}: 100 rows could never be sent and became "
        "dead letters (failedRows=deadLetter)"
    ]


@pytest.mark.sink_option("deadLetterTopic")
def test_dead_letters_of_a_batch_write_have_no_batch(cluster: Cluster, topic: str) -> None:
    dead = cluster.new_topic("one")
    rows: list[dict[str, Any]] = [{"value": None}, {"value": b"good"}]
    writing = Writing(cluster, schema(rows), topic, failedRows="deadLetter", deadLetterTopic=dead)
    writing.write(rows, Task(batch=9, partition=2))
    (dead_letter,) = stored_in(cluster, dead)
    assert own(dead_letter)["dead_id"] == writing.plan.write_id
    assert own(dead_letter)["dead_partition"] == "2"
    assert "dead_batch" not in own(dead_letter)


@pytest.mark.sink_option("deadLetterTopic")
@pytest.mark.parametrize("once", [False, True])
def test_rows_for_the_dead_letter_topic_become_dead_letters(cluster: Cluster, topic: str, once: bool) -> None:
    """Otherwise nobody could distinguish them from dead letters."""
    dead = cluster.new_topic("one")
    rows = [{"value": b"a", "topic": topic}, {"value": b"b", "topic": dead}, {"value": b"c", "topic": topic}]
    given: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": dead}
    if once:
        given |= {"effectivelyOnce": True, "checkpointLocation": new_checkpoint(), "effectivelyOnceTopics": topic}
    written = Writing(cluster, schema(rows), streaming=True, **given).write(rows, Task())
    assert written.dead_letters == 1
    assert bodies(cluster, topic) == [b"a", b"c"]
    (dead_letter,) = stored_in(cluster, dead)
    assert own(dead_letter)["dead_topic"] == dead
    assert unquote(own(dead_letter)["dead_reason"]) == (
        "column 'topic': it is the dead letter topic, which takes no other rows: write another one"
    )


@pytest.mark.sink_option("deadLetterTopic")
def test_an_unknown_dead_letter_topic_fails_in_the_plan(cluster: Cluster, one_for_all: str) -> None:
    given: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": "nowhere", "tubemq_retry_maxElapsedMs": 100}
    with pytest.raises(ConfigError, match="has no topic nowhere"):
        save(cluster, [{"value": b"a"}], one_for_all, **given)


@pytest.mark.sink_option("failedRows", "effectivelyOnce")
@pytest.mark.parametrize("bad", SIMPLE, ids=lambda bad: bad.reason[:20])
def test_bad_rows_with_effectively_once(cluster: Cluster, one_for_all: str, bad: BadRow) -> None:
    """They are logged and dropped as without it."""
    rows = rows_of(bad, one_for_all)
    before = len(stored_in(cluster, one_for_all))
    once = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint(), **given_of(bad, one_for_all)}
    reason = bad.reason
    if once.get("topic") is None:
        once["effectivelyOnceTopics"], reason = one_for_all, "writes to topics that option"
    task = Task()
    with pytest.raises(ConfigError, match=rf"^row 2 of task partition 0.*{reason}"):
        Writing(cluster, schema(rows), streaming=True, **once).write(rows, task)
    writing = Writing(cluster, schema(rows), streaming=True, failedRows="drop", **once)
    for written in (writing.write(rows, task.again()), writing.write(rows, task.again().again())):
        assert written.dropped == 1
    assert written.already_stored == 3
    assert len(stored_in(cluster, one_for_all)) == before + 3


ODD = b"caf\xe9 \xff"


@ON_THE_CLIENT
@pytest.mark.sink_option("failedRows", "deadLetterTopic")
@pytest.mark.parametrize(
    "column", ["topic", "msg_type", "attributes", "inlong_group", "inlong_stream", "inlong_attributes"]
)
def test_texts_that_are_not_utf8_are_bad_rows(cluster: Cluster, one_for_all: str, dead_topic: str, column: str) -> None:
    """Spark allows any bytes in a string. The error names the row, and its dead letter has these bytes."""
    names = ["value", "topic", "msg_type", "attributes", "inlong_group", "inlong_stream", "inlong_attributes"]
    good = [one_for_all.encode(), b"news", [(b"a", b"b")], b"g", b"s", [(b"c", b"d"), (b"e", b"f")]]
    odd = [(b"ok", b"ok"), (b"odd", ODD)] if column.endswith("attributes") else ODD
    bad = [odd if name == column else cell for name, cell in zip(names[1:], good, strict=True)]
    rows = [[b"first", *good], [b"bad", *bad], [b"none", one_for_all.encode(), None, None, b"g", b"s", None]]
    batch = pa.record_batch([_spark_texts(list(cells)) for cells in zip(*rows, strict=True)], names)
    columns = schema(kinds={name: KINDS[name] for name in names})
    plain: dict[str, Any] = {"messageFormat": "inlongmsg"}
    before = len(stored_in(cluster, one_for_all))
    with pytest.raises(
        RowError, match=rf"^row 1 of task partition 0 \(value 'bad'\), column '{column}': it has bytes that are not UTF"
    ):
        write_batches(Writing(cluster, columns, **plain).plan, [batch])
    assert len(stored_in(cluster, one_for_all)) == before + 1

    writing = Writing(cluster, columns, failedRows="deadLetter", deadLetterTopic=dead_topic, **plain)
    assert write_batches(writing.plan, [batch]).dead_letters == 1
    assert len(stored_in(cluster, one_for_all)) == before + 3
    (dead_letter,) = [
        own(message)
        for message in stored_in(cluster, dead_topic)
        if message.body == b"bad" and own(message)["dead_id"] == writing.plan.write_id
    ]
    assert ODD in unquote_to_bytes(dead_letter[f"dead_{column}"])


def _spark_texts(cells: list[Any]) -> pa.Array:
    """Return a column as Spark sends it, with any bytes."""
    if not any(isinstance(cell, list) for cell in cells):
        return pa.array(cells, pa.binary()).cast(pa.string(), safe=False)
    maps = pa.array(cells, pa.map_(pa.binary(), pa.binary()))
    keys, items = (part.cast(pa.string(), safe=False) for part in (maps.keys, maps.items))
    return pa.MapArray.from_buffers(
        pa.map_(pa.string(), pa.string()),
        len(maps),
        [*maps.buffers()[:2]],
        children=[
            pa.StructArray.from_arrays(
                [keys, items], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
            )
        ],
    )


@ON_THE_CLIENT
@pytest.mark.sink_option("failedRows")
def test_a_time_beyond_the_calendar_is_a_bad_row(cluster: Cluster, one_for_all: str) -> None:
    """Spark's timestamps may be outside Python's calendar."""
    before = len(stored_in(cluster, one_for_all))
    columns = schema(kinds={"msg_time": TIMESTAMP})
    writing = Writing(cluster, columns, one_for_all)
    moment = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    with pytest.raises(
        RowError, match=r"^row 0 of task partition 0 \(value 'a'\), column 'msg_time': .* outside the years 1 to 9999"
    ):
        write_batches(writing.plan, [pa.record_batch([pa.array([b"a"]), moment], names=["value", "msg_time"])])
    assert len(stored_in(cluster, one_for_all)) == before
