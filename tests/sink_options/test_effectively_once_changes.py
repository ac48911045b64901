# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` if the tasks, or the option change before another attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.sending import bodies_in
from tests.sink_options.effectively_once import (
    Start,
    assert_each_stored_once,
    new_workers,
    plan_batch,
    rows,
)
from tests.without_spark.sink import Cells, Task, Writing, schema
from tubemq_spark.errors import ConfigError

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


# Runs without the option


@pytest.mark.sink_option("effectivelyOnceUncertain")
@pytest.mark.parametrize("again", [Task.restarted, lambda task: task.restarted().again()], ids=["first", "second"])
def test_a_batch_that_a_run_without_the_option_has_begun_fails(start: Start, again: Callable[[Task], Task]) -> None:
    """The option was switched off for a while, within a batch."""
    cluster, task, some = start(), Task(), rows("0", 5)
    plan_batch(cluster, some)
    Writing(cluster, schema(some), "demo", streaming=True, stampRows=True).write(some[:3], task)
    new_workers()
    message = "^task partition 0 of batch 0: 1:demo:0: message .* without a digest.* to sendAgain, "
    with pytest.raises(ConfigError, match=message):
        plan_batch(cluster, some).write(some, again(task))
    assert_each_stored_once(cluster, some[:3])


@pytest.mark.sink_option("effectivelyOnceUncertain")
def test_a_checkpoint_with_batches_and_without_the_file_is_refused(start: Start) -> None:
    """It is unknown whether a run without the option has begun the batch."""
    cluster, task, some = start(), replace(Task(), batch=3), rows("3", 5)
    for attempt in (task, task.restarted()):
        with pytest.raises(ConfigError, match=r"the query is at batch 3, and its file knows no batch: .* to sendAgain"):
            plan_batch(cluster, some).write(some, attempt)
    assert bodies_in(cluster).total() == 0
    writing = plan_batch(cluster, some, effectivelyOnceUncertain="sendAgain")
    writing.commit([writing.write(some, task)], task.batch)
    later = rows("4", 5)
    assert plan_batch(cluster, later).write(later, task.next()).already_stored == 0
    assert_each_stored_once(cluster, some, later)
