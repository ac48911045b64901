# SPDX-License-Identifier: Apache-2.0
"""Tells which attempt of a task runs here, and whether earlier ones may exist, which have stored some of its rows.

Each case has one proof (docs/sink.md has the table):

* Spark's attempt number shows a retried task, also where no mark can be left. If Spark repeats a stage, attempts have
  number 0 again, and `task_mark` finds the earlier ones.
* The note of the last commit informs the later batches of a run. Nothing else can: Spark ends Python workers that are
  idle for a minute, so no worker can rely on what an earlier one knew, and a broker that crashes forgets positions. The
  plan and the commit of a stream run in workers of the driver, which see its block manager folders. Each commit leaves
  a small file there: the run, and the topics that the query wrote to last. A missing or old note only makes the next
  batch search for attempts that do not exist.
* Any other task belongs to the first batch of its run, and searches for rows of an earlier run. Where it cannot,
  because messages are gone or too many, the third group of bookmarks proves that no attempt of the batch had begun.
"""

from __future__ import annotations

import json
import logging
import os
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pyspark import TaskContext

from tubemq_spark.client import system
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.stamp import Origin

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

    def __str__(self) -> str:
        return f"task partition {self.partition} of batch {self.batch}"

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


class CommitNote(NamedTuple):
    """What the last commit has noted: `run` has committed a batch; the query has written to `topics`, to the first of
    them last.

    The defaults are those of a query that has committed nothing.
    """

    run: str | None = None
    topics: tuple[str, ...] = ()


def earlier_attempts(task: WriteTask, last_commit: CommitNote) -> EarlierAttempts:
    """`last_commit` is that of the plan, so if the same run has made it, this is not the run's first batch."""
    if task.attempt > 0:
        return EarlierAttempts.IN_THIS_RUN
    if task.run is not None and last_commit.run == task.run:
        return EarlierAttempts.NONE
    return EarlierAttempts.IN_AN_EARLIER_RUN


def read_commit_note(group: str) -> CommitNote:
    """Return the note of the query with the bookmark groups `group`, an empty one if there is none or a damaged one."""
    file = _note_file(group)
    if file is None:
        return CommitNote()
    try:
        content = json.loads(file.read_bytes())
        return CommitNote(content["run"], tuple(content["topics"]))
    except (OSError, ValueError, TypeError, KeyError):
        return CommitNote()


def write_commit_note(group: str, note: CommitNote) -> None:
    """Replace the note of the query. Log a warning if that fails, because the next batch then takes longer."""
    file = _note_file(group)
    if file is None:
        return
    fresh = file.with_suffix(f".{system.process_id()}")
    try:
        fresh.write_text(json.dumps(note._asdict()), "utf-8")
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
    return Path(folders[0], f"tubemq-once-{sha256(group.encode()).hexdigest()[:16]}.json") if folders else None
