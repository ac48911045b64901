"""Batch reader: `spark.read.format("tubemq")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.source.batch_planner import plan_batch
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.schema import check_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from tubemq_spark.source.pushdown import Narrowing


class TubeMQReader(DataSourceReader):
    """Reads from `startingOffsets` to `endingOffsets`, which are resolved when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.read(options, streaming=False)
        check_schema(schema, spark_schema(self._options.corrupt_messages, self._options.message_format))
        self._narrowing: Narrowing | None = None

    def partitions(self) -> Sequence[InputPartition]:
        return plan_batch(self._options, self._narrowing)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of None if there are none to read.
        if isinstance(partition, TubeMQInputPartition):
            yield from partition.read()


class PushingReader(TubeMQReader):
    """A reader for option `pushFilters`. If Spark's own setting is off, Spark refuses readers with this method."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the query's conditions to read less, and return those that Spark must check."""
        from tubemq_spark.source.pushdown import Narrowing

        self._narrowing = Narrowing()
        return self._narrowing.add(filters)
