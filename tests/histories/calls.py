"""A streaming query as Spark's engine runs it, call by call, without Spark: its logs and its sink outlive everything.

The order of the calls is that of Spark 4.2 and 4.3. What dies by kill -9 says no good-bye: not the driver's process,
and not the worker of a task.
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

ROWS_AT_ONCE = 10  # of an Arrow batch, so that a task has many places to die at

Point = Callable[[str], None]


class KilledError(Exception):
    """The driver died, and all its workers with it. `late` as in `WorkerKilledError`, of all tasks."""

    late = 0


class StoppedError(Exception):
    """The user stopped the query."""


class WorkerKilledError(Exception):
    """The Python worker of a task died. `late` is how many more fetches of the group begin before the broker has ended
    a fetch of the task, 0 when it has none under way."""

    late = 0


class _JobEndedError(Exception):
    """Another task has ended the job."""


class Query:
    """`begins` is called with each partition that is new to the query.

    `point` is called at each of the points of `script`; it may raise `KilledError`, `StoppedError` or, where a task has
    given something out, `WorkerKilledError`. `lost_at` grows with what may make a repeated micro-batch another one.
    """

    def __init__(self, options: dict[str, str], *, retries: int, width: int, scans: int = 1) -> None:
        self.options = options
        self.point: Point = lambda point: None
        self.begins: Callable[[Partition], None] = lambda partition: None
        self.lost_at: Sequence[float] = ()
        self.is_prompt = True
        self.clock = 0.0  # seconds by which the clock of the driver's machine is ahead
        self.leave_fetch: Callable[[int, int, int], None] = lambda stage, attempt, late: None
        self._has_left_fetches = False
        self._retries = retries
        self._width = width
        self._scans = scans
        self._running: list[_Task] = []
        self._failure: BaseException | None = None  # of a task that went on while another one waited
        self._run: Run | None = None
        self._checkpoint = Checkpoint()
        self._most_committed = 0  # entries of the commit log that there ever were
        self._output: dict[int, Output] = {}
        self._losses_at: dict[int, int] = {}  # when the sink got that output
        self._parts: dict[tuple[int, Partition], tuple[int, list[Row]]] = {}
        self._attempts = itertools.count()
        self._stages = itertools.count()

    # -- what outlives a run ----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._run is not None

    @property
    def batches(self) -> int:
        return self._checkpoint.committed

    @property
    def pending(self) -> bool:
        """Whether a micro-batch is logged that is not committed."""
        return self._checkpoint.is_pending

    @property
    def logged(self) -> dict[Partition, int]:
        """Where the last logged micro-batch ends."""
        return self._checkpoint.positions(len(self._checkpoint.offsets) - 1)

    @property
    def ends(self) -> dict[Partition, int]:
        """Where the last committed micro-batch ends."""
        return self._checkpoint.positions(self.batches - 1)

    @property
    def starts(self) -> dict[Partition, int]:
        """Where each partition was begun with."""
        found: dict[Partition, int] = {}
        for number in range(len(self._checkpoint.offsets)):
            offset = self._checkpoint.offset(number)
            for partition, position in {**offset.positions, **(offset.initial or {})}.items():
                found.setdefault(partition, position)
        return found

    @property
    def rows(self) -> Output:
        """Of committed micro-batches."""
        found: dict[Partition, list[Row]] = defaultdict(list)
        for number in range(self.batches):
            for partition, rows in self._output.get(number, {}).items():
                found[partition] += rows
        return found

    def forget_commit(self) -> bool:
        """The last entry of the commit log goes, as in a crash."""
        if self.running or self.pending or not self.batches:
            return False
        self._checkpoint.committed -= 1
        return True

    def forget_offset(self) -> bool:
        """The last entry of the offset log goes, as in a crash; a committed one never does."""
        if self.running or not self.pending or self._most_committed == len(self._checkpoint.offsets):
            return False
        self._checkpoint.offsets.pop()
        self._forget_output(len(self._checkpoint.offsets))
        return True

    # -- runs -------------------------------------------------------------------------------------------------------

    def start(self, available_now: bool = False) -> None:
        assert self._run is None
        trigger = "availableNow" if available_now else "processingTime"
        self._run = Run(self._checkpoint, self.options, trigger, point=self._come_to)
        self._attempts = itertools.count()

    def stop(self) -> None:
        """In peace."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def kill(self) -> None:
        """The driver's process ends, and tells nobody."""
        self._run = None
        with HEARTBEAT._changed:
            HEARTBEAT._beats.clear()
            HEARTBEAT._changed.notify_all()
        POOL.close()

    def step(self) -> bool:
        """One micro-batch, if there is one. Whatever it raises, the run is over."""
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
            raise BrokenError(f"two scans of batch {number} gave other rows")
        self.point(READ)
        self._write(number, output, losses)
        self.point(WRITTEN)
        self._checkpoint.committed += 1
        self._most_committed = max(self._most_committed, self.batches)
        self.point(COMMITTED)
        return True

    def _come_to(self, point: str) -> None:
        if point == FOUND:
            assert self._run is not None
            self._tell_beginnings(StreamOffset.from_json(self._run.end))
        self.point(point)

    def _tell_beginnings(self, end: StreamOffset) -> None:
        known = self.starts
        for partition in {*end.positions, *(end.initial or {})} - known.keys():
            self.begins(partition)

    def _run_tasks(self, number: int, scans: list[list[Any]]) -> list[Output]:
        """`width` of them at a time, turn by turn; a task that fails is tried again. The scans are one stage, as those
        of a union are, and their tasks are mixed."""
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
        """A step of the task, which is last in the row afterwards, or out of it when it has ended."""
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

    def let_others_go_on(self) -> bool:
        """A task waits for a partition, maybe for another scan to leave it: the next task that can go on does a step.
        False when there is none."""
        task = next((task for task in self._running if not task.is_busy), None)
        if task is None:
            return False
        try:
            self._advance(task)
        except BaseException as error:
            # It ends the job, and so the task that waits, which must not take it for an error of its own.
            self._failure = self._failure or error
            raise _JobEndedError from error
        return True

    def _step_of(self, task: _Task, number: int) -> bool:
        """False when it has ended. One that fails or dies begins anew, as often as Spark tries."""
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
            self._has_left_fetches = True
            self.leave_fetch(task.stage, task.attempt, late)

    def _remember(self, task: _Task, number: int, *, whole: bool = False) -> None:
        """What a task gave out is the same each time. One that fails may have given out other rows, if it was disturbed
        by a fetch of its predecessor: it fails because it notices that at its end."""
        if self._has_left_fetches and not whole:
            return
        for partition, rows in task.rows.items():
            self._compare_part(number, partition, rows, task.losses)

    def _compare_part(self, number: int, partition: Partition, rows: list[Row], begun: int) -> None:
        losses, before = self._parts.get((number, partition), (len(self.lost_at), rows))
        if losses == len(self.lost_at) and not (is_start_of(before, rows) or is_start_of(rows, before)):
            raise BrokenError(f"batch {number} gave {_shown(before)} of {partition} at first, and {_shown(rows)} again")
        longer = before if losses == len(self.lost_at) and len(before) > len(rows) else rows
        self._parts[number, partition] = begun, list(longer)

    def _write(self, number: int, output: Output, losses: int) -> None:
        """A repeated micro-batch replaces its earlier try, and must be the same."""
        before = self._output.get(number)
        if before is not None and self._losses_at[number] == len(self.lost_at) and not same_rows(before, output):
            changed = [p for p in {*before, *output} if before.get(p, []) != output.get(p, [])]
            text = "; ".join(f"{p}: {_shown(before.get(p, []))} and {_shown(output.get(p, []))}" for p in changed)
            raise BrokenError(f"batch {number} was repeated with other rows: {text}")
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
        """Takes one Arrow batch; False at the end."""
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
        """The worker dies: its connection ends, and its claim stays behind."""
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
