# SPDX-License-Identifier: Apache-2.0
"""The content of a message: `value`, `attributes`, `msg_type`, `msg_time`."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.stored import stored_in
from tests.without_spark.sink import MINUTE, STRING, TIMESTAMP, bodies, own, read_back, save


@pytest.mark.column("value")
@pytest.mark.parametrize("by_rows", [False, True])
def test_values_may_be_bytes_or_texts(cluster: Cluster, topic: str, by_rows: bool) -> None:
    texts = ["", "a", "Zürich", "日本", "x" * 5000]
    save(cluster, [{"value": text.encode()} for text in texts], topic, by_rows=by_rows)
    save(cluster, [{"value": text} for text in texts], topic, kinds={"value": STRING}, by_rows=by_rows)
    assert bodies(cluster, topic) == sorted(2 * [text.encode() for text in texts])


@pytest.mark.column("attributes")
@pytest.mark.parametrize("by_rows", [False, True])
def test_attributes_are_stored_unchanged(cluster: Cluster, topic: str, by_rows: bool) -> None:
    given: Sequence[dict[str, str] | None] = [
        {"city": "Zürich", "empty": "", "日本": "語", "blank ": " "},
        {"one": "1"},
        {},
        None,
    ]
    rows = [{"value": b"%d" % n, "attributes": texts} for n, texts in enumerate(given)]
    save(cluster, rows, topic, by_rows=by_rows)
    assert {message.body: own(message) for message in stored_in(cluster, topic)} == {
        b"%d" % n: texts or {} for n, texts in enumerate(given)
    }


@pytest.mark.column("msg_type")
def test_the_broker_filters_by_type(cluster: Cluster, topic: str) -> None:
    rows = [{"value": b"%d" % n, "msg_type": kind} for n, kind in enumerate(["news", "日本", None, "news", "x" * 255])]
    save(cluster, rows, topic)
    found = {
        kind: sorted(message.body for message in stored_in(cluster, topic, filters=[kind]))
        for kind in ("news", "日本", "x" * 255, "other")
    }
    assert found == {"news": [b"0", b"3"], "日本": [b"1"], "x" * 255: [b"4"], "other": []}
    types = {message.body: message.attributes.msg_type for message in stored_in(cluster, topic)}
    assert types == {row["value"]: row["msg_type"] for row in rows}


@pytest.mark.column("msg_type")
@pytest.mark.parametrize("by_rows", [False, True])
def test_a_blank_type_is_none(cluster: Cluster, topic: str, by_rows: bool) -> None:
    """As for Java's client (tests/interop). Without other types, the rows are sent together."""
    for kinds in (["", "", ""], ["", "news", None, " \t"]):
        save(
            cluster, [{"value": (kind or "null").encode(), "msg_type": kind} for kind in kinds], topic, by_rows=by_rows
        )
    assert [message.body for message in stored_in(cluster, topic, filters=["news"])] == [b"news"]
    assert Counter((row["value"], row["msg_type"]) for row in read_back(cluster, topic)) == {
        (b"null", None): 5, (b"news", "news"): 1, (b" \t", None): 1,
    }  # fmt: skip


@pytest.mark.column("msg_type")
def test_one_line_names_a_type_that_no_reader_can_filter_by(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's client sends such types as well, so a copy of its messages needs them."""
    kind = f"{uuid.uuid4()}#1"  # a process warns once for each type
    save(cluster, [{"value": b"%d" % n, "msg_type": kind} for n in range(2)], topic)
    assert [message.attributes.msg_type for message in stored_in(cluster, topic)] == [kind] * 2
    assert [r.getMessage().split()[0] for r in caplog.records if kind in r.getMessage()] == ["[type-not-filtered]"]


@pytest.mark.column("msg_time")
@pytest.mark.parametrize("by_rows", [False, True])
def test_times_may_be_timestamps_or_texts(cluster: Cluster, topic: str, by_rows: bool) -> None:
    """A message has the minute, in UTC."""
    moments = [MINUTE + timedelta(seconds=59), datetime(1969, 12, 31, 23, 59, 59, tzinfo=timezone.utc)]
    rows: list[dict[str, Any]] = [{"value": b"time %d" % n, "msg_time": moment} for n, moment in enumerate(moments)]
    if by_rows:  # Spark's rows have them without a zone, in that of the process
        rows = [{**row, "msg_time": row["msg_time"].astimezone().replace(tzinfo=None)} for row in rows]
    save(cluster, rows, topic, kinds={"msg_time": TIMESTAMP}, by_rows=by_rows)
    save(cluster, [{"value": b"text", "msg_time": "202611210830"}], topic, by_rows=by_rows)
    times = {message.body: message.attributes.msg_time for message in stored_in(cluster, topic)}
    noon = int(MINUTE.timestamp()) * 1_000_000
    assert times == {b"time 0": noon, b"time 1": -60_000_000, b"text": noon}


@pytest.mark.column("msg_time")
def test_a_row_without_a_time_has_the_present_time(cluster: Cluster, topic: str) -> None:
    before = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    save(cluster, [{"value": b"a", "msg_time": None}], topic)
    save(cluster, [{"value": b"b"}], topic)
    after = datetime.now(timezone.utc)
    for message in stored_in(cluster, topic):
        assert message.attributes.msg_time is not None
        assert before <= datetime.fromtimestamp(message.attributes.msg_time / 1e6, timezone.utc) <= after
