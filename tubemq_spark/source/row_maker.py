# SPDX-License-Identifier: Apache-2.0
"""Row maker: turns messages into rows, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from itertools import groupby
from typing import Any
from zlib import crc32

import pyarrow as pa

from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import (
    CHECK_SUM_MASK,
    COMPRESSION_KEY,
    NO_ATTRIBUTES,
    Attributes,
    decode_attributes,
    split_payload,
)
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.arrow_arrays import binaries, booleans, numbers, repeated, texts
from tubemq_spark.source.attribute_columns import columns_of
from tubemq_spark.source.message_opener import Opened, open_messages, position_column
from tubemq_spark.source.row_format import ATTRIBUTE_OBJECT_BYTES, BYTES, KEPT, ROWS, RowFormat
from tubemq_spark.source.schema import arrow_schema

_MAX_ROWS, _MAX_BYTES = 2 * ROWS, 2 * BYTES  # messages that were gathered up to ROWS or BYTES make one batch
_SHORT_HEADER = 256  # bytes; longer headers are not cached, so that producers cannot make memory grow


@dataclass(frozen=True)
class _Compressed(Attributes):
    """Attributes of a message whose body the sink compressed. `own` is without the codec."""

    codec: str = ""


def _decode(header: bytes, zone: tzinfo) -> Attributes:
    found = decode_attributes(header, zone)
    if found.own is None or COMPRESSION_KEY not in found.own:
        return found
    own = dict(found.own)
    codec = own.pop(COMPRESSION_KEY)
    return _Compressed(own or None, found.msg_type, found.msg_time, codec)


_decode_short = lru_cache(maxsize=1024)(_decode)  # msgType and msgTime often make the same bytes
_SKIPPED = Attributes()  # as `KEPT`, of a message that is skipped


class RowMaker:
    """Makes the rows of one task and counts the messages that were corrupt."""

    def __init__(self, form: RowFormat) -> None:
        self._form = form
        self._schema = arrow_schema(form)
        self._counts: dict[Partition, int] = {}
        self._examples: dict[Partition, str] = {}

    def fetched(self, partition: Partition, batches: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of fetched batches of one partition.

        A batch has at most about `ROWS` rows or `BYTES` bytes after decompression and unpacking, or one longer row.

        Raise `ProtocolError`, which names the message, for a wrong check sum, attribute header or compressed body, or
        for a message that the formats of InLong cannot open, unless the row format skips or keeps such messages.
        Raise `ConfigError` for a codec that this process does not have.
        """
        for _, same_kind in groupby(batches, lambda batch: isinstance(batch.messages, MessageColumns)):
            for opened in self._opened(partition, list(same_kind)):
                yield from self._rows(partition, opened)

    def _opened(self, partition: Partition, batches: Sequence[FetchedBatch]) -> Iterator[Opened]:
        is_raw = self._form.message_format == "raw"
        has_types = partition.topic in self._form.msg_types
        opened = open_messages(
            batches,
            self._form.zone,
            _MAX_BYTES,
            needs_attributes=has_types or not is_raw or not _OF_HEADERS.isdisjoint(self._schema.names),
            needs_bodies=not is_raw or "value" in self._schema.names,
        )
        if opened is not None:
            yield opened
        elif len(batches) > 1 and isinstance(batches[0].messages, MessageColumns):  # one may be the reason
            for batch in batches:
                yield from self._opened(partition, [batch])
        else:
            yield from self._one_by_one(partition, batches)

    def _one_by_one(self, partition: Partition, batches: Sequence[FetchedBatch]) -> Iterator[Opened]:
        messages: list[Any] = [message for batch in batches for message in batch.messages]
        positions = position_column(batches)
        start = 0
        while start < len(messages):
            bodies, attributes = self._decode(partition, messages, start)
            is_left = [found is not _SKIPPED for found in attributes]
            left = [found for found in attributes if found is not _SKIPPED]
            ids = numbers([message.messageId for message in messages[start : start + len(is_left)]], pa.int64())
            chosen = booleans(is_left)
            yield Opened(
                ids.filter(chosen),
                positions.slice(start, len(ids)).filter(chosen),
                binaries(bodies),
                columns_of(left),
                [found is KEPT for found in left],
                numbers(range(len(left)), pa.int32()),
            )
            start += len(ids)

    def _attributes(self, header: bytes) -> Attributes:
        return (_decode_short if len(header) <= _SHORT_HEADER else _decode)(header, self._form.zone)

    def _rows(self, partition: Partition, opened: Opened) -> Iterator[pa.RecordBatch]:
        def is_kept(message_id: int, reason: str) -> bool:
            return self._bad(partition, message_id, reason) is KEPT

        if partition.topic in self._form.msg_types:
            opened = opened.only(self._form.msg_types[partition.topic])
        names = self._schema.names
        columns = {name: _MAKERS[name](partition, opened) for name in names if name in _MAKERS}
        if self._form.message_format == "raw":
            yield self._batch(columns)
            return
        from tubemq_spark.source.pack_rows import PackOpener  # takes a while, and only packs need it

        for rows in PackOpener(self._form, is_kept).rows(opened):
            yield self._batch(rows.columns(names, columns))

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)

    def corrupt(self) -> Iterator[str]:
        """Yield a sentence for each partition that had corrupt messages."""
        done = "skipped" if self._form.corrupt == "skip" else "kept"
        for partition, count in self._counts.items():
            yield f"{partition}: {count} corrupt messages were {done}; the first: {self._examples[partition]}"

    def _decode(
        self, partition: Partition, messages: Sequence[Any], start: int
    ) -> tuple[list[bytes], list[Attributes]]:
        """Return the attributes of messages from `start` on: at least one, and as many as fit a batch. And return the
        bodies of those that are not skipped."""
        types = self._form.msg_types.get(partition.topic)
        size = 0
        bodies: list[bytes] = []
        attributes: list[Attributes] = []
        for message in messages[start : start + _MAX_ROWS]:
            if size >= _MAX_BYTES:
                break
            body = payload = message.payLoadData
            found = NO_ATTRIBUTES
            if crc32(payload) & CHECK_SUM_MASK != message.checkSum:
                found = self._bad(
                    partition, message.messageId, f"its check sum is {message.checkSum}, not that of its bytes"
                )
            elif message.flag:
                try:
                    header, body = split_payload(payload, message.flag)
                    if header:
                        found = self._attributes(header)
                    if type(found) is _Compressed and (types is None or found.msg_type in types):
                        body = decompress(found.codec, body, self._form.max_unpacked)
                        size += len(body)
                    if found.own is not None:
                        size += ATTRIBUTE_OBJECT_BYTES * len(found.own)
                except ProtocolError as error:
                    body = payload
                    found = self._bad(partition, message.messageId, str(error))
            size += len(payload)
            attributes.append(found)
            if found is not _SKIPPED:
                bodies.append(body)
        return bodies, attributes

    def _bad(self, partition: Partition, message_id: int, reason: str) -> Attributes:
        what = f"message {message_id}: {reason}"
        if self._form.corrupt == "fail":
            raise ProtocolError(f"{partition}: {what}. Set option 'corruptMessages' to 'skip' or 'keep' to read on")
        COUNTERS().add(Count.CORRUPT)
        self._counts[partition] = self._counts.get(partition, 0) + 1
        self._examples.setdefault(partition, what)
        return KEPT if self._form.corrupt == "keep" else _SKIPPED


_MAKERS: Mapping[str, Callable[[Partition, Opened], pa.Array]] = {
    "value": lambda _, them: them.bodies,
    "attributes": lambda _, them: them.each(them.headers.own),
    "msg_type": lambda _, them: them.each(them.headers.msg_type),
    "msg_time": lambda _, them: them.each(them.headers.msg_time),
    "topic": lambda here, them: repeated(texts([here.topic]), len(them.ids)),
    "broker_id": lambda here, them: repeated(numbers([here.broker_id], pa.int32()), len(them.ids)),
    "partition": lambda here, them: repeated(numbers([here.partition_id], pa.int32()), len(them.ids)),
    "offset": lambda _, them: them.positions,
    "message_id": lambda _, them: them.ids,
    "corrupt": lambda _, them: them.each(booleans(them.kept)),
}
_OF_HEADERS = frozenset({"attributes", "msg_type", "msg_time"})
