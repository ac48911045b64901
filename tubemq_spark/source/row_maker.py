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


class RowMaker:
    """Makes the rows of one partition, of which `broker` was the broker when they were planned."""

    def __init__(self, form: RowFormat, partition: Partition, broker: Broker) -> None:
        self.partition = partition
        self.broker = broker
        self._form = form
        self._schema = arrow_schema(form)
        names = self._schema.names
        is_raw = form.message_format == "raw"
        self._opener = MessageOpener(
            form,
            partition,
            needs_attributes=not is_raw or not _OF_HEADERS.isdisjoint(names),
            needs_bodies=not is_raw or "value" in names,
        )
        self.corrupt = self._opener.corrupt

    def rows(self, batches: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of fetched batches.

        A batch has at most about `ROWS` rows or `BYTES` bytes after decompression and unpacking, or one longer row.
        Raise as `MessageOpener.open`, also for a message that the formats of InLong cannot open.
        """
        for opened in self._opener.open(batches):
            columns = {name: _MAKERS[name](self, opened) for name in self._schema.names if name in _MAKERS}
            if self._form.message_format == "raw":
                yield self._batch(columns)
                continue
            from tubemq_spark.source.pack_rows import PackOpener  # takes a while, and only packs need it

            for rows in PackOpener(self._form, self._opener.keeps).rows(opened):
                yield self._batch(rows.columns(self._schema.names, columns))

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
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
