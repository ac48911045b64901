# SPDX-License-Identifier: Apache-2.0
"""Row maker: turns messages into rows, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from itertools import compress, groupby
from typing import Any
from zlib import crc32

import pyarrow as pa

from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import COMPRESSION_KEY, NO_ATTRIBUTES, Attributes, decode_attributes, split_payload
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.arrow_arrays import binaries, booleans, falses, maps, numbers, repeated, texts
from tubemq_spark.source.message_opener import open_messages, position_column
from tubemq_spark.source.row_format import ATTRIBUTE_OBJECT_BYTES, BYTES, KEPT, ROWS, RowFormat
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP, arrow_schema

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
        self._schema = arrow_schema(form.corrupt, form.message_format)
        self._counts: dict[Partition, int] = {}
        self._examples: dict[Partition, str] = {}

    def batches(
        self, partition: Partition, messages: Sequence[Any], positions: Sequence[int | None] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the wire's messages of one partition, in one batch or more. `positions` has one for each.

        A batch has at most about `ROWS` rows or `BYTES` bytes after decompression and unpacking, or one longer row.

        Raise `ProtocolError`, which names the message, for a wrong check sum, attribute header or compressed body, or
        for a message that is not a pack in format `inlongmsg`, unless the row format skips or keeps such messages.
        Raise `ConfigError` for a codec that this process does not have.
        """
        start = 0
        while start < len(messages) or start == 0:
            bodies, attributes = self._decode(partition, messages, start)
            end = start + len(bodies)
            here = None if positions is None else positions[start:end]
            yield from self._rows(partition, messages[start:end], bodies, attributes, here)
            start = max(1, end)

    def fetched(self, partition: Partition, batches: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of fetched batches of one partition, as `batches` does for their messages."""
        for _, alike in groupby(batches, lambda batch: isinstance(batch.messages, MessageColumns)):
            yield from self._alike(partition, list(alike))

    def _alike(self, partition: Partition, batches: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
        replies: list[Sequence[Any]] = [batch.messages for batch in batches]  # its type declares only the keys
        opened = open_messages(replies, self.plain_attributes, _MAX_BYTES)
        if opened is None:
            yield from self.batches(partition, [one for reply in replies for one in reply], _positions(batches))
            return
        positions = position_column(batches)
        types = self._form.msg_types.get(partition.topic)
        if types is not None:
            opened, wanted = opened.only(types)
            positions = positions.filter(wanted)
        outer = [
            *_repeated_attributes(opened.distinct, opened.numbers),
            *_outer(partition, opened.ids, positions),
        ]
        if self._form.message_format == "inlongmsg":
            ids, packs = opened.ids.to_pylist(), (body.as_py() for body in opened.bodies)
            yield from self._unpacked(partition, ids, packs, opened.attributes(), outer)
        else:
            yield self._batch([opened.bodies, *outer], falses(len(opened.ids)))

    def plain_attributes(self, header: bytes) -> Attributes | None:
        """Return the attributes in a header, None if the body is compressed."""
        found = self._attributes(header)
        return None if type(found) is _Compressed else found

    def _attributes(self, header: bytes) -> Attributes:
        return (_decode_short if len(header) <= _SHORT_HEADER else _decode)(header, self._form.zone)

    def _rows(
        self,
        partition: Partition,
        messages: Sequence[Any],
        bodies: list[bytes],
        attributes: list[Attributes],
        positions: Sequence[int | None] | None,
    ) -> Iterator[pa.RecordBatch]:
        wanted = self._is_wanted(partition.topic, attributes)
        if wanted is not None:
            messages, bodies = list(compress(messages, wanted)), list(compress(bodies, wanted))
            attributes = list(compress(attributes, wanted))
            positions = None if positions is None else list(compress(positions, wanted))
        ids = [message.messageId for message in messages]
        outer = [
            *_attribute_columns(attributes),
            *_outer(partition, numbers(ids, pa.int64()), _numbers_or_null(len(ids), positions)),
        ]
        if self._form.message_format == "inlongmsg":
            yield from self._unpacked(partition, ids, bodies, attributes, outer)
        else:
            is_corrupt = booleans([found is KEPT for found in attributes])
            yield self._batch([binaries(bodies), *outer], is_corrupt)

    def _unpacked(
        self,
        partition: Partition,
        ids: Sequence[int],
        packs: Iterable[bytes],
        attributes: Sequence[Attributes],
        outer: Sequence[pa.Array],
    ) -> Iterator[pa.RecordBatch]:
        from tubemq_spark.source.pack_rows import PackOpener  # takes a while, and only this format needs it

        def is_kept(message_id: int, reason: str) -> bool:
            return self._bad(partition, message_id, reason) is KEPT

        for rows in PackOpener(self._form, is_kept).rows(ids, packs, attributes):
            yield self._batch(*rows.columns(outer))

    def _batch(self, columns: list[pa.Array], is_corrupt: pa.BooleanArray) -> pa.RecordBatch:
        if self._form.corrupt == "keep":
            columns.append(is_corrupt)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def corrupt(self) -> Iterator[str]:
        """Yield a sentence for each partition that had corrupt messages."""
        done = "skipped" if self._form.corrupt == "skip" else "kept"
        for partition, count in self._counts.items():
            yield f"{partition}: {count} corrupt messages were {done}; the first: {self._examples[partition]}"

    def _decode(
        self, partition: Partition, messages: Sequence[Any], start: int
    ) -> tuple[list[bytes], list[Attributes]]:
        """Return the bodies and attributes of messages from `start` on: at least one, and as many as fit a batch."""
        types = self._form.msg_types.get(partition.topic)
        size = 0
        bodies: list[bytes] = []
        attributes: list[Attributes] = []
        for message in messages[start : start + _MAX_ROWS]:
            if size >= _MAX_BYTES:
                break
            body = payload = message.payLoadData
            found = NO_ATTRIBUTES
            if crc32(payload) & 0x7FFFFFFF != message.checkSum:
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
            bodies.append(body)
            attributes.append(found)
        return bodies, attributes

    def _bad(self, partition: Partition, message_id: int, reason: str) -> Attributes:
        what = f"message {message_id}: {reason}"
        if self._form.corrupt == "fail":
            raise ProtocolError(f"{partition}: {what}. Set option 'corruptMessages' to 'skip' or 'keep' to read on")
        self._counts[partition] = self._counts.get(partition, 0) + 1
        self._examples.setdefault(partition, what)
        return KEPT if self._form.corrupt == "keep" else _SKIPPED

    def _is_wanted(self, topic: str, attributes: list[Attributes]) -> list[bool] | None:
        """Return which messages are wanted, None for all. One that is kept is wanted, because its type is unknown."""
        types = self._form.msg_types.get(topic)
        if types is not None:
            return [found is KEPT or (found is not _SKIPPED and found.msg_type in types) for found in attributes]
        if self._form.corrupt == "skip" and any(found is _SKIPPED for found in attributes):
            return [found is not _SKIPPED for found in attributes]
        return None


def _attribute_columns(attributes: Sequence[Attributes]) -> list[pa.Array]:
    """Return the columns `attributes`, `msg_type` and `msg_time`."""
    if all(found is NO_ATTRIBUTES for found in attributes):
        return _no_attributes(len(attributes))
    return [
        maps([found.own for found in attributes], ATTRIBUTES),
        texts([found.msg_type for found in attributes]),
        numbers([found.msg_time for found in attributes], TIMESTAMP),
    ]


def _repeated_attributes(distinct: Sequence[Attributes], numbers: pa.Array) -> list[pa.Array]:
    """Return the same columns for messages of which number n has the attributes `distinct[numbers[n]]`."""
    if all(found is NO_ATTRIBUTES for found in distinct):
        return _no_attributes(len(numbers))
    return [column.take(numbers) for column in _attribute_columns(distinct)]


def _no_attributes(count: int) -> list[pa.Array]:
    return [pa.nulls(count, kind) for kind in (ATTRIBUTES, pa.string(), TIMESTAMP)]


def _outer(partition: Partition, ids: pa.Array, positions: pa.Array) -> list[pa.Array]:
    """Return the columns from `topic` to `message_id`."""
    count = len(ids)
    return [
        repeated(texts([partition.topic]), count),
        repeated(numbers([partition.broker_id], pa.int32()), count),
        repeated(numbers([partition.partition_id], pa.int32()), count),
        positions,
        ids,
    ]


def _positions(batches: Sequence[FetchedBatch]) -> list[int | None] | None:
    """Return the position of each message, None for batches without any."""
    if all(batch.positions is None for batch in batches):
        return None
    found: list[int | None] = []
    for batch in batches:
        found += [None] * len(batch.messages) if batch.positions is None else batch.positions
    return found


def _numbers_or_null(count: int, values: Sequence[int | None] | None) -> pa.Array:
    return numbers(values, pa.int64()) if values else pa.nulls(count, pa.int64())
