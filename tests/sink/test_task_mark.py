# SPDX-License-Identifier: Apache-2.0
"""Attempts of a task that Spark begins with number 0 again, because it repeats the stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.waiting import wait_until
from tests.without_spark.sink import Cells, Task, batches, options, schema
from tubemq_spark.errors import FencedError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.sink.task_attempts import RUN_CACHE
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan, plan_write

ROWS = [{"value": b"%d" % row} for row in range(50)]
EARLIER = [b"earlier"] * 40


@pytest.fixture
def cluster(use_timings: UseTimings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[EmbeddedCluster]:
    RUN_CACHE().clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    use_timings(task_settling=0.0, task_mark_max_age=0.0)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=2)}) as running:
        for body in EARLIER:
            running.tubemq.send("demo", body)
        yield running
    RUN_CACHE().clear()


@pytest.fixture
def plan(cluster: EmbeddedCluster, tmp_path: Path) -> WritePlan:
    """The plan of a batch, which all attempts of its stage get."""
    # The task takes a row when the row before it is acknowledged.
    raw = options(
        cluster, "demo", effectivelyOnce=True, checkpointLocation=str(tmp_path), tubemq_producer_maxInFlightBytes=1
    )
    return plan_write(raw, schema(ROWS), False).for_tasks()


@pytest.fixture(params=[True, False], ids=["first batch of the run", "later batch"])
def task(request: pytest.FixtureRequest, plan: WritePlan) -> Task:
    task = Task()
    if request.param:
        return task
    attempt(plan, task, [])  # so that this process knows an earlier batch of the run
    return task.next()


def attempt(plan: WritePlan, task: Task, rows: Iterable[Cells] = ROWS) -> int:
    """Return how many rows an earlier attempt had stored."""
    with task.running():
        return write_batches(plan, (batch for row in rows for batch in batches([row], schema(ROWS)))).already_stored


def assert_each_stored_once(cluster: EmbeddedCluster) -> None:
    assert bodies_in(cluster) == Counter(row["value"] for row in ROWS) + Counter(EARLIER)


@pytest.mark.parametrize("begun", [1, 20])
@pytest.mark.parametrize("rest", [0, 1, 30])
def test_an_attempt_of_the_earlier_stage_stops(
    cluster: EmbeddedCluster, plan: WritePlan, task: Task, begun: int, rest: int
) -> None:
    """Spark does not end the attempts that run when it repeats a stage."""

    def rows() -> Iterator[Cells]:
        yield from ROWS[:begun]
        wait_until(lambda: bodies_in(cluster).total() == len(EARLIER) + begun)
        assert attempt(plan, task.in_repeated_stage()) == begun
        yield from ROWS[begun : begun + rest]

    with pytest.raises(FencedError, match="Spark has begun another attempt of this task"):
        attempt(plan, task, rows())
    assert_each_stored_once(cluster)


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_broker_that_takes_no_marks_does_not_stop_the_batch(
    cluster: EmbeddedCluster, plan: WritePlan, task: Task, is_refused: bool, use_timings: UseTimings
) -> None:
    marks = cluster.tubemq.on("partition_register", group=f"{plan.options.effectively_once.group}_task_0")  # type: ignore[union-attr]
    with marks.fail(ErrCode.CONSUME_GROUP_FORBIDDEN) if is_refused else marks.drop_request():
        attempt(plan, task)
    assert_each_stored_once(cluster)
