# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` across runs of a query, and if Spark ends all workers between two batches."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from tests.clusters.embedded import EmbeddedCluster
from tests.sink_options.effectively_once import (
    Start,
    new_workers,
    plan_batch,
    rows,
)
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Cells, Task, batches, options, schema
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import DataLossError


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


def test_no_batch_behind_a_commit_searches_for_earlier_attempts(start: Start) -> None:
    """It does not matter how long the triggers are, what others write, and whether the query was stopped."""
    cluster, task = start(), Task()
    fetches = cluster.tubemq.on("get_message").count()
    for batch in range(4):
        for number in range(20):
            cluster.tubemq.send("demo", b"foreign %d %d" % (batch, number))
        task = write(cluster, task.restarted(), rows(str(batch), 5), effectivelyOnceMaxOffsets=1)
    assert fetches.fired == 0


def test_a_batch_asks_once_where_each_partition_ends(start: Start) -> None:
    cluster, task = start(partitions=3), Task()
    some = rows("0", 5)
    source = TubeMQDataSource(options(cluster, "demo", effectivelyOnce=True, checkpointLocation=new_checkpoint()))
    claims = cluster.tubemq.on("partition_register").count()
    writer = source.streamWriter(schema(some), False)
    assert claims.fired == 0
    copy = pickle.loads(pickle.dumps(writer))
    assert pickle.loads(pickle.dumps(writer))._plan == pickle.loads(pickle.dumps(copy))._plan
    assert claims.fired == 3
    with task.running():
        written = copy.write(batches(some, schema(some)))
    source.streamWriter(schema(some), False).commit([written], 0)
    assert claims.fired == 3


@pytest.mark.parametrize("topic", ["demo", None], ids=["option", "column"])
def test_a_query_that_was_stopped_cleanly_starts_again_after_retention(start: Start, topic: str | None) -> None:
    """No attempt of its next batch has begun, so retention cannot have removed its rows."""
    cluster, task = start(), Task()
    given: dict[str, Any] = {} if topic else {"topic": "demo"}
    topics: dict[str, Any] = {} if topic else {"effectivelyOnceTopics": "demo"}
    for batch in range(3):
        task = write(cluster, task, rows(str(batch), 5, **given), topic, **topics)
    for _ in range(40):
        cluster.tubemq.send("demo", b"foreign")
    cluster.tubemq.flush("demo")
    cluster.tubemq.expire("demo", keep=10)
    new_workers()
    some = rows("3", 5, **given)
    task = task.restarted()
    writing = plan_batch(cluster, some, topic, **topics)
    written = writing.write(some[:3], task)
    assert (written.already_stored, sum(written.rows.values())) == (0, 3)
    assert writing.write(some, task.again()).already_stored == 3


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
