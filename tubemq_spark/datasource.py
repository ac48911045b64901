# SPDX-License-Identifier: Apache-2.0
"""The data source `tubemq`: connects Spark to the readers and writers, without logic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tubemq_spark.shipping import Ships

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from tubemq_spark.task_counts import CountsInTasks, Totals

C = TypeVar("C", bound="CountsInTasks")


class TubeMQDataSource(Ships, DataSource):
    """Apache TubeMQ as a source and sink of Spark, batch and streaming.

    >>> df = (
    ...     spark.readStream.format("tubemq")
    ...     .option("tubemq.master", "master:8715")
    ...     .option("tubemq.group", "my_group")
    ...     .option("subscribe", "my_topic")
    ...     .load()
    ... )  # doctest: +SKIP
    """

    totals: Accumulator[Totals] | None = None  # that `register` made

    @classmethod
    def name(cls) -> str:
        return "tubemq"

    def schema(self) -> StructType:
        """Return the columns of the source. Raise `ConfigError` for invalid options, at `load()`."""
        from tubemq_spark.source.options import check_options, row_format
        from tubemq_spark.source.schema import spark_schema

        check_options(self.options)
        return spark_schema(row_format(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from tubemq_spark.source.batch import PushingReader, TubeMQReader
        from tubemq_spark.source.options import PUSH_FILTERS

        kind = PushingReader if PUSH_FILTERS.get(self.options) else TubeMQReader
        return self._counting(kind(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tubemq_spark.source.stream import TubeMQStreamReader

        return self._counting(TubeMQStreamReader(self.options, schema))

    # Spark passes these parameters by keyword, too, so their names are part of its interface.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tubemq_spark.sink.writers import batch_writer

        return self._counting(batch_writer(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tubemq_spark.sink.writers import stream_writer

        return self._counting(stream_writer(self.options, schema, overwrite))

    def _counting(self, made: C) -> C:
        made.totals, made.shipment = self.totals, self.shipment
        self.part = made.part  # Spark sends the source to tasks, too
        return made
