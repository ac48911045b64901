# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` if the tasks, the checkpoint's spelling or the query's groups change before another attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.clusters.embedded import EmbeddedCluster
from tests.sink_options.effectively_once import (
    Start,
    assert_each_stored_once,
    new_workers,
    plan_batch,
    rows,
)
from tests.without_spark.sink import Cells, Task, Writing, schema
from tubemq_spark.client.consumer.working_group import bookmark_group, plan_group
from tubemq_spark.errors import ConfigError, DataLossError

# Another number of tasks


@pytest.mark.sink_option("effectivelyOnceUncertain")
@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_with_fewer_tasks_than_an_earlier_attempt_is_not_committed(start: Start, count: int) -> None:
    cluster, task = start(), Task()

    def write(task: Task, parts: Sequence[Sequence[Cells]], *, commits: bool) -> None:
        """Write a batch with one task for each of `parts`."""
        new_workers()
        writing = plan_batch(cluster, [{"value": b""}])
        written = [writing.write(part, replace(task, partition=n)) for n, part in enumerate(parts)]
        if commits:
            writing.commit(written, task.batch)

    parts = [rows(str(number), 3) for number in range(3)]
    write(task, parts, commits=False)
    fewer = [parts[0], parts[1] + parts[2]] if count == 2 else [[]]
    message = (
        r"^batch 0: an earlier attempt has stored rows of task 2 in topic demo, which has no such rows now: the batch "
        r"has 2 tasks, and had more\. .* task of the same number\. .* to sendAgain$"
    )
    if count == 1:  # of a query that gives no rows any more
        message = "^task partition 0 of batch 0: an earlier attempt of the task has stored 3 rows"
    with pytest.raises(ConfigError, match=message):
        write(task.restarted(), fewer, commits=True)


# A run without the option before


@pytest.mark.sink_option("effectivelyOnceUncertain")
@pytest.mark.parametrize("again", [Task.restarted, lambda task: task.restarted().again()], ids=["first", "second"])
def test_a_batch_that_a_run_without_the_option_has_begun_fails(start: Start, again: Callable[[Task], Task]) -> None:
    cluster, task, some = start(), Task(), rows("0", 5)
    Writing(cluster, schema(some), "demo", streaming=True, stampRows=True).write(some[:3], task)
    new_workers()
    message = "^task partition 0 of batch 0: 1:demo:0: message .* without a digest.* to sendAgain, "
    with pytest.raises(ConfigError, match=message):
        plan_batch(cluster, some).write(some, again(task))
    assert_each_stored_once(cluster, some[:3])


# Groups that are gone


@pytest.fixture
def begun(start: Start, monkeypatch: pytest.MonkeyPatch) -> tuple[EmbeddedCluster, Task]:
    """A half-written batch without its groups. Others have written before, between and after."""
    monkeypatch.setattr("tubemq_spark.sink.stored_rows_search.MARGIN", 3)
    cluster, task = start(), Task()
    for number in range(50):
        cluster.tubemq.send("demo", b"before %d" % number)
    writing = plan_batch(cluster, rows("0", 5))
    writing.commit([writing.write(rows("0", 5), task)], 0)
    task = task.next()
    for number in range(10):
        cluster.tubemq.send("demo", b"between %d" % number)
    plan_batch(cluster, rows("1", 40)).write(rows("1", 40), task)
    cluster.tubemq.send("demo", b"after")
    new_workers()
    once = writing.plan.options.effectively_once
    assert once is not None
    (server,) = cluster.tubemq._servers.brokers.values()
    for name in (bookmark_group(once.group, 0), bookmark_group(once.group, 1), plan_group(once.group)):
        cluster.tubemq._on_thread(partial(server.service.offsets.remove, name))  # as servers do after some time
    return cluster, task.restarted()


def test_messages_before_a_late_bookmark_are_found(begun: tuple[EmbeddedCluster, Task]) -> None:
    cluster, task = begun
    assert plan_batch(cluster, rows("1", 40)).write(rows("1", 40), task).already_stored == 40


def test_a_late_bookmark_fails_the_task_if_retention_may_have_removed_messages(
    begun: tuple[EmbeddedCluster, Task],
) -> None:
    cluster, task = begun
    cluster.tubemq.flush("demo")
    cluster.tubemq.expire("demo", keep=40)
    with pytest.raises(DataLossError, match=r"before the query's bookmark at .*, which is too late: the servers"):
        plan_batch(cluster, rows("1", 40)).write(rows("1", 40), task)
