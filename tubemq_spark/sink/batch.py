"""Spark's batch writer: `df.write.format("tubemq").mode("append")`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.sink.commit import Written, commit, log_abort
from tubemq_spark.sink.task_writer import write_batches, write_rows
from tubemq_spark.sink.write_plan import WritePlan, plan_write


class TubeMQRowWriter(DataSourceWriter):
    """Writes a batch row by row, for platforms whose Spark has no Arrow writer."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plan}>"

    def write(self, iterator: Iterator[Row]) -> Written:
        return write_rows(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._plan.options, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_abort(messages, None)


try:
    from pyspark.sql.datasource import DataSourceArrowWriter
except ImportError:  # some platforms have an older Spark than 4.0
    WRITER: type[TubeMQRowWriter] = TubeMQRowWriter
else:

    class TubeMQWriter(TubeMQRowWriter, DataSourceArrowWriter):
        """Writes a batch of Arrow record batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            return write_batches(self._plan, iterator)

    WRITER = TubeMQWriter


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TubeMQRowWriter:
    """Return the best writer that this Spark knows; raise as `plan_write`, on the driver."""
    return WRITER(plan_write(options, schema, overwrite, write_id=str(uuid.uuid4())))
