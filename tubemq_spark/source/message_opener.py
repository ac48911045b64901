# SPDX-License-Identifier: Apache-2.0
"""Opens the messages of replies: finds their attributes and bodies, and the messages that are corrupt.

`open_messages` opens replies by columns, without a Python object for each message: equal headers of attributes are
decoded once, and Arrow copies the bodies out of the replies. `MessageOpener._one_by_one` is the specification. It opens
the replies for which `open_messages` returns None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import (
    ATTRIBUTES_FLAG,
    CHECK_SUM_MASK,
    COMPRESSION_KEY,
    MAX_ATTRIBUTES,
    NO_ATTRIBUTES,
    Attributes,
    decode_attributes,
    split_payload,
)
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source import arrow_arrays
from tubemq_spark.source.arrow_arrays import gathered, indexes, int64s
from tubemq_spark.source.attribute_columns import AttributeColumns, columns_of, count_attributes, decode_headers
from tubemq_spark.source.row_format import ATTRIBUTE_OBJECT_BYTES, BYTES, KEPT, ROWS, RowFormat

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

ATTRIBUTE_BYTES = 32  # memory that an attribute takes in a row besides its text
_PART_BYTES, _MOST_FOR_PARTS = 100, 32 << 20  # memory that `decode_headers` takes for an attribute, and for all
_MAX_ROWS, _MAX_BYTES = 2 * ROWS, 2 * BYTES  # messages that were gathered up to ROWS or BYTES make one batch
_SHORT_HEADER = 256  # bytes; longer headers are not cached, so that producers cannot make memory grow
_PREFIX = 4  # bytes of the attributes' size
_COMPRESSION_KEY = COMPRESSION_KEY.encode()


class Opened(NamedTuple):
    """Messages of one partition. Message n has the attributes of header `numbers[n]`. `kept` says for each header
    whether its messages are corrupt and kept as they are."""

    ids: pa.Array
    positions: pa.Array
    bodies: pa.Array
    headers: AttributeColumns
    kept: Sequence[bool]
    numbers: pa.Array

    def only(self, msg_types: Collection[str]) -> Opened:
        """Return the messages of these types, and those that are kept, whose type is unknown."""
        of_headers = zip(self.headers.msg_type.to_pylist(), self.kept, strict=True)
        wanted = [is_kept or msg_type in msg_types for msg_type, is_kept in of_headers]
        if all(wanted):
            return self
        chosen = arrow_arrays.booleans(wanted).take(self.numbers)
        return self._replace(
            **{name: getattr(self, name).filter(chosen) for name in ("ids", "positions", "bodies", "numbers")}
        )

    def each(self, values: pa.Array) -> pa.Array:
        """Return the value of each message; `values` has one for each header."""
        if values.null_count == len(values):
            return pa.nulls(len(self.numbers), values.type)
        return values.take(self.numbers)

    def attributes(self) -> list[Attributes]:
        """Return the attributes of each message, without the time."""
        headers = zip(self.headers.own.to_pylist(), self.headers.msg_type.to_pylist(), self.kept, strict=True)
        found = [KEPT if is_kept else Attributes(own and dict(own), msg_type) for own, msg_type, is_kept in headers]
        return [found[number] for number in self.numbers.to_pylist()]


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


class MessageOpener:
    """Opens the messages of one partition, and counts those that are corrupt."""

    def __init__(self, form: RowFormat, partition: Partition, *, needs_attributes: bool, needs_bodies: bool) -> None:
        """Attributes and bodies that are not needed may be missing."""
        self._form = form
        self._partition = partition
        self._types = form.msg_types.get(partition.topic)
        self._needs_attributes = needs_attributes or self._types is not None
        self._needs_bodies = needs_bodies
        self._corrupt = 0
        self._example = ""  # the first corrupt message

    def open(self, batches: Sequence[FetchedBatch]) -> Iterator[Opened]:
        """Yield the messages of fetched batches that have a wanted type, as many together as make an Arrow batch.

        Raise as `keeps` for a wrong check sum, attribute header or compressed body. Raise `ConfigError` for a codec
        that this process does not have.
        """
        for _, same_kind in groupby(batches, lambda batch: isinstance(batch.messages, MessageColumns)):
            for opened in self._open(list(same_kind)):
                yield opened if self._types is None else opened.only(self._types)

    def _open(self, batches: Sequence[FetchedBatch]) -> Iterator[Opened]:
        opened = open_messages(
            batches,
            self._form.zone,
            _MAX_BYTES,
            needs_attributes=self._needs_attributes,
            needs_bodies=self._needs_bodies,
        )
        if opened is not None:
            yield opened
        elif len(batches) > 1 and isinstance(batches[0].messages, MessageColumns):  # one may be the reason
            for batch in batches:
                yield from self._open([batch])
        else:
            yield from self._one_by_one(batches)

    def _one_by_one(self, batches: Sequence[FetchedBatch]) -> Iterator[Opened]:
        messages: list[Any] = [message for batch in batches for message in batch.messages]
        positions = position_column(batches)
        start = 0
        while start < len(messages):
            bodies, attributes = self._decode(messages, start)
            is_left = [found is not _SKIPPED for found in attributes]
            left = [found for found in attributes if found is not _SKIPPED]
            ids = arrow_arrays.numbers([one.messageId for one in messages[start : start + len(is_left)]], pa.int64())
            chosen = arrow_arrays.booleans(is_left)
            yield Opened(
                ids.filter(chosen),
                positions.slice(start, len(ids)).filter(chosen),
                arrow_arrays.binaries(bodies),
                columns_of(left),
                [found is KEPT for found in left],
                arrow_arrays.numbers(range(len(left)), pa.int32()),
            )
            start += len(ids)

    def _decode(self, messages: Sequence[Any], start: int) -> tuple[list[bytes], list[Attributes]]:
        """Return the attributes of messages from `start` on: at least one, and as many as fit a batch. And return the
        bodies of those that are not skipped."""
        size = 0
        bodies: list[bytes] = []
        attributes: list[Attributes] = []
        for message in messages[start : start + _MAX_ROWS]:
            if size >= _MAX_BYTES:
                break
            body = payload = message.payLoadData
            found = NO_ATTRIBUTES
            try:
                if crc32(payload) & CHECK_SUM_MASK != message.checkSum:
                    raise ProtocolError(f"its check sum is {message.checkSum}, not that of its bytes")
                if message.flag:
                    header, body = split_payload(payload, message.flag)
                    if header:
                        found = (_decode_short if len(header) <= _SHORT_HEADER else _decode)(header, self._form.zone)
                    if type(found) is _Compressed and (self._types is None or found.msg_type in self._types):
                        body = decompress(found.codec, body, self._form.max_unpacked)
                        size += len(body)
                    if found.own is not None:
                        size += ATTRIBUTE_OBJECT_BYTES * len(found.own)
            except ProtocolError as error:
                body = payload
                found = KEPT if self.keeps(message.messageId, str(error)) else _SKIPPED
            size += len(payload)
            attributes.append(found)
            if found is not _SKIPPED:
                bodies.append(body)
        return bodies, attributes

    def keeps(self, message_id: int, reason: str) -> bool:
        """Count a corrupt message, and return whether it becomes a row as it is. Raise `ProtocolError`, which names it,
        unless the row format skips or keeps such messages."""
        what = f"message {message_id}: {reason}"
        if self._form.corrupt == "fail":
            raise ProtocolError(
                f"{self._partition}: {what}. Set option 'corruptMessages' to 'skip' or 'keep' to read on"
            )
        COUNTERS().add(Count.CORRUPT)
        self._corrupt += 1
        self._example = self._example or what
        return self._form.corrupt == "keep"

    def corrupt(self) -> str:
        """Return a sentence about the messages that were corrupt, or ""."""
        if not self._corrupt:
            return ""
        done = "skipped" if self._form.corrupt == "skip" else "kept"
        return f"{self._partition}: {self._corrupt} corrupt messages were {done}; the first: {self._example}"


def open_messages(
    batches: Sequence[FetchedBatch],
    zone: tzinfo,
    most: int,
    *,
    needs_attributes: bool = True,
    needs_bodies: bool = True,
) -> Opened | None:
    """Return the opened messages, with `$msgTime$` read in `zone`.

    Return None for replies that did not come as columns, a wrong check sum, a header that is not whole or that
    `decode_headers` declines, and for more than `most` bytes of payloads and attributes. Attributes and bodies that are
    not needed may be missing.
    """
    columns = [batch.messages for batch in batches if isinstance(batch.messages, MessageColumns)]
    if not columns or len(columns) < len(batches) or not all(reply.intact.all() for reply in columns):
        return None
    parts = []
    for reply in columns:
        if (begin := _bodies_begin(reply)) is None:
            return None
        parts.append((reply, begin))
    headers, numbers = arrow_arrays.binaries([b""]), arrow_arrays.zeros(sum(map(len, columns)))
    has_headers = any(reply.flags.any() for reply in columns)
    if has_headers and (needs_attributes or not all(_is_plain(*part) for part in parts)):
        each = [(reply.data, np.minimum(reply.starts + _PREFIX, begin), begin) for reply, begin in parts]
        encoded = gathered(each).dictionary_encode()
        headers, numbers = encoded.dictionary, encoded.indices
    counts = count_attributes(headers)
    memory = ATTRIBUTE_BYTES * counts[indexes(numbers)].sum() + sum(reply.size for reply in columns)
    if memory > most or _PART_BYTES * counts.sum() > _MOST_FOR_PARTS or counts.max(initial=0) > MAX_ATTRIBUTES:
        return None
    found = decode_headers(headers, zone)
    if found is None:
        return None
    ids = int64s(np.concatenate([reply.ids for reply in columns]))
    if needs_bodies:
        bodies = gathered([(reply.data, begin, reply.ends) for reply, begin in parts])
    else:
        bodies = pa.nulls(len(ids), pa.binary())
    return Opened(ids, position_column(batches), bodies, found, [False] * len(headers), numbers)


def _is_plain(reply: MessageColumns, begin: NDArray[int64]) -> bool:
    """Return True if no header can name a codec or have too many attributes: nobody needs to decode them."""
    # `rfind` skips most of the bytes, `in` reads all. A body with such a text only costs time.
    return bool((begin - reply.starts <= MAX_ATTRIBUTES).all()) and reply.data.rfind(_COMPRESSION_KEY) < 0


def _bodies_begin(reply: MessageColumns) -> NDArray[int64] | None:
    """Return where the bodies begin: behind the headers of messages with attributes, see `message.split_payload`."""
    (flagged,) = np.nonzero(reply.flags & ATTRIBUTES_FLAG)
    if not len(flagged):
        return reply.starts
    starts, ends = reply.starts[flagged], reply.ends[flagged]
    if (ends - starts).min() < _PREFIX:
        return None
    lengths = np.ndarray((len(reply.data) - _PREFIX + 1,), ">i4", reply.data, 0, (1,))  # from each place on
    sizes = lengths[starts].astype(np.int64)
    begins = reply.starts.copy()
    begins[flagged] += np.where(sizes < 0, 0, sizes + _PREFIX)
    return None if (begins > reply.ends).any() else begins


def position_column(batches: Sequence[FetchedBatch]) -> pa.Array:
    """Return the positions of the messages of `batches`, null where the protocol does not determine them."""
    parts = []
    for batch in batches:
        known = batch.positions
        if known is None:
            parts.append(pa.nulls(len(batch.messages), pa.int64()))
        elif isinstance(known, range):  # as long as no entry is empty
            parts.append(int64s(np.arange(known.start, known.stop, known.step)))
        else:
            parts.append(arrow_arrays.numbers(known, pa.int64()))
    return pa.concat_arrays(parts)
