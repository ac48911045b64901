# SPDX-License-Identifier: Apache-2.0
"""`stampRows`: readers can recognize copies."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace

import pytest

from tests.clusters import Cluster
from tests.stored import stored_in
from tests.without_spark.sink import Task, Writing, bodies, own, read_back, save, schema
from tubemq_spark.errors import ConfigError, RowError

pytestmark = pytest.mark.sink_option("stampRows")

KEYS = ["spark_id", "spark_batch", "spark_partition", "spark_row"]


def stamps(cluster: Cluster, topic: str) -> list[tuple[bytes, tuple[str, ...]]]:
    return sorted((message.body, tuple(own(message)[key] for key in KEYS)) for message in stored_in(cluster, topic))


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_streams_messages_carry_stamps(cluster: Cluster, demo: str, by_rows: bool) -> None:
    rows = [{"value": b"%d" % n, "attributes": {"n": str(n)} if n % 2 else None} for n in range(10)]
    writing = Writing(cluster, schema(rows), demo, streaming=True, by_rows=by_rows, stampRows=True)
    task = Task(batch=7, partition=3)
    writing.write(rows, task)
    assert stamps(cluster, demo) == [(b"%d" % n, (task.query, "7", "3", str(n))) for n in range(10)]
    for message in stored_in(cluster, demo):
        assert list(own(message)) == [*(["n"] if int(message.body) % 2 else []), *KEYS]


def test_a_batch_write_has_one_id(cluster: Cluster, demo: str) -> None:
    """It is the id of the write, not of a stream around it (foreachBatch); the next write has another."""
    rows = [{"value": b"%d" % n} for n in range(4)]
    ids = []
    for _ in range(2):
        writing = Writing(cluster, schema(rows), demo, stampRows=True)
        for part in range(2):
            writing.write(rows, Task(batch=9, partition=part))
        ids.append(str(uuid.UUID(writing.plan.write_id)))
    assert len(set(ids)) == 2
    wanted = [(b"%d" % n, (id_, "0", str(part), str(n))) for n in range(4) for id_ in ids for part in range(2)]
    assert stamps(cluster, demo) == sorted(wanted)


def without_copies(cluster: Cluster, topic: str) -> list[bytes]:
    """Return what the example of the documentation leaves."""
    rows = read_back(cluster, topic)
    return sorted(
        value for value, *_ in {(row["value"], *(dict(row["attributes"])[key] for key in KEYS)) for row in rows}
    )


def test_another_attempt_gives_the_same_stamps(cluster: Cluster, demo: str) -> None:
    """So readers can drop the copies."""
    rows = [{"value": b"%d" % n} for n in range(20)]
    writing = Writing(cluster, schema(rows), demo, streaming=True, stampRows=True)
    task = Task()
    writing.write(rows[:12], task)
    writing.write(rows, task.again())
    writing.write(rows, task.restarted())
    assert Counter(bodies(cluster, demo)) == {row["value"]: 3 if n < 12 else 2 for n, row in enumerate(rows)}
    assert without_copies(cluster, demo) == sorted(row["value"] for row in rows)


def test_equal_rows_are_no_copies(cluster: Cluster, demo: str) -> None:
    """They come from one task, from two tasks, or from two batches."""
    rows = [{"value": b"same"}] * 3
    writing = Writing(cluster, schema(rows), demo, streaming=True, stampRows=True)
    first = Task()
    for task in (first, replace(first, partition=1), first.next(), first.again()):
        writing.write(rows, task)
    assert len(bodies(cluster, demo)) == 12
    assert without_copies(cluster, demo) == [b"same"] * 9


def test_rows_in_another_order_are_not_dropped_as_copies(cluster: Cluster, demo: str) -> None:
    """Another row has the number then, so some rows may come twice."""
    rows = [{"value": b"%d" % n} for n in range(20)]
    writing = Writing(cluster, schema(rows), demo, streaming=True, stampRows=True)
    task = Task()
    writing.write(rows[:12], task)
    writing.write(rows[::-1], task.again())
    assert set(without_copies(cluster, demo)) == {row["value"] for row in rows}


def test_without_the_option_messages_have_no_stamps(cluster: Cluster, demo: str) -> None:
    save(cluster, [{"value": b"a"}], demo, stampRows=False, task=Task())
    assert [own(message) for message in stored_in(cluster, demo)] == [{}]


@pytest.mark.parametrize("key", [*KEYS, "spark_digest"])
def test_attributes_of_a_stamp_are_reserved(cluster: Cluster, demo: str, key: str) -> None:
    """Without stamps, these names are allowed."""
    rows = [{"value": b"a", "attributes": {"x": "1", key: "2"}}]
    with pytest.raises(
        RowError,
        match=rf"^row 0 .* \(value 'a'\), column 'attributes': the attribute {key} is reserved where",
    ):
        save(cluster, rows, demo, stampRows=True, task=Task())
    assert bodies(cluster, demo) == []
    save(cluster, rows, demo, task=Task())
    assert [own(message) for message in stored_in(cluster, demo)] == [{"x": "1", key: "2"}]


def test_stamps_need_a_task_of_spark(cluster: Cluster, demo: str) -> None:
    writing = Writing(cluster, schema(), demo, streaming=True, stampRows=True)
    with pytest.raises(ConfigError, match="options 'stampRows' and 'effectivelyOnce' need a task of Spark"):
        writing.write([{"value": b"a"}])
    assert bodies(cluster, demo) == []
