"""`df.writeStream.format("tubemq")`, append mode.

Spark makes a writer anew for each micro-batch, in more than one process: it holds nothing but its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.sink.commit import Written, commit, note_abort
from tubemq_spark.sink.task_writer import Plan, plan, ready_for_tasks, write_batches, write_rows


class TubeMQStreamRowWriter(DataSourceStreamWriter):
    """Writes micro-batches row by row, for Spark 4.0."""

    def __init__(self, planned: Plan) -> None:
        self._plan = planned

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan}>"

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer whose copies go to the tasks. It makes another one to commit the batch, and that one
        needs no bookmarks, which take several calls for each partition."""
        self._plan = ready_for_tasks(self._plan)
        return {"_plan": self._plan}

    def write(self, iterator: Iterator[Row]) -> Written:
        return write_rows(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._plan.options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        note_abort(messages, batchId)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0
    STREAM_WRITER: type[TubeMQStreamRowWriter] = TubeMQStreamRowWriter
else:

    class TubeMQStreamWriter(TubeMQStreamRowWriter, DataSourceStreamArrowWriter):
        """Writes micro-batches as Arrow brings them."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return write_batches(self._plan, iterator)

    STREAM_WRITER = TubeMQStreamWriter


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The best writer that this Spark knows; raises as `plan`, on the driver."""
    return STREAM_WRITER(plan(options, schema, overwrite))
