# SPDX-License-Identifier: Apache-2.0
"""Tells which attempt of a task runs here, and whether earlier ones may exist, which have stored some of its rows.

Most tasks have no earlier attempt and search for nothing: a batch is attempted in one run only, unless it is the first
batch of its run. Two sources prove that a batch is not the first one of its run:

* The note of the last commit. Spark ends Python workers that are idle for a minute, so no worker can rely on what an
  earlier one knew. The plan and the commit of a stream run in workers of the driver, which see its block manager
  folders. Each commit leaves a small file there: the run, the batch, and the topics that the query wrote to last.
  Without such a folder, the file is in the user's own folder within the system's temporary folder. A missing or old
  note only makes the next batch search for attempts that do not exist.
* What this worker process has seen of the run.

If Spark repeats a stage, attempts have number 0 again. `task_mark` finds the earlier ones.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pyspark import TaskContext

from tubemq_spark.client import system
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.stamp import Origin
from tubemq_spark.sink.stored_rows import StoredRows

_log = logging.getLogger(__name__)

# Local properties of a stream's jobs. StreamExecution and MicroBatchExecution set them; the job group is the run's id.
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


class WriteTask(NamedTuple):
    """An attempt of a task.

    `id` is the id of the streaming query or batch write, None outside Spark. `run` is the id of the query's run.
    `partition` is the task's number within the batch. `attempt` counts from 0, and again from 0 if Spark repeats the
    stage. `attempt_id` grows with each attempt of the Spark application. For batch writes, `batch` is 0 and `run` None.
    """

    id: str | None
    batch: int
    partition: int
    attempt: int
    run: str | None
    attempt_id: int = 0

    @property
    def origin(self) -> Origin:
        """The beginning of the stamps of the task's rows, equal for all attempts. Raise `ConfigError` outside Spark."""
        if self.id is None:
            raise ConfigError("options 'stampRows' and 'effectivelyOnce' need a task of Spark, which has a query's id")
        return Origin(self.id, self.batch, self.partition)


def this_task(write_id: str | None = None) -> WriteTask:
    """Return the task that runs in this process: of the batch write `write_id`, or of a stream without it."""
    context = TaskContext.get()
    if context is None:
        return WriteTask(write_id, 0, 0, 0, None)
    partition, attempt, attempt_id = context.partitionId(), context.attemptNumber(), context.taskAttemptId()
    if write_id is not None:  # within foreachBatch, the properties are those of the stream around it
        return WriteTask(write_id, 0, partition, attempt, None, attempt_id)
    query, batch, run = map(context.getLocalProperty, (_QUERY, _BATCH, _RUN))
    return WriteTask(query, int(batch or 0), partition, attempt, run, attempt_id)


class EarlierAttempts(Enum):
    """Where attempts of the same task may have run before this one."""

    NONE = "none"
    IN_AN_EARLIER_RUN = "in an earlier run"
    IN_THIS_RUN = "in this run"


def earlier_attempts(task: WriteTask, last_commit: CommitNote | None) -> EarlierAttempts:
    # Always asked, because the cache learns the run's first batch from it.
    is_later_batch = RUN_CACHE().is_later_batch(task)
    if task.attempt > 0:
        return EarlierAttempts.IN_THIS_RUN
    if is_later_batch or (last_commit is not None and last_commit.is_before(task)):
        return EarlierAttempts.NONE
    return EarlierAttempts.IN_AN_EARLIER_RUN


@dataclass(frozen=True)
class CommitNote:
    """What the last commit has noted: `run` of the query `id` has committed `batch`; the query has written to `topics`,
    to the first of them last.

    The defaults are those of a query that has committed nothing.
    """

    id: str | None = None
    run: str | None = None
    batch: int = -1
    topics: tuple[str, ...] = ()

    def is_before(self, task: WriteTask) -> bool:
        """Return True if the same run has committed an earlier batch than that of `task`."""
        return task.run is not None and (self.id, self.run) == (task.id, task.run) and self.batch < task.batch


def read_commit_note(group: str) -> CommitNote:
    """Return the note of the query with the bookmark groups `group`, an empty one if there is none."""
    file = _note_file(group)
    if file is None:
        return CommitNote()
    try:
        content = json.loads(file.read_bytes())
        return CommitNote(content["id"], content["run"], content["batch"], tuple(content["topics"]))
    except OSError:
        return CommitNote()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("[commit-note-damaged] ignoring the damaged note of the last commit %s: %r", file, error)
        return CommitNote()


def write_commit_note(group: str, note: CommitNote) -> None:
    """Replace the note of the query. Log a warning if that fails, because the next batch then takes longer."""
    file = _note_file(group)
    if file is None:
        return
    content = {"id": note.id, "run": note.run, "batch": note.batch, "topics": note.topics}
    fresh = file.with_suffix(f".{system.process_id()}")
    try:
        fresh.write_text(json.dumps(content), "utf-8")
        fresh.replace(file)
    except OSError as error:
        _log.warning(
            "[commit-note-unwritten] cannot write %s, so the next batch will search for earlier attempts: %s",
            file,
            error,
        )


def _note_file(group: str) -> Path | None:
    # Spark sets the variable for all its Python workers.
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if os.path.isdir(folder)]
    folder = Path(folders[0]) if folders else _users_folder()
    return None if folder is None else folder / f"tubemq-once-{sha256(group.encode()).hexdigest()[:16]}.json"


def _users_folder() -> Path | None:
    """Return a folder that only the present user can write to, None if there is none."""
    if not hasattr(os, "getuid"):
        return None
    folder = Path(tempfile.gettempdir(), f"tubemq-spark-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        _log.info("cannot use %s for the notes of commits: %s", folder, error)
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if is_own else None


class RunCache:
    """The first batch of each run that this process has seen, and what earlier runs have stored of that batch."""

    _MAX_RUNS = 100

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._runs: OrderedDict[tuple[str | None, str | None], tuple[int, dict[str, StoredRows]]] = OrderedDict()

    def is_later_batch(self, task: WriteTask) -> bool:
        """Return True if `task` belongs to a later batch than the first one that this process has seen of its run."""
        if task.run is None:
            return False
        first_batch, stored_rows = self._run_of(task)
        if task.batch > first_batch:
            stored_rows.clear()
        return task.batch > first_batch

    def stored_rows(self, task: WriteTask) -> dict[str, StoredRows]:
        """Return what earlier runs have stored of the run's first batch, by topic; the caller fills it."""
        return {} if task.run is None else self._run_of(task)[1]

    def _run_of(self, task: WriteTask) -> tuple[int, dict[str, StoredRows]]:
        run = self._runs.setdefault((task.id, task.run), (task.batch, {}))
        self._runs.move_to_end((task.id, task.run))
        while len(self._runs) > self._MAX_RUNS:
            self._runs.popitem(last=False)
        return run


RUN_CACHE = PerProcess(RunCache)
