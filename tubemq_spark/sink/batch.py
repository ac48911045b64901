"""`df.write.format("tubemq").mode("append")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.sink.commit import Written, note_abort, note_commit
from tubemq_spark.sink.write import plan, write_batches


class TubeMQWriter(DataSourceArrowWriter):
    """Writes a batch; `commit` says what that promises. Raises as `plan` and `write_batches`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = plan(options, schema, overwrite)

    def __repr__(self) -> str:
        return f"<TubeMQWriter {self._options}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_batches(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        note_commit("a batch write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        note_abort("a batch write", messages)
