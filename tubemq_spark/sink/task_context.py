"""Tells which task attempt runs in this worker process, from Spark's task context."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.stamp import Origin

# Local properties of a stream's jobs. StreamExecution and MicroBatchExecution set them; the job group is the run's id.
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


class WriteTask(NamedTuple):
    """An attempt of a task.

    `id` is the id of the streaming query or batch write, None outside Spark. `run` is the id of the query's run.
    `partition` is the task's number within the batch. `attempt` counts from 0. For batch writes, `batch` is 0 and `run`
    None.
    """

    id: str | None
    batch: int
    partition: int
    attempt: int
    run: str | None

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
    partition, attempt = context.partitionId(), context.attemptNumber()
    if write_id is not None:  # within foreachBatch, the properties are those of the stream around it
        return WriteTask(write_id, 0, partition, attempt, None)
    query, batch, run = map(context.getLocalProperty, (_QUERY, _BATCH, _RUN))
    return WriteTask(query, int(batch or 0), partition, attempt, run)
