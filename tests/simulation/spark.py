# SPDX-License-Identifier: Apache-2.0
"""A small model of Spark: applications with their Python processes, stages of tasks with attempts, streaming queries.

It follows what Spark 4.2 and 4.3 do: which process each callback runs in, how long a Python worker lives, the order of
the engine's calls, which attempts of a task may run side by side, and what a stop and a kill leave behind.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.simulation.world import Call, Killed, Process, Signal, World, the_world

T = TypeVar("T")

_IDLE_WORKER = 60.0  # seconds after which Spark kills a Python worker
_REPEATS = 3  # of a stage (spark.stage.maxConsecutiveAttempts)
_CANCEL = 2.0  # seconds in which a cancelled task may still run
_IDLE_POLLS = (0.1, 0.2, 0.4, 0.8)  # seconds; Spark asks more often, and the source lets it wait


class StageError(Exception):
    """A task has failed too often. `cause` is its last error."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause


class StopError(Exception):
    """The user stops the query."""


class TwoRunsError(Exception):
    """Another run has written the same entry of a log (Spark: concurrentStreamLogUpdate)."""


@dataclass(frozen=True)
class TaskContext:
    """What the connector asks Spark's `TaskContext`."""

    stage: int
    partition: int
    attempt: int
    attempt_id: int
    properties: Mapping[str, str]

    @staticmethod
    def get() -> TaskContext | None:
        running = the_world().running
        return None if running is None else running.context

    def stageId(self) -> int:
        return self.stage

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt

    def taskAttemptId(self) -> int:
        return self.attempt_id

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@dataclass
class Unrest:
    """How likely Spark itself disturbs a stage, in one schedule."""

    speculation: float = 0.0  # of a task
    repeated_stage: float = 0.0
    slow_task: float = 0.0  # a task waits between two batches of rows
    bad_folder: float = 0.0  # an operation on the sink's file fails, or its effect comes late
    survives_driver: bool = False  # executors outlive their driver for some seconds


@dataclass
class _Attempt:
    number: int
    process: Process
    call: Call[Any]


@dataclass
class _Task:
    index: int
    function: Callable[[], Any]
    running: list[_Attempt] = field(default_factory=list)
    failures: int = 0
    next_number: int = 0
    stage: int = 0
    done: bool = False
    value: Any = None
    wanted: int = 1  # attempts to launch


class Application:
    """One Spark application: its driver, the driver's Python processes, and the Python workers of its executors."""

    def __init__(
        self, world: World, name: str, unrest: Unrest, *, cores: int = 3, max_failures: int = 4, host: str = ""
    ) -> None:
        self.world, self.name, self.unrest = world, name, unrest
        self.cores, self.max_failures = cores, max_failures
        self.jvm = Process(world, f"{name} driver", host or f"{name} host")
        self.alive = True
        self.was_cut_off = False  # it was stopped before it knew what it had registered
        self.idle: list[Process] = []
        self.busy: dict[Process, None] = {}
        self._driver_workers: dict[str, Process] = {}
        self._last_use: dict[Process, float] = {}
        self._next_attempt_id = 0
        self._next_stage = 0
        self._signal = Signal()

    # -- processes ------------------------------------------------------------------------------------------------

    def python(self, module: str) -> Process:
        """Return a new Python process of the driver, which nobody reuses."""
        process = Process(self.world, f"{self.name} {module}", self.jvm.host)
        self._driver_workers[f"{module} {process.number}"] = process
        return process

    def call(self, module: str, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in the driver's Python worker for `module`, which Spark reuses until it was idle for long."""
        process = self._driver_workers.get(module)
        if process is None or not process.alive:
            process = self._driver_workers[module] = Process(self.world, f"{self.name} {module}", self.jvm.host)
        self._last_use[process] = float("inf")
        try:
            return process.start(module, function, *args).result()
        finally:
            self._last_use[process] = self.world.now
            self.world.at(_IDLE_WORKER, self._end_idle, process, self.world.now)

    def _end_idle(self, process: Process, used_at: float) -> None:
        if self._last_use.get(process) == used_at:
            self._last_use.pop(process)
            self.idle = [one for one in self.idle if one is not process]
            if process.alive:
                self.world.tell(self.name, f"ends the idle worker {process}")
                process.kill()

    def _take_worker(self) -> Process:
        while self.idle:
            process = self.idle.pop()
            if process.alive:
                break
        else:
            number = self.world.count(f"{self.name} worker")
            process = Process(self.world, f"{self.name} worker {number}", f"{self.name} executor {number % 2}")
        self._last_use[process] = float("inf")
        self.busy[process] = None
        return process

    def _return_worker(self, process: Process) -> None:
        self.busy.pop(process, None)
        if process.alive and self.alive:
            process.state = "is idle"
            self._last_use[process] = self.world.now
            self.idle.append(process)
            self.world.at(_IDLE_WORKER, self._end_idle, process, self.world.now)
        else:
            process.kill()

    def kill_worker(self, number: int) -> bool:
        """Kill a worker that runs a task. Return False if there is none."""
        workers = [process for process in self.busy if process.alive]
        if not workers:
            return False
        worker = workers[number % len(workers)]
        self.world.tell(worker, f"is killed while it {worker.state}")
        worker.kill()
        return True

    def kill(self) -> None:
        """Kill the driver. Its executors end with it, or some seconds later."""
        if not self.alive:
            return
        self.alive = False
        self.world.tell(self.name, f"is killed while it {self.jvm.state}")
        lifetime = 3.0 if self.unrest.survives_driver else 0.0
        for process in [*self.busy, *self.idle]:
            left = lifetime * (self.world.hash("lifetime", process.name) % 100) / 100
            self.world.at(left, process.kill)
        for process in [self.jvm, *self._driver_workers.values()]:
            process.kill()

    def end(self) -> None:
        """End the application as a user does, after its queries have ended."""
        self.alive = False
        for process in [*self.busy, *self.idle, *self._driver_workers.values(), self.jvm]:
            process.kill()

    # -- stages ---------------------------------------------------------------------------------------------------

    def run_stage(
        self,
        what: str,
        functions: Sequence[Callable[[], T]],
        properties: Mapping[str, str] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """Run each function as a task, with the attempts that Spark makes. Return the values of those that count.

        Raise `StageError` if a task fails too often, and what `check` raises. Tasks that are cancelled may run on for a
        moment.
        """
        tasks = [_Task(number, function) for number, function in enumerate(functions)]
        stage = self._new_stage()
        for task in tasks:
            task.stage = stage
        self._may_repeat_stage(what, tasks, _REPEATS)
        try:
            while not all(task.done for task in tasks):
                for task in tasks:
                    self._launch(what, task, tasks, properties or {})
                self._signal.wait()
                check()
                for task in tasks:
                    self._reap(what, task)
        finally:
            for task in tasks:
                for attempt in task.running:
                    self._cancel(attempt)
                task.running = []
        return [task.value for task in tasks]

    def _new_stage(self) -> int:
        self._next_stage += 1
        return self._next_stage

    def _launch(self, what: str, task: _Task, tasks: list[_Task], properties: Mapping[str, str]) -> None:
        world = self.world
        while (
            not task.done and task.wanted > 0 and (task.running or sum(len(one.running) for one in tasks) < self.cores)
        ):
            task.wanted -= 1
            process = self._take_worker()
            context = TaskContext(task.stage, task.index, task.next_number, self._next_attempt_id, properties)
            process.state = f"begins to {what}"
            call = process.start(what, self._attempt, context, task.function)
            task.running.append(_Attempt(task.next_number, process, call))
            task.next_number += 1
            self._next_attempt_id += 1
            world.start("watch", self._watch, call)
            if len(task.running) == 1 and (
                pause := world.decide(f"speculate {what}", self.unrest.speculation, lambda r: r.random())
            ):
                world.at(pause, self._speculate, task)

    def _attempt(self, context: TaskContext, function: Callable[[], T]) -> T:
        running = self.world.running
        assert running is not None
        running.context = context
        return function()

    def _watch(self, call: Call[Any]) -> None:
        call.wait()
        self._signal.set()

    def _speculate(self, task: _Task) -> None:
        if not task.done and task.running and self.alive:
            self.world.tell(self.name, f"starts a second attempt of task {task.index}")
            self.world.numbers["speculation"] += 1
            task.wanted += 1
            self._signal.set()

    def _may_repeat_stage(self, what: str, tasks: list[_Task], left: int) -> None:
        chance = self.unrest.repeated_stage if tasks and left else 0.0
        if pause := self.world.decide(f"repeat stage {what}", chance, lambda r: r.random()):
            self.world.at(3.0 * pause, self._repeat_stage, what, tasks, left - 1)

    def _repeat_stage(self, what: str, tasks: list[_Task], left: int) -> None:
        """Spark attempts the stage again, because it could not read shuffle files. Attempts that run go on."""
        if not self.alive or all(task.done for task in tasks) or not any(task.running for task in tasks):
            return
        self.world.tell(self.name, "repeats the stage; tasks of the first attempt go on")
        stage = self._new_stage()
        for task in tasks:
            if not task.done:
                task.stage, task.next_number = stage, 0
                task.wanted = max(1, task.wanted)
        self._signal.set()
        self._may_repeat_stage(what, tasks, left)

    def _reap(self, what: str, task: _Task) -> None:
        for attempt in [one for one in task.running if one.call.done]:
            task.running.remove(attempt)
            error = attempt.call.error
            if error is None:
                self._return_worker(attempt.process)
                if not task.done:
                    task.done, task.value = True, attempt.call.result()
                    for other in task.running:
                        self._cancel(other)
                    task.running = []
                continue
            self.busy.pop(attempt.process, None)
            attempt.process.kill()  # a task that fails ends its worker
            if task.done:
                continue
            self.world.tell(self.name, f"sees attempt {attempt.number} of task {task.index} fail: {_shown(error)}")
            task.failures += 1
            if task.failures >= self.max_failures:
                raise StageError(error)
            if not task.running:
                task.wanted = max(1, task.wanted)

    def _cancel(self, attempt: _Attempt) -> None:
        left = _CANCEL * (self.world.hash("cancel", attempt.process.name, attempt.number) % 100) / 100
        self.world.at(left, self._end_cancelled, attempt)

    def _end_cancelled(self, attempt: _Attempt) -> None:
        self.busy.pop(attempt.process, None)
        attempt.process.kill()


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}"


@dataclass
class Checkpoint:
    """The offset log and the commit log of a streaming query. They outlive its runs."""

    path: str
    query_id: str
    offsets: list[str] = field(default_factory=list)
    logged_at: list[float] = field(default_factory=list)  # when each of them was written
    committed: int = 0

    @property
    def is_pending(self) -> bool:
        return len(self.offsets) > self.committed


class Source:
    """What a streaming query reads. All methods run in the engine's actor."""

    def begin(self, query: StreamQuery) -> None:
        self._query = query

    def initial(self) -> str:
        raise NotImplementedError

    def latest(self, start: str) -> str:
        raise NotImplementedError

    def commit(self, end: str) -> None:
        """Spark has committed what is before `end`."""

    def plan(self, start: str, end: str) -> Sequence[Sequence[Callable[[], Any]]]:
        """Return the functions of the tasks, for each scan."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Spark sends SIGTERM to the source's process."""

    def stop(self) -> None:
        """The query has ended."""


class Sink:
    def begin(self, query: StreamQuery) -> None:
        self._query = query

    def write(self, batch: int, scans: Sequence[Sequence[Callable[[], Any]]]) -> None:
        """Run the stage of a micro-batch, and commit its rows."""
        raise NotImplementedError


class StreamQuery:
    """A run of a streaming query in an application."""

    def __init__(
        self,
        app: Application,
        checkpoint: Checkpoint,
        source: Source,
        sink: Sink,
        *,
        interval: float = 0.0,
        available_now: bool = False,
    ) -> None:
        world = app.world
        self.app, self.checkpoint, self.source, self.sink = app, checkpoint, source, sink
        self.interval, self.available_now = interval, available_now
        self.world = world
        self.began = world.now
        self.has_read_all = False  # with trigger AvailableNow
        self.run_id = f"run-{world.hash('run', checkpoint.path, world.numbers['run'])}"
        world.numbers["run"] += 1
        world.numbers[f"runs of {checkpoint.path}"] += 1
        self.error: BaseException | None = None
        self.batches = 0
        self.told = -1  # the commits that the source knows of
        self.batch = checkpoint.committed  # another run may use the same checkpoint
        self._stopping = False
        self._changed = Signal()
        self.ended = app.jvm.start("engine", self._run)

    @property
    def state(self) -> str:
        return self.app.jvm.state

    @state.setter
    def state(self, text: str) -> None:
        self.app.jvm.state = text

    def stop(self) -> None:
        """Ask the query to stop, as `query.stop()` does; wait for `ended`."""
        if self._stopping or self.ended.done:
            return
        self._stopping = True
        self.app.was_cut_off |= not self.batches
        self.world.tell(self.app.name, f"is stopped while it {self.state}")
        self.source.interrupt()
        self._changed.set()
        self.app._signal.set()

    @property
    def properties(self) -> dict[str, str]:
        return {
            "sql.streaming.queryId": self.checkpoint.query_id,
            "streaming.sql.batchId": str(self.batch),
            "spark.jobGroup.id": self.run_id,
            "spark.app.id": self.app.name,
            "spark.app.name": self.app.name,
        }

    def _run(self) -> None:
        try:
            self.state = "starts"
            self.source.begin(self)
            self.sink.begin(self)
            self._loop()
        except StopError:
            pass
        except (Killed, SystemExit):
            raise
        except Exception as error:
            self.error = error.cause if isinstance(error, StageError) else error
            self.world.tell(self.app.name, f"ends: {_shown(self.error)}")
        finally:
            if self.app.jvm.alive and not self.world.over:
                self.state = "stops"
                self.source.stop()

    @property
    def is_running(self) -> bool:
        """True until the query ends or is stopped."""
        return not (self._stopping or self.has_read_all or self.ended.done)

    def check(self) -> None:
        """Raise `StopError` if the user has stopped the query."""
        if self._stopping:
            raise StopError

    def _loop(self) -> None:
        checkpoint, world = self.checkpoint, self.world
        idle_polls = 0
        while True:
            self.check()
            begun = world.now
            if len(checkpoint.offsets) == self.batch:
                start = self._start()
                self.state = "asks for the latest offset"
                end = self.source.latest(start)
                self.told = self.batch
                self.check()
                if end == start and self.available_now:
                    self.has_read_all = True
                    return
                if end == start:
                    self.state = "waits for messages"
                    idle_poll = _IDLE_POLLS[min(idle_polls, len(_IDLE_POLLS) - 1)]
                    idle_polls += 1
                    self._changed.wait(world.now + max(self.interval, idle_poll))
                    continue
                idle_polls = 0
                self.state = "writes the offset log"
                world.sleep(0.01)
                if len(checkpoint.offsets) > self.batch:
                    raise TwoRunsError
                checkpoint.offsets.append(end)
                checkpoint.logged_at.append(world.now)
                if self.batch:
                    self.state = "tells the source of a commit"
                    self.source.commit(start)
            self.check()
            start = self._start()
            self.state = "plans"
            scans = self.source.plan(start, checkpoint.offsets[self.batch])
            self.check()
            self.state = "runs tasks"
            self.sink.write(self.batch, scans)
            self.state = "writes the commit log"
            world.sleep(0.01)
            if checkpoint.committed > self.batch:
                raise TwoRunsError
            checkpoint.committed += 1
            self.batch += 1
            self.batches += 1
            world.tell(self.app.name, f"commits batch {self.batch - 1}")
            self.state = "waits for the next trigger"
            next_trigger = begun + self.interval
            if self.interval and world.now < next_trigger:
                self._changed.wait(next_trigger)

    def _start(self) -> str:
        return self.checkpoint.offsets[self.batch - 1] if self.batch else self.source.initial()


def travel(value: T) -> T:
    """Return `value` as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy
