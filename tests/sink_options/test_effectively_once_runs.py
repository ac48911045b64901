# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` across runs of a query, and if Spark ends all workers between two batches."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster
from tests.reading import UNIT
from tests.sending import bodies_in
from tests.sink_options.effectively_once import (
    CHECKPOINT,
    Start,
    new_workers,
    plan_batch,
    rows,
)
from tests.without_spark.sink import Cells, Task, batches, options, schema
from tubemq_spark.client.cluster import producer_session
from tubemq_spark.client.consumer.working_group import plan_group
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import DataLossError, ServerError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.sink import commit as sink_commit
from tubemq_spark.sink.task_attempts import read_commit_note
from tubemq_spark.testing import request_checks


def write(
    cluster: EmbeddedCluster, task: Task, some: Sequence[Cells], topic: str | None = "demo", **given: Any
) -> Task:
    """Write and commit a batch of one task by new workers; return the task of the next batch."""
    new_workers()
    writing = plan_batch(cluster, some, topic, **given)
    new_workers()
    written = writing.write(some, task)
    new_workers()
    writing.commit([written], task.batch)
    return task.next()


def group_position(cluster: EmbeddedCluster, group: str, topic: str) -> int | None:
    return cluster.group_offset(group, topic, 1, 0)


def group_of(cluster: EmbeddedCluster) -> str:
    once = plan_batch(cluster, rows("", 1, topic=""), None).plan.options.effectively_once
    assert once is not None
    return once.group


def test_only_the_first_batch_of_a_run_searches_for_earlier_attempts(start: Start) -> None:
    """It does not matter how long the triggers are and what others write."""
    cluster, task = start(), Task()
    task = write(cluster, task, rows("0", 5))
    fetches = cluster.tubemq.on("get_message").count()
    for batch in (1, 2):
        for number in range(20):
            cluster.tubemq.send("demo", b"foreign %d %d" % (batch, number))
        task = write(cluster, task, rows(str(batch), 5), effectivelyOnceMaxOffsets=1)
    assert fetches.fired == 0
    write(cluster, task.restarted(), rows("3", 5))
    assert fetches.fired > 0


def test_a_commit_sends_three_requests_for_each_partition(start: Start) -> None:
    """It asks for the end, and moves two groups; the plan sends four."""
    cluster, task = start(partitions=3), Task()
    some = rows("0", 5)
    source = TubeMQDataSource(options(cluster, "demo", effectivelyOnce=True, checkpointLocation=CHECKPOINT))
    claims = cluster.tubemq.on("partition_register").count()
    writer = source.streamWriter(schema(some), False)
    assert claims.fired == 0
    copy = pickle.loads(pickle.dumps(writer))
    assert pickle.loads(pickle.dumps(writer))._plan == pickle.loads(pickle.dumps(copy))._plan
    assert claims.fired == 3 * 4
    with task.running():
        written = copy.write(batches(some, schema(some)))
    before = claims.fired
    source.streamWriter(schema(some), False).commit([written], 0)
    assert claims.fired == before + 3 * 3


def test_a_deleted_topic_is_forgotten(start: Start) -> None:
    cluster, task = start("rare", "often"), Task()
    task = write(cluster, task, [*rows("0", 4, topic="rare"), *rows("0", 4, topic="often")], None)
    cluster.tubemq.delete_topic("rare")
    for batch in (1, 2):
        task = write(cluster, task, rows(str(batch), 4, topic="often"), None)
    assert read_commit_note(group_of(cluster)).topics == ("often",)


def test_a_query_may_write_to_ever_new_topics(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks for the bookmarks of the topics that it wrote to last, and for no more than a master takes."""
    monkeypatch.setattr(request_checks, "_MAX_TOPICS", 4)
    monkeypatch.setattr(producer_session, "MAX_TOPICS", 4)
    monkeypatch.setattr(sink_commit, "_MAX_NOTED", 3)
    days = [f"day{number}" for number in range(9)]
    cluster, task = start("always", *days), Task()
    for day in days:
        task = write(cluster, task, [*rows(day, 2, topic="always"), *rows(day, 2, topic=day)], None)
    assert read_commit_note(group_of(cluster)).topics == ("always", "day8", "day7")
    task = write(cluster, task.restarted(), rows("week", 1, topic=days[0]), None)
    write(cluster, task, [row for day in days for row in rows("month", 1, topic=day)], None)
    assert bodies_in(cluster).total() == 9 * 4 + 1 + 9


@pytest.mark.parametrize("topic", ["demo", None], ids=["option", "column"])
def test_a_query_that_was_stopped_cleanly_starts_again_after_retention(start: Start, topic: str | None) -> None:
    """No attempt of its next batch has begun, so retention cannot have removed its rows."""
    cluster, task = start(), Task()
    given: dict[str, Any] = {} if topic else {"topic": "demo"}
    for batch in range(3):
        task = write(cluster, task, rows(str(batch), 5, **given), topic)
    for _ in range(40):
        cluster.tubemq.send("demo", b"foreign")
    cluster.tubemq.flush("demo")
    cluster.tubemq.expire("demo", keep=10)
    new_workers()
    some = rows("3", 5, **given)
    task = task.restarted()
    writing = plan_batch(cluster, some, topic)
    written = writing.write(some[:3], task)
    assert (written.already_stored, sum(written.rows.values())) == (0, 3)
    assert writing.write(some, task.again()).already_stored == 3


def test_a_task_marks_the_batch_as_begun_after_its_search(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new driver's plan does not know the topic."""
    cluster, task = start(), Task()
    for batch in range(2):
        task = write(cluster, task, rows(str(batch), 5, topic="demo"), None)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    new_workers()
    group, some = group_of(cluster), rows("2", 5, topic="demo")
    positions: list[int | None] = []

    clock = SkippingClock(on_sleep=lambda _: positions.append(group_position(cluster, plan_group(group), "demo")))
    monkeypatch.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
    writing = plan_batch(cluster, some, None)
    assert sum(writing.write(some, task.restarted()).rows.values()) == 5
    assert positions == [0]
    assert group_position(cluster, plan_group(group), "demo") == 10 * UNIT


def test_a_search_that_fails_does_not_mark_the_batch_as_begun(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new driver's plan does not know the topic, of which retention has removed messages."""
    cluster, task = start(), Task()
    for batch in range(2):
        task = write(cluster, task, rows(str(batch), 5, topic="demo"), None)
    for _ in range(40):
        cluster.tubemq.send("demo", b"foreign")
    cluster.tubemq.flush("demo")
    cluster.tubemq.expire("demo", keep=10)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    new_workers()
    some, task = rows("2", 5, topic="demo"), task.restarted()
    writing = plan_batch(cluster, some, None)
    with cluster.tubemq.on("get_message").fail(ErrCode.BAD_REQUEST), pytest.raises(ServerError):
        writing.write(some, task)
    assert writing.write(some, task.again()).already_stored == 0


def test_a_task_that_searches_marks_the_batch_again(start: Start) -> None:
    """A broker that crashes may have lost the mark that the plan has left."""
    cluster, task = start(), Task()
    for batch in range(2):
        task = write(cluster, task, rows(str(batch), 5))
    some, group = rows("2", 5), plan_group(group_of(cluster))
    writing = plan_batch(cluster, some)
    assert group_position(cluster, group, "demo") == 10 * UNIT
    cluster.tubemq.move_group(group, "demo", 1, 0, 0)
    new_workers()
    writing.write(some, task.again())
    assert group_position(cluster, group, "demo") == 10 * UNIT


@pytest.mark.parametrize("committed", [False, True], ids=["in the batch", "before Spark knew of the commit"])
def test_a_query_that_was_killed_does_not_start_again_after_retention(start: Start, committed: bool) -> None:
    """Retention may have removed rows of its batch."""
    cluster, task = start(), Task()
    task = write(cluster, task, rows("0", 5))
    some = rows("1", 30)
    writing = plan_batch(cluster, some)
    written = writing.write(some, task)
    if committed:
        writing.commit([written], 1)
    cluster.tubemq.flush("demo")
    cluster.tubemq.expire("demo", keep=10)
    new_workers()
    with pytest.raises(DataLossError, match="cannot be found, because retention has removed messages"):
        plan_batch(cluster, some).write(some, task.restarted())
