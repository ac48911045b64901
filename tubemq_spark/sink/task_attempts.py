# SPDX-License-Identifier: Apache-2.0
"""The attempt of a task that runs in this process, as Spark describes it."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.stamp import Origin

# Local properties of a stream's jobs. StreamExecution and MicroBatchExecution set them.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class WriteTask(NamedTuple):
    """An attempt of a task.

    `id` is the id of the streaming query or batch write, None outside Spark. `partition` is the task's number within
    the batch. `attempt` counts from 0, and again from 0 if Spark repeats the stage. `attempt_id` grows with each
    attempt of the Spark application. For batch writes, `batch` is 0.
    """

    id: str | None
    batch: int
    partition: int
    attempt: int
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
        return WriteTask(write_id, 0, 0, 0)
    partition, attempt, attempt_id = context.partitionId(), context.attemptNumber(), context.taskAttemptId()
    if write_id is not None:  # within foreachBatch, the properties are those of the stream around it
        return WriteTask(write_id, 0, partition, attempt, attempt_id)
    query, batch = map(context.getLocalProperty, (_QUERY, _BATCH))
    return WriteTask(query, int(batch or 0), partition, attempt, attempt_id)
