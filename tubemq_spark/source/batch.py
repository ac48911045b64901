"""`spark.read.format("tubemq")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.source.batch_plan import plan_batch
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition import TubeMQInputPartition
from tubemq_spark.source.schema import check_schema, spark_schema


class TubeMQReader(DataSourceReader):
    """Reads from `startingOffsets` to `endingOffsets`, as they are when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.read(options, streaming=False)
        check_schema(schema, spark_schema(self._options.corrupt_messages))

    def partitions(self) -> Sequence[InputPartition]:
        return plan_batch(self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of None when there are none to read.
        if isinstance(partition, TubeMQInputPartition):
            yield from partition.read()
