"""`df.write.format("tubemq").mode("append")`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.sink.commit import Written, commit, note_abort
from tubemq_spark.sink.write import plan, write_batches


class TubeMQWriter(DataSourceArrowWriter):
    """Writes a batch. Raises as `plan` and `write_batches`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._plan = plan(options, schema, overwrite, write_id=str(uuid.uuid4()))

    def __repr__(self) -> str:
        return f"<TubeMQWriter {self._plan}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_batches(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._plan.options, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        note_abort(messages, None)
