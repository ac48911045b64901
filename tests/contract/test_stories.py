# SPDX-License-Identifier: Apache-2.0
"""Stories of whole queries and writes that tests/simulation plays in any order, on both servers and in real time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pyspark.sql.datasource import InputPartition

from tests import messages, reading
from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.messages import bring_into_files
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, commit_stream, plan_stream, run_task, schema
from tests.without_spark.sink import bodies as stored_bodies
from tests.without_spark.sink import options as sink_options
from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED, Row, Stream, StreamRun, bodies, read_batch
from tubemq_spark.errors import PartitionOccupiedError

COUNT = 20_000  # messages: a task has not fetched all of them when it gives the first rows out
_attempts = itertools.count()


class Killed(BaseException):
    """Ends a driver or a worker. It closes nothing, and its threads live on, as those of a process that hangs."""


@pytest.fixture(params=[EMBEDDED, *REAL_THOROUGHLY])
def own(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose broker a test may kill."""
    with running(request.param, brokers=1) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str, count: int = COUNT) -> list[bytes]:
    """Send messages that are unlike each other, to all partitions."""
    sent = messages.send(cluster, messages.numbered(messages.partitions(cluster, topic), count))
    return [message.body for several in sent.values() for message in several]


def positions(cluster: Cluster, group: str, topic: str) -> list[int]:
    return [
        reading.group_position(cluster, group, partition).group for partition in messages.partitions(cluster, topic)
    ]


def die_at(stream: Stream, moment: str) -> StreamRun:
    """Run a query whose driver is killed when it comes to `moment`. Its heartbeats go on until the run is stopped."""

    def come_to(point: str) -> None:
        if point == moment:
            raise Killed

    run = stream.running("availableNow").__enter__()
    run._point = come_to
    with pytest.raises(Killed):
        run.next()
    return run


def read_attempt(run: StreamRun, task: InputPartition, number: int) -> Iterator[Row]:
    """Read a task as an attempt of Spark, which the connector takes for newer than all before."""
    identity = next(_attempts)
    context = SimpleNamespace(
        stageId=lambda: 1,
        partitionId=lambda: 0,
        attemptNumber=lambda: number,
        taskAttemptId=lambda: identity,
        getLocalProperty=lambda name: None,
    )
    batches: Any = run.read([task])
    while True:
        with mock.patch("tubemq_spark.source.input_partition.TaskContext", SimpleNamespace(get=lambda: context)):
            batch = next(batches, None)
        if batch is None:
            return
        yield from batch.to_pylist()


@pytest.mark.parametrize("moment", [FOUND, LOGGED, PLANNED, GIVEN])
def test_a_driver_is_killed_and_the_next_run_repeats_its_batch(cluster: Cluster, group: str, moment: str) -> None:
    topic = cluster.new_topic("three")
    sent = fill(cluster, topic, 300)
    stream = Stream(cluster, topic, tubemq_group=group)
    stream.run()
    sent += fill(cluster, topic, 300)
    killed = die_at(stream, moment)
    stream.run()
    assert sorted(bodies(stream.rows)) == sorted(sent)
    ends = {partition.partition_id: end for partition, end in stream.end.items() if partition.broker_id == 1}
    assert positions(cluster, group, topic)[: len(ends)] == list(ends.values())
    killed.stop()


def test_a_worker_is_killed_in_a_range_and_the_next_attempt_reads_it_all(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("one")
    sent = fill(cluster, topic)
    stream = Stream(cluster, topic, tubemq_group=group)
    with stream.running() as run:
        run.find_next()
        [tasks] = run.plan()
        for task in tasks:
            killed = read_attempt(run, task, 0)
            assert next(killed)
            stream.rows += read_attempt(run, task, 1)
    assert sorted(bodies(stream.rows)) == sorted(sent)


def test_a_broker_is_killed_in_a_range_and_comes_back(own: Cluster, group: str) -> None:
    topic = own.new_topic("one")
    sent = fill(own, topic)
    bring_into_files(own, [topic])
    stream = Stream(own, topic, tubemq_group=group, tubemq_retry_maxElapsedMs=60_000)
    with stream.running() as run:
        seen = itertools.count()

        def restart(point: str) -> None:
            if point == GIVEN and next(seen) == 0:
                own.kill_broker(1)
                own.start_broker(1)

        run._point = restart
        run.next()
    assert bodies(stream.rows) == sent
    assert positions(own, group, topic) in ([0], list(stream.end.values()))


def test_a_second_query_of_the_group_is_refused_and_harms_nobody(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("three")
    sent = fill(cluster, topic, 100)
    first, second = (Stream(cluster, topic, tubemq_group=group) for _ in range(2))
    with first.running(tubemq_claim_timeoutMs=500) as run:
        run.next()
        run.latest()
        with second.running(tubemq_claim_timeoutMs=500) as rival, pytest.raises(PartitionOccupiedError, match=group):
            rival.next()
        sent += fill(cluster, topic, 100)
        run.next()
        assert run.next() is None
    assert not second.rows
    assert sorted(bodies(first.rows)) == sorted(sent)


def test_a_batch_read_leaves_the_group_where_it_was(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic("three")
    sent = fill(cluster, topic, 100)
    stream = Stream(cluster, topic, tubemq_group=group)
    stream.run()
    before = positions(cluster, group, topic)
    with stream.running() as run:
        run.latest()
        sent += fill(cluster, topic, 100)
        assert sorted(bodies(read_batch(cluster, topic, tubemq_group=group))) == sorted(sent)
    assert positions(cluster, group, topic) == before
    for start in ("earliest", "group"):
        read_batch(cluster, topic, tubemq_group=group, startingOffsets=start)
        assert positions(cluster, group, topic) == before


def test_each_row_is_stored_once_although_attempts_stop_half_way(
    cluster: Cluster, use_timings: UseTimings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first attempts die after some sends. Then the stage is repeated, and in the end the query starts again."""
    topic = cluster.new_topic("three")
    rows: Sequence[dict[str, Any]] = [{"value": b"row %d" % number} for number in range(30)]
    given: dict[str, Any] = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()}
    use_timings(task_settling=0.1, closed_connection_settling=0.1, broker_away_after=30.0)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    raw, columns, task = sink_options(cluster, topic, **given), schema(), Task()
    others = fill(cluster, topic, 300)  # in a shorter store no attempt can leave a mark
    writer = plan_stream(raw, columns)
    for sends in (3, 11):
        run_task(writer, rows[:sends], columns, task)
        task = task.again()
    task = task.in_repeated_stage()
    assert run_task(writer, rows[::-1], columns, task).already_stored == 11
    task = task.restarted()
    written = run_task(plan_stream(raw, columns), rows, columns, task)
    assert written.already_stored == 30
    commit_stream(raw, columns, [written], 0)
    assert stored_bodies(cluster, topic) == sorted([*others, *(row["value"] for row in rows)])
