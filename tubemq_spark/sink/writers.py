# SPDX-License-Identifier: Apache-2.0
"""Spark's writers: `df.write.format("tubemq").mode("append")` and `df.writeStream.format("tubemq")`, append mode.

Spark makes a new stream writer for each micro-batch, in more than one process, so a writer holds only its plan. Rows
come as Arrow batches. Where Spark has no Arrow writers, rows come one by one: Spark 4.0 has none for streams, and some
platforms have none at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.client import system
from tubemq_spark.sink.commit import Written, commit, log_abort
from tubemq_spark.sink.task_writer import write_batches, write_rows
from tubemq_spark.sink.write_plan import WritePlan, plan_write
from tubemq_spark.task_counts import CountsInTasks


class _PlannedWriter(CountsInTasks):
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan}>"

    def write(self, iterator: Iterator[Row]) -> Written:
        with self.counting():
            return write_rows(self._plan, iterator)


class TubeMQRowWriter(_PlannedWriter, DataSourceWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._plan.options, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_abort(messages, None)


class TubeMQStreamRowWriter(_PlannedWriter, DataSourceStreamWriter):
    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the plan of the batch, because Spark pickles the writer whose copies go to the tasks.

        Spark makes another writer to commit the batch. That one is not pickled and plans nothing.
        """
        self._plan = self._plan.for_tasks()
        return self.__dict__

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._plan.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log_abort(messages, batchId)


WRITER: type[TubeMQRowWriter] = TubeMQRowWriter
STREAM_WRITER: type[TubeMQStreamRowWriter] = TubeMQStreamRowWriter

if hasattr(datasource, "DataSourceArrowWriter"):

    class TubeMQWriter(TubeMQRowWriter, datasource.DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            with self.counting():
                return write_batches(self._plan, iterator)

    WRITER = TubeMQWriter

if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class TubeMQStreamWriter(TubeMQStreamRowWriter, datasource.DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            with self.counting():
                return write_batches(self._plan, iterator)

    STREAM_WRITER = TubeMQStreamWriter


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TubeMQRowWriter:
    """Return the best writer that this Spark knows; raise as `plan_write`, on the driver."""
    return WRITER(plan_write(options, schema, overwrite, write_id=str(system.new_uuid())))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TubeMQStreamRowWriter:
    """Return the best writer that this Spark knows; raise as `plan_write`, on the driver."""
    return STREAM_WRITER(plan_write(options, schema, overwrite))
