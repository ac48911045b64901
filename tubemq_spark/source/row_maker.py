# SPDX-License-Identifier: Apache-2.0
"""Row maker: turns messages into rows, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.source.arrow_arrays import booleans, numbers, repeated, texts
from tubemq_spark.source.message_opener import MessageOpener, Opened
from tubemq_spark.source.row_format import RowFormat
from tubemq_spark.source.schema import arrow_schema
from tubemq_spark.source.value_format import FORMATS, Columns


class RowMaker:
    """Makes the rows of one partition, of which `broker` was the broker when they were planned."""

    def __init__(self, form: RowFormat, partition: Partition, broker: Broker) -> None:
        self.partition = partition
        self.broker = broker
        self._format = FORMATS[form.message_format](form)
        self._schema = arrow_schema(form)
        names = self._schema.names
        self._opener = MessageOpener(
            form,
            partition,
            needs_attributes=self._format.opens_bodies or not _OF_HEADERS.isdisjoint(names),
            needs_bodies=self._format.opens_bodies or "value" in names,
        )
        self.corrupt = self._opener.corrupt

    def rows(self, batches: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of fetched batches.

        A batch has at most about `ROWS` rows or `BYTES` bytes after decompression and unpacking, or one longer row.
        Raise as `MessageOpener.open`, also for a body that the value format cannot open.
        """
        for opened in self._opener.open(batches):
            columns = {name: _MAKERS[name](self, opened) for name in self._schema.names if name in _MAKERS}
            for rows in self._format.rows(opened, columns, self._schema.names, self._opener.keeps):
                yield self._batch(rows)

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


_MAKERS: Mapping[str, Callable[[RowMaker, Opened], pa.Array]] = {
    "value": lambda _, them: them.bodies,
    "attributes": lambda _, them: them.each(them.headers.own),
    "msg_type": lambda _, them: them.each(them.headers.msg_type),
    "msg_time": lambda _, them: them.each(them.headers.msg_time),
    "topic": lambda here, them: repeated(texts([here.partition.topic]), len(them.ids)),
    "broker_id": lambda here, them: repeated(numbers([here.broker.broker_id], pa.int32()), len(them.ids)),
    "partition": lambda here, them: repeated(numbers([here.partition.partition_id], pa.int32()), len(them.ids)),
    "offset": lambda _, them: them.positions,
    "message_id": lambda _, them: them.ids,
    "corrupt": lambda _, them: them.each(booleans(them.kept)),
}
_OF_HEADERS = frozenset({"attributes", "msg_type", "msg_time"})
