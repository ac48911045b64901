# SPDX-License-Identifier: Apache-2.0
"""A streaming query without Spark: the calls of Spark's engine in the order of Spark 4.2 and 4.3.

The offset log, the commit log and the sink survive all kills. A killed driver or worker closes and releases nothing, as
after `kill -9`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa

from tests.histories.ledger import BrokenError, Output, Row, is_start_of, same_rows
from tests.histories.script import COMMITTED, READ, WRITTEN
from tests.without_spark.source import FOUND, GIVEN, Checkpoint, Run
from tubemq_spark.client.consumer.fetch_loop import FetchLoop
from tubemq_spark.client.consumer.task_claim import TaskClaim
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.errors import PositionMovedError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.micro_batch_planner import first_claim
from tubemq_spark.source.offset import StreamOffset

ROWS_AT_ONCE = 10  # in one Arrow batch; few, so that a task can be killed at many places

Point = Callable[[str], None]


class KilledError(Exception):
    """The driver died, and all its workers with it. `late` is as in `WorkerKilledError`, for all tasks."""

    late = 0


class StoppedError(Exception):
    """The user stopped the query."""


class WorkerKilledError(Exception):
    """The Python worker of a task died. The broker ends the task's running fetch after `late` more fetches of the group
    have begun; 0 if no fetch is running."""

    late = 0


class _JobEndedError(Exception):
    """Another task has ended the job."""


class Query:
    """The query calls `begins` with each partition that is new to it, and `point` at each of the points of `script`.

    `point` may raise `KilledError` or `StoppedError`; after a task has delivered rows it may raise `WorkerKilledError`.
    `lost_at` has the times of losses: a micro-batch that is repeated after a loss may have other rows.
    """

    def __init__(self, options: dict[str, str], *, retries: int, width: int, scans: int = 1) -> None:
        self.options = options
        self.point: Point = lambda point: None
        self.begins: Callable[[Partition], None] = lambda partition: None
        self.lost_at: Sequence[float] = ()
        self.is_prompt = True
        self.clock = 0.0  # seconds by which the driver's clock is ahead
        self.end_fetch_later: Callable[[int, int, int], None] = lambda stage, attempt, late: None
        self._has_late_fetches = False
        self._retries = retries
        self._width = width
        self._scans = scans
        self._running: list[_Task] = []
        self._failure: BaseException | None = None  # of a task that ran while another one waited
        self._run: Run | None = None
        self._checkpoint = Checkpoint()
        self._most_committed = 0  # the largest size of the commit log so far
        self._output: dict[int, Output] = {}
        self._losses_at: dict[int, int] = {}  # how many losses there were when the sink got the output
        self._parts: dict[tuple[int, Partition], tuple[int, list[Row]]] = {}
        self._attempts = itertools.count()
        self._stages = itertools.count()

    # -- what survives a run ----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._run is not None

    @property
    def is_in_task(self) -> bool:
        """True while a task runs, and so not the driver."""
        return any(task.is_busy for task in self._running)

    @property
    def batches(self) -> int:
        return self._checkpoint.committed

    @property
    def pending(self) -> bool:
        """True if the last logged micro-batch is not committed."""
        return self._checkpoint.is_pending

    @property
    def logged(self) -> dict[Partition, int]:
        """The end of the last logged micro-batch."""
        return self._checkpoint.positions(len(self._checkpoint.offsets) - 1)

    @property
    def ends(self) -> dict[Partition, int]:
        """The end of the last committed micro-batch."""
        return self._checkpoint.positions(self.batches - 1)

    @property
    def starts(self) -> dict[Partition, int]:
        """The first position of each partition."""
        found: dict[Partition, int] = {}
        for number in range(len(self._checkpoint.offsets)):
            offset = self._checkpoint.offset(number)
            for partition, position in {**offset.positions, **(offset.initial or {})}.items():
                found.setdefault(partition, position)
        return found

    @property
    def rows(self) -> Output:
        """The rows of committed micro-batches."""
        found: dict[Partition, list[Row]] = defaultdict(list)
        for number in range(self.batches):
            for partition, rows in self._output.get(number, {}).items():
                found[partition] += rows
        return found

    def forget_commit(self) -> bool:
        """Remove the last entry of the commit log, as a crash may. Return False if that is not possible now."""
        if self.running or self.pending or not self.batches:
            return False
        self._checkpoint.committed -= 1
        return True

    def forget_offset(self) -> bool:
        """Remove the last entry of the offset log, as a crash may. Return False if it is committed or there is none."""
        if self.running or not self.pending or self._most_committed == len(self._checkpoint.offsets):
            return False
        self._checkpoint.offsets.pop()
        self._forget_output(len(self._checkpoint.offsets))
        return True

    # -- runs -------------------------------------------------------------------------------------------------------

    def start(self, available_now: bool = False) -> None:
        assert self._run is None
        trigger = "availableNow" if available_now else "processingTime"
        self._run = Run(self._checkpoint, self.options, trigger, point=self._reached)
        self._attempts = itertools.count()

    def stop(self) -> None:
        """Stop as a user does."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def kill(self) -> None:
        """End the driver's process without closing anything."""
        self._run = None
        with HEARTBEAT()._changed:
            HEARTBEAT()._beats.clear()
            HEARTBEAT()._changed.notify_all()
        POOL().close()

    def step(self) -> bool:
        """Run one micro-batch; return False if there are no messages. An exception ends the run."""
        assert self._run is not None
        try:
            return self._step(self._run)
        except KilledError:
            self.kill()
            raise
        except BaseException:
            self.stop()
            raise

    def _step(self, run: Run) -> bool:
        with mock.patch("tubemq_spark.source.micro_batch_planner.first_claim", self._first_claim):
            return self._next_batch(run)

    def _first_claim(self, query: str, now: float) -> ClaimId:
        return first_claim(query, now + self.clock)

    def _next_batch(self, run: Run) -> bool:
        number = self.batches
        if not run.find_next():
            return False
        scans = run.plan(self._scans)
        losses = len(self.lost_at)
        output, *others = self._run_tasks(number, scans)
        if losses == len(self.lost_at) and not all(same_rows(output, other) for other in others):
            raise BrokenError(f"two scans of batch {number} delivered different rows")
        self.point(READ)
        self._write(number, output, losses)
        self.point(WRITTEN)
        self._checkpoint.committed += 1
        self._most_committed = max(self._most_committed, self.batches)
        self.point(COMMITTED)
        return True

    def _reached(self, point: str) -> None:
        if point == FOUND:
            assert self._run is not None
            self._report_new_partitions(StreamOffset.from_json(self._run.end))
        self.point(point)

    def _report_new_partitions(self, end: StreamOffset) -> None:
        known = self.starts
        for partition in {*end.positions, *(end.initial or {})} - known.keys():
            self.begins(partition)

    def _run_tasks(self, number: int, scans: list[list[Any]]) -> list[Output]:
        """Run `width` tasks at a time, step by step in turn; repeat a task that fails. The scans are one stage, as
        those of a union, and their tasks are mixed."""
        output: list[dict[Partition, list[Row]]] = [defaultdict(list) for _ in scans]
        stage = next(self._stages)
        rows_of_tasks = [enumerate(tasks) for tasks in zip(*scans, strict=True)]
        waiting = deque((scan, partition) for pairs in rows_of_tasks for scan, partition in pairs)
        numbers = itertools.count()
        self._running = []
        with mock.patch("tubemq_spark.source.input_partition.ROWS", ROWS_AT_ONCE):
            try:
                while waiting or self._running:
                    while waiting and len(self._running) < self._width:
                        scan, partition = waiting.popleft()
                        task = _Task(next(numbers), partition, self._retries, stage, self._attempts, self.lost_at)
                        task.batch, task.output = number, output[scan]
                        self._running.append(task)
                    self._advance(self._running[0])
            except BaseException as error:
                # Spark kills the workers of a job that ends early.
                error = self._failure or error
                self._failure = None
                for task in self._running:
                    self._remember(task, number)
                    self._kill(task, getattr(error, "late", 0))
                raise error from None
        return list(output)

    def _advance(self, task: _Task) -> None:
        """Run one step of the task. Move the task to the end of the queue, or remove it if it has ended."""
        self._running.remove(task)
        self._running.append(task)
        task.is_busy = True
        try:
            goes_on = self._step_of(task, task.batch)
        finally:
            task.is_busy = False
        if goes_on:
            return
        self._running.remove(task)
        self._remember(task, task.batch, whole=True)
        for partition, rows in task.rows.items():
            task.output[partition] += rows

    def run_another_task(self) -> bool:
        """Run one step of another task, because a task waits for a partition that the other may hold. Return False if
        no other task can run."""
        task = next((task for task in self._running if not task.is_busy), None)
        if task is None:
            return False
        try:
            self._advance(task)
        except BaseException as error:
            # The error ends the job, and so the task that waits. That task must not treat it as its own error.
            self._failure = self._failure or error
            raise _JobEndedError from error
        return True

    def _step_of(self, task: _Task, number: int) -> bool:
        """Return False if the task has ended. Start a task that fails or dies again, as often as Spark does."""
        try:
            if not task.step():
                return False
            self.point(GIVEN)
        except WorkerKilledError as killed:
            self._remember(task, number)
            self._kill(task, killed.late)
            if not task.retry():
                raise
        except TubeMQError as error:
            if not isinstance(error, PositionMovedError):  # a fetch that ended late may have skipped rows
                self._remember(task, number)
            if not task.retry():
                raise
        return True

    def _kill(self, task: _Task, late: int) -> None:
        task.abandon()
        if late:
            self._has_late_fetches = True
            self.end_fetch_later(task.stage, task.attempt, late)

    def _remember(self, task: _Task, number: int, *, whole: bool = False) -> None:
        """Check that each attempt of a task delivers the same rows. A fetch of a killed attempt may skip rows of the
        next attempt, which notices that at its end and fails; so rows of failed attempts are not checked then."""
        if self._has_late_fetches and not whole:
            return
        for partition, rows in task.rows.items():
            self._compare_part(number, partition, rows, task.losses)

    def _compare_part(self, number: int, partition: Partition, rows: list[Row], begun: int) -> None:
        losses, before = self._parts.get((number, partition), (len(self.lost_at), rows))
        if losses == len(self.lost_at) and not (is_start_of(before, rows) or is_start_of(rows, before)):
            raise BrokenError(
                f"batch {number} delivered {_shown(before)} of {partition} first, and {_shown(rows)} later"
            )
        longer = before if losses == len(self.lost_at) and len(before) > len(rows) else rows
        self._parts[number, partition] = begun, list(longer)

    def _write(self, number: int, output: Output, losses: int) -> None:
        """Store the rows of a micro-batch. A repeated micro-batch replaces the earlier one, and must be equal."""
        before = self._output.get(number)
        if before is not None and self._losses_at[number] == len(self.lost_at) and not same_rows(before, output):
            changed = [p for p in {*before, *output} if before.get(p, []) != output.get(p, [])]
            text = "; ".join(f"{p}: {_shown(before.get(p, []))} and {_shown(output.get(p, []))}" for p in changed)
            raise BrokenError(f"batch {number} was repeated with different rows: {text}")
        self._output[number] = output
        self._losses_at[number] = losses

    def _forget_output(self, number: int) -> None:
        self._output.pop(number, None)
        for key in [key for key in self._parts if key[0] == number]:
            del self._parts[key]


class _Task:
    """A task and its attempts."""

    def __init__(
        self, number: int, partition: Any, retries: int, stage: int, attempts: Iterator[int], lost_at: Sequence[float]
    ) -> None:
        self.batch = 0
        self.output: dict[Partition, list[Row]] = {}
        self.is_busy = False
        self.stage = stage
        self._number = number
        self._partition = partition
        self._retries = retries
        self._attempts = attempts
        self._lost_at = lost_at
        self._tries = -1
        self._begin()

    def _begin(self) -> None:
        self.rows: dict[Partition, list[Row]] = defaultdict(list)
        self.attempt = next(self._attempts)
        self._tries += 1
        self.losses = len(self._lost_at)
        self._batches: Generator[pa.RecordBatch, None, None] = self._partition.read()

    def step(self) -> bool:
        """Read one Arrow batch. Return False at the end."""
        try:
            with self._context():
                batch = next(self._batches)
        except StopIteration:
            return False
        for partition, row in rows_of(batch):
            self.rows[partition].append(row)
        return True

    def retry(self) -> bool:
        if not self._retries:
            return False
        self._retries -= 1
        self._begin()
        return True

    def abandon(self) -> None:
        """Let the worker die: its connection closes, and its claim stays."""
        nothing = mock.Mock(return_value=None)
        with mock.patch.object(TaskClaim, "release", nothing), mock.patch.object(FetchLoop, "_drain", nothing):
            self._batches.close()

    def _context(self) -> Any:
        context = mock.Mock()
        context.partitionId.return_value = self._number
        context.taskAttemptId.return_value = self.attempt
        context.stageId.return_value = self.stage
        context.attemptNumber.return_value = self._tries
        context.getLocalProperty.return_value = None
        return mock.patch("tubemq_spark.source.input_partition.TaskContext.get", return_value=context)


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Partition, Row]]:
    names = ("topic", "broker_id", "partition", "offset", "message_id", "value", "msg_type")
    for topic, broker_id, partition, *row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        yield Partition(broker_id, topic, partition), Row(*row)


def _shown(rows: list[Row]) -> str:
    shown = [row.body[:8].decode().strip(". ") for row in rows]
    return f"{len(rows)} rows ({', '.join(shown[:12])}{'…' if len(shown) > 12 else ''})"
