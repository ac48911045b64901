"""Spark's stream writer: `df.writeStream.format("tubemq")`, append mode.

Spark makes a writer anew for each micro-batch, in more than one process, so a writer holds only its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.sink.commit import Written, commit, log_abort
from tubemq_spark.sink.task_writer import write_batches, write_rows
from tubemq_spark.sink.write_plan import WritePlan, plan_write


class TubeMQStreamRowWriter(DataSourceStreamWriter):
    """Writes micro-batches row by row, for Spark 4.0."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the bookmarks, because Spark pickles the writer whose copies go to the tasks.

        Spark makes another writer to commit the batch. That one is not pickled and needs no bookmarks, which take
        several requests for each partition.
        """
        self._plan = self._plan.for_tasks()
        return {"_plan": self._plan}

    def write(self, iterator: Iterator[Row]) -> Written:
        return write_rows(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._plan.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log_abort(messages, batchId)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0
    STREAM_WRITER: type[TubeMQStreamRowWriter] = TubeMQStreamRowWriter
else:

    class TubeMQStreamWriter(TubeMQStreamRowWriter, DataSourceStreamArrowWriter):
        """Writes micro-batches of Arrow record batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return write_batches(self._plan, iterator)

    STREAM_WRITER = TubeMQStreamWriter


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the best writer that this Spark knows; raise as `plan_write`, on the driver."""
    return STREAM_WRITER(plan_write(options, schema, overwrite))
