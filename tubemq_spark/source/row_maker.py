# SPDX-License-Identifier: Apache-2.0
"""Row maker: turns messages into rows, as Arrow record batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from functools import lru_cache
from itertools import accumulate, compress, repeat
from typing import Any
from zlib import crc32

import pyarrow as pa

from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import COMPRESSION_KEY, NO_ATTRIBUTES, Attributes, decode_attributes, split_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.inlong import ATTRIBUTE_BYTES, MESSAGE_BYTES, Head, unpack
from tubemq_spark.source.message_opener import open_messages, position_column
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP, arrow_schema

MAX_UNPACKED = 64 << 20
"""Maximum size of a body or pack after decompression, in bytes; the default of option `maxUnpackedBytes`."""
ROWS = 10_000  # of one Arrow batch, approximately
BYTES = 8 << 20  # of its bodies and attributes, approximately
GATHERED = 4 << 20  # bytes of payloads that make one batch
_MAX_ROWS, _MAX_BYTES = 2 * ROWS, 2 * BYTES  # messages that were gathered up to ROWS or BYTES make one batch
_SHORT_HEADER = 256  # bytes; longer headers are not cached, so that producers cannot make memory grow
_ATTRIBUTE_OBJECT_BYTES = 200  # of an attribute as Python objects


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


# These replace the attributes of a message that cannot be decoded; they are compared by identity.
_KEPT, _SKIPPED = Attributes(), Attributes()


@dataclass(frozen=True)
class RowFormat:
    """How messages become rows: plain values."""

    zone: tzinfo = timezone.utc  # of the producers' `$msgTime$`
    corrupt: str = "fail"  # the value of option `corruptMessages`
    msg_types: Mapping[str, frozenset[str]] = field(default_factory=dict)  # wanted ones by topic; all without an entry
    message_format: str = "raw"
    max_unpacked: int = MAX_UNPACKED


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
            ids, packs = opened.ids.to_pylist(), opened.bodies.to_pylist()
            yield from self._unpacked(partition, ids, packs, opened.attributes(), outer)
        else:
            yield self._batch([opened.bodies, *outer], repeat(False, len(opened.ids)))

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
            *_outer(partition, pa.array(ids, pa.int64()), _column(len(ids), positions or (), pa.int64())),
        ]
        if self._form.message_format == "inlongmsg":
            yield from self._unpacked(partition, ids, bodies, attributes, outer)
        else:
            yield self._batch([pa.array(bodies, pa.binary()), *outer], (found is _KEPT for found in attributes))

    def _unpacked(
        self,
        partition: Partition,
        ids: Sequence[int],
        packs: Iterable[bytes],
        attributes: Sequence[Attributes],
        outer: Sequence[pa.Array],
    ) -> Iterator[pa.RecordBatch]:
        for inside in self._unpack(partition, ids, packs, attributes):
            yield self._batch(inside.columns(outer), inside.corrupt)

    def _batch(self, columns: list[pa.Array], corrupt: Iterable[bool]) -> pa.RecordBatch:
        if self._form.corrupt == "keep":
            columns.append(pa.array(list(corrupt), pa.bool_()))
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
                        size += _ATTRIBUTE_OBJECT_BYTES * len(found.own)
                except ProtocolError as error:
                    body = payload
                    found = self._bad(partition, message.messageId, str(error))
            size += len(payload)
            bodies.append(body)
            attributes.append(found)
        return bodies, attributes

    def _unpack(
        self,
        partition: Partition,
        ids: Sequence[int],
        packs: Iterable[bytes],
        attributes: Sequence[Attributes],
    ) -> Iterator[InlongColumns]:
        """Yield the rows of `packs` in at least one batch, which may be empty."""
        rows = InlongColumns(ROWS, BYTES)
        has_yielded = False
        for number, (message_id, pack, found) in enumerate(zip(ids, packs, attributes, strict=True)):
            each = _size(found)
            index = 0
            for head, bodies in self._open(partition, message_id, pack, found, each):
                taken = 0
                while taken < len(bodies):
                    if rows.is_full:
                        yield rows
                        rows, has_yielded = InlongColumns(ROWS, BYTES), True
                    count = rows.add(number, index, head, bodies[taken:] if taken else bodies, each)
                    taken, index = taken + count, index + count
        if rows.corrupt or not has_yielded:
            yield rows

    def _open(
        self, partition: Partition, message_id: int, pack: bytes, found: Attributes, each: int
    ) -> Iterable[tuple[Head | None, list[bytes]]]:
        """Return the messages of a pack. A corrupt pack that is kept is returned itself, without a head."""
        if found is _KEPT:
            return [(None, [pack])]
        try:
            return unpack(pack, self._form.zone, self._form.max_unpacked, each)
        except ProtocolError as error:
            return [(None, [pack])] if self._bad(partition, message_id, str(error)) is _KEPT else ()

    def _bad(self, partition: Partition, message_id: int, reason: str) -> Attributes:
        what = f"message {message_id}: {reason}"
        if self._form.corrupt == "fail":
            raise ProtocolError(f"{partition}: {what}. Set option 'corruptMessages' to 'skip' or 'keep' to read on")
        self._counts[partition] = self._counts.get(partition, 0) + 1
        self._examples.setdefault(partition, what)
        return _KEPT if self._form.corrupt == "keep" else _SKIPPED

    def _is_wanted(self, topic: str, attributes: list[Attributes]) -> list[bool] | None:
        """Return which messages are wanted, None for all. One that is kept is wanted, because its type is unknown."""
        types = self._form.msg_types.get(topic)
        if types is not None:
            return [found is _KEPT or (found is not _SKIPPED and found.msg_type in types) for found in attributes]
        if self._form.corrupt == "skip" and any(found is _SKIPPED for found in attributes):
            return [found is not _SKIPPED for found in attributes]
        return None


def _size(attributes: Attributes) -> int:
    """Return about how many bytes of a row the attributes take."""
    own = sum(len(key) + len(value) + ATTRIBUTE_BYTES for key, value in (attributes.own or {}).items())
    return own + len(attributes.msg_type or "")


def _attribute_columns(attributes: Sequence[Attributes]) -> list[pa.Array]:
    """Return the columns `attributes`, `msg_type` and `msg_time`."""
    if all(found is NO_ATTRIBUTES for found in attributes):
        return _no_attributes(len(attributes))
    return [
        pa.array([found.own and list(found.own.items()) for found in attributes], ATTRIBUTES),
        pa.array([found.msg_type for found in attributes], pa.string()),
        pa.array([found.msg_time for found in attributes], TIMESTAMP),
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
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.broker_id, pa.int32()), count),
        pa.repeat(pa.scalar(partition.partition_id, pa.int32()), count),
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


def _column(count: int, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind) if values else pa.nulls(count, kind)


class InlongColumns:
    """The rows of one batch, `most_rows` or about `most_bytes` with their repeated values. Each message of a pack is a
    row, and so is a corrupt pack that is kept."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self.corrupt: list[bool] = []
        self._rows_left = most_rows
        self._bytes_left = most_bytes
        self._bodies: list[bytes] = []
        self._packs: list[int] = []
        self._indexes: list[int | None] = []
        self._heads: list[Head] = []
        self._head_of: list[int | None] = []

    @property
    def is_full(self) -> bool:
        return self._rows_left <= 0 or self._bytes_left <= 0

    def add(self, pack: int, index: int, head: Head | None, bodies: Sequence[bytes], each: int) -> int:
        """Add messages of pack number `pack`, the first at `index` in it, until the batch is full. Return how many.

        A row repeats `each` bytes of the outer columns. Without a head the pack is corrupt.
        """
        cost = MESSAGE_BYTES + each
        if head is not None:
            if not self._heads or self._heads[-1] is not head:
                self._heads.append(head)
                self._bytes_left -= head.text + _ATTRIBUTE_OBJECT_BYTES * len(head.attributes)
            cost += head.text + ATTRIBUTE_BYTES * len(head.attributes)
        count = len(bodies)
        size = cost * count + sum(map(len, bodies))
        if count > self._rows_left or size > self._bytes_left:
            bodies = bodies[: max(1, self._rows_left)]
            sizes = list(accumulate(cost + len(body) for body in bodies))
            count = min(len(bodies), bisect_left(sizes, self._bytes_left) + 1)  # with the row that reaches the limit
            bodies, size = bodies[:count], sizes[count - 1]
        self._bodies += bodies
        self._packs += [pack] * count
        self.corrupt += [head is None] * count
        self._head_of += [None if head is None else len(self._heads) - 1] * count
        self._indexes += range(index, index + count) if head is not None else [None] * count
        self._rows_left -= count
        self._bytes_left -= size
        return count

    def columns(self, outer: Sequence[pa.Array]) -> list[pa.Array]:
        """Return all columns but `corrupt`. `outer` are the packs' own columns; a row repeats its pack's values."""
        packs = pa.array(self._packs, pa.int64())
        heads = pa.array(self._head_of, pa.int64())

        def of_heads(values: list[Any], kind: pa.DataType) -> pa.Array:
            return pa.array(values, kind).take(heads)

        return [
            pa.array(self._bodies, pa.binary()),
            *(column.take(packs) for column in outer),
            of_heads([head.group for head in self._heads], pa.string()),
            of_heads([head.stream for head in self._heads], pa.string()),
            of_heads([head.time for head in self._heads], TIMESTAMP),
            of_heads([list(head.attributes.items()) for head in self._heads], ATTRIBUTES),
            pa.array(self._indexes, pa.int32()),
        ]
