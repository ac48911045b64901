# SPDX-License-Identifier: Apache-2.0
"""Plays a history in the role of Spark's driver, and causes its events."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sink_histories import generate
from tests.sink_histories.hooks import Hook
from tests.sink_histories.jobs import COLUMNS, Begin, Commit, Done, Job, OutRow, Plan, Write
from tests.sink_histories.processes import Processes
from tests.sink_histories.script import COMMITTED, ONCE, PLANNED, STAMPED, WITH_TOPIC, WRITTEN, Event, History, Setting
from tests.sink_histories.world import DEAD, World
from tests.sink_histories.zygote import Child, Zygote
from tests.without_spark.sink import Task

RUNS = 8  # of one batch; from the fourth on, no more events disturb it


@dataclass(frozen=True)
class Pace:
    """Seconds for which the sink retries and waits for an answer, and for which a history may take."""

    retry: float
    rpc: float
    begin: Begin
    limit: float


class FailedError(Exception):
    """A failed run of a batch. `is_death` if the driver died; `kind` is the class of a task's error."""

    def __init__(self, text: str, *, is_death: bool = False, kind: str = "") -> None:
        super().__init__(text)
        self.is_death = is_death
        self.kind = kind


@dataclass(frozen=True)
class Committed:
    """The rows of a task of a committed batch, their order in the attempt that counts, and what that has `written`.

    It began at `begun` on the monotonic clock.
    """

    rows: list[OutRow]
    order: list[int]
    written: Any
    begun: float = 0.0


class Player:
    """Plays one history; the results are public attributes."""

    def __init__(self, history: History, world: World, zygote: Zygote, pace: Pace, folder: Path) -> None:
        self.history, self.world = history, world
        self.query = str(uuid.uuid5(uuid.NAMESPACE_OID, history.name + str(world.topics)))
        self.receipts = folder / "receipts" if history.setting.receipts else None
        self.committed: dict[int, list[Committed]] = {}
        self.commits: Counter[int] = Counter()  # attempts of each batch
        self.exempt: set[int] = set()  # batches with an unknown outcome, as documented, which may have doubles
        self.changed_tasks: dict[int, int] = {}  # batches with another number of tasks, and the difference
        self.stats: Counter[str] = Counter()
        self.calls: dict[tuple[int, str, int], tuple[str, ...]] = {}  # of successful jobs, by batch, role and task
        self._processes = Processes(zygote, pace.begin, world, folder, pace.limit)
        self._options = _options(history.setting, world, pace, self.query, self.receipts)
        self._columns = COLUMNS[WITH_TOPIC if history.setting.topic_column else history.setting.frame]
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._is_driver_dead = False
        self._run = ""
        self._first: int | None = None  # the first batch of the run

    def play(self) -> None:
        try:
            self._restart(hard=True)
            for batch in range(len(self.history.setting.tasks)):
                self._play_batch(batch)
        finally:
            self._processes.end_all()
        self.world.calm()

    def _play_batch(self, batch: int) -> None:
        if self.history.setting.long_triggers:
            self._processes.end_workers()
        for run in range(RUNS):
            if run > 2:
                self.world.calm()
            for event in self.history.events:
                if (event.batch, event.run) == (batch, run):
                    self._meet(event)
            try:
                self._try_batch(batch, run)
                self.stats["batches"] += 1
                if batch in self.changed_tasks:
                    self._options.pop("effectivelyOnceUncertain", None)
                return
            except FailedError as failed:
                self.stats["runs that failed"] += 1
                last = failed
                self._restart(
                    hard=failed.is_death or random.Random(f"{self.history.name}:{batch}:{run}").random() < 0.5
                )
            is_gone = last.kind == "DataLossError" and "expire" in self.world.accidents and run > 1
            if is_gone or (last.kind == "ConfigError" and batch in self.changed_tasks):
                self._options["effectivelyOnceUncertain"] = "sendAgain"  # as a user would do
                self.exempt.add(batch)
        raise AssertionError(f"batch {batch} never ended: {last}")

    def _meet(self, event: Event) -> None:
        args = event.args
        if event.kind in ("hook", "die", "stage"):
            return
        self.stats[event.kind] += 1
        if event.kind == "fresh":
            self._processes.end_workers()
        elif event.kind == "tasks":
            self.changed_tasks[event.batch] = args["by"]
            if "effectivelyOnceUncertain" in self._options:
                self.exempt.add(event.batch)
        elif event.kind == "fault":
            self.world.fault(args)
        elif event.kind == "during":
            self.world.at_call(args, lambda: self._happens(args["what"], args["args"]))
        else:
            self.world.change(event.kind, args)

    def _happens(self, what: str, args: dict[str, Any]) -> None:
        """Cause a change; runs on the servers' thread."""
        self.stats[what] += 1
        if what != "die":
            self.world.change(what, args)
            return
        self._is_driver_dead = True
        self._processes.kill_all()

    # A batch

    def _try_batch(self, batch: int, run: int) -> None:
        if self._first is None:
            self._first = batch
        hook = self._hook(batch, run, "plan")
        writer = self._call(Plan(self._options, self._columns, hook), batch, "plan")
        self._die_at(batch, run, PLANNED)
        tasks = self._write(batch, run, writer)
        self._die_at(batch, run, WRITTEN)
        messages = [task.written for task in tasks]
        self.commits[batch] += 1
        self._call(
            Commit(self._options, self._columns, messages, batch, self._hook(batch, run, "commit")), batch, "commit"
        )
        self._die_at(batch, run, COMMITTED)
        self.committed[batch] = tasks
        self.stats["rows dropped"] += sum(task.written.dropped for task in tasks)
        self.stats["dead letters"] += sum(task.written.dead_letters for task in tasks)
        self.stats["rows already stored"] += sum(task.written.already_stored for task in tasks)

    def _write(self, batch: int, run: int, writer: bytes) -> list[Committed]:
        history, setting = self.history, self.history.setting
        topics, partitions = self.world.topics, self.world.partitions
        rows = [generate.rows(history, batch, task, topics, partitions) for task in range(len(setting.tasks[batch]))]
        rows = generate.spread(rows, self.changed_tasks.get(batch, 0))
        waiting = deque((task, 0) for task in range(len(rows)))
        running: dict[Child, tuple[int, int, list[int], float]] = {}
        ended: dict[int, Committed] = {}
        repeated: set[int] = set()  # the tasks of which the second attempt is the first one of its stage
        try:
            while len(ended) < len(rows):
                while waiting and len(running) < setting.width:
                    task, attempt = waiting.popleft()
                    order = generate.order(history, batch, task, self._attempts[batch, task], len(rows[task]))
                    self._attempts[batch, task] += 1
                    spark_task = Task(self.query, batch, task, attempt, self._run, self._attempts.total())
                    hook = self._hook(batch, run, "task", task, attempt)
                    chance = random.Random(f"{history.name}:{self._attempts.total()}")
                    child = self._processes.worker([*running], chance)
                    begun = time.monotonic()
                    child.start(
                        Write(writer, spark_task, [rows[task][n] for n in order], self._columns, setting.arrow, hook)
                    )
                    running[child] = task, attempt, order, begun
                for child in self._processes.wait_for_any([*running]):
                    task, attempt, order, begun = running.pop(child)
                    done = child.outcome()
                    if done is not None and done.error is None:
                        self.calls[batch, "task", task] = done.calls
                        is_first_try = attempt == 0 and batch != self._first and task not in repeated
                        assert not (is_first_try and done.searches), (
                            f"task {task} of batch {batch} searched for nothing"
                        )
                        ended[task] = Committed(rows[task], order, done.value, begun)
                        continue
                    if done is None:
                        self._processes.end(child)
                        if self._is_driver_dead:
                            raise FailedError("the driver died", is_death=True)
                    self.stats["tasks that died" if done is None else "tasks that failed"] += 1
                    if attempt + 1 == setting.tries:
                        self._check_error(batch, done)
                        text = "it died" if done is None else done.error
                        raise FailedError(
                            f"task {task} failed {attempt + 1} times, at last: {text}", kind=done.kind if done else ""
                        )
                    self._check_error(batch, done)
                    # Spark counts attempts from 0 again in another attempt of the stage, after lost shuffle files.
                    anew = any(event.args["task"] % len(rows) == task for event in history.at("stage", batch, run))
                    anew = anew and not attempt and task not in repeated
                    waiting.append((task, 0 if anew else attempt + 1))
                    if anew:
                        repeated.add(task)
        finally:
            for child in running:  # Spark cancels the tasks of a failed job
                self._processes.end(child)
        return [ended[task] for task in range(len(rows))]

    def _check_error(self, batch: int, done: Done | None) -> None:
        """Check that events of the history explain the error."""
        if done is None:
            return
        self.stats[done.kind] += 1
        # A claim expires if the cluster's clock was advanced, or if a task was slow.
        allowed = {"TransportError", "ServerError", "PositionMovedError", "PartitionOccupiedError", "FencedError"}
        allowed.add("FetchFailedError")
        if "expire" in self.world.accidents:
            allowed.add("DataLossError")
        if batch in self.changed_tasks and "task of the same number" in (done.error or ""):
            allowed.add("ConfigError")
        assert done.kind in allowed, f"no accident may lead to this: {done.error}"

    def _call(self, job: Job, batch: int, role: str) -> Any:
        """Run `job` in a process of its own."""
        done = self._processes.run(job)
        if done is None:
            self.stats[f"{role} that died"] += 1
            raise FailedError(f"the {role} died", is_death=self._is_driver_dead)
        if done.error is not None:
            self.stats[f"{role} that failed"] += 1
            self._check_error(batch, done)
            raise FailedError(f"the {role} failed: {done.error}", kind=done.kind)
        self.calls[batch, role, 0] = done.calls
        return done.value

    def _restart(self, *, hard: bool) -> None:
        """Begin another run of the query, in a new driver if `hard`, or in the same one, where idle workers live on."""
        self._is_driver_dead = False
        self._run = str(uuid.uuid4())
        self._first = None
        if hard:
            self._processes.new_driver()
            if self.history.setting.respelled:
                spellings = ["/checkpoints/{}", "file:/checkpoints/{}/", "file:///checkpoints//{}", "//checkpoints/{}"]
                self._options["checkpointLocation"] = spellings[self._processes.drivers % 4].format(self.query)

    def _die_at(self, batch: int, run: int, point: str) -> None:
        if self._is_driver_dead or any(event.args["at"] == point for event in self.history.at("die", batch, run)):
            self.stats["drivers that died"] += 1
            raise FailedError("the driver died", is_death=True)

    def _hook(self, batch: int, run: int, role: str, task: int = 0, attempt: int = 0) -> Hook | None:
        tasks = len(self.history.setting.tasks[batch])
        for event in self.history.at("hook", batch, run):
            args = event.args
            if args["role"] == role and (role != "task" or (args["task"] % tasks, args["attempt"]) == (task, attempt)):
                self.stats[f"hook {args['how']}"] += 1
                return Hook(args["how"], args["nth"], args.get("soon"))
        return None


def _options(setting: Setting, world: World, pace: Pace, query: str, receipts: Path | None) -> dict[str, str]:
    """Return the options of the query's sink."""
    options = {
        "tubemq.master": world.master,
        "tubemq.rpc.framing": world.framing.value,
        "tubemq.rpc.timeoutMs": str(int(pace.rpc * 1000)),
        "tubemq.retry.maxElapsedMs": str(int(pace.retry * 1000)),
        **setting.options,
    }
    if not setting.topic_column:
        options["topic"] = world.topics[0]
    if setting.mode == STAMPED:
        options["stampRows"] = "true"
    if setting.mode == ONCE:
        options["effectivelyOnce"] = "true"
        if not setting.respelled:  # else the checkpoint names the groups
            options["effectivelyOnceGroup"] = f"once_{query[:8]}"
    if setting.failed_rows != "fail":
        options["failedRows"] = setting.failed_rows
    if setting.failed_rows == "deadLetter":
        options["deadLetterTopic"] = DEAD
    if receipts is not None:
        options["receipts"] = str(receipts)
    return options
