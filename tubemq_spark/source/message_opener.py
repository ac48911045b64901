# SPDX-License-Identifier: Apache-2.0
"""Opens the messages of replies by columns: finds their attributes and bodies without a Python object for each message.

Each distinct header of attributes is decoded once. Arrow copies the bodies out of the replies. `RowMaker` has the
specification: it opens messages one by one, and also those for which `open_messages` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, COMPRESSION_KEY, MAX_ATTRIBUTES, NO_ATTRIBUTES, Attributes
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.source import arrow_arrays

if TYPE_CHECKING:
    from numpy import int32, int64
    from numpy.typing import NDArray

ATTRIBUTE_BYTES = 32  # memory that an attribute takes in a row besides its text
_OBJECT_BYTES = 200  # of an attribute as Python objects, for each distinct header
_PREFIX = 4  # bytes of the attributes' size
_COMPRESSION_KEY = COMPRESSION_KEY.encode()


class Opened(NamedTuple):
    """Messages of one partition. Message n has the attributes `distinct[numbers[n]]`."""

    ids: pa.Array
    positions: pa.Array
    bodies: pa.Array
    distinct: Sequence[Attributes]
    numbers: pa.Array

    def only(self, is_wanted: Callable[[Attributes], bool]) -> Opened:
        """Return the messages whose attributes are wanted."""
        wanted = [is_wanted(found) for found in self.distinct]
        if all(wanted):
            return self
        kept = arrow_arrays.booleans(wanted).take(self.numbers)
        ids, positions, bodies, numbers = (
            column.filter(kept) for column in (self.ids, self.positions, self.bodies, self.numbers)
        )
        return Opened(ids, positions, bodies, self.distinct, numbers)

    def each(self, values: pa.Array) -> pa.Array:
        """Return the value of each message; `values` has one for each of `distinct`."""
        if values.null_count == len(values):
            return pa.nulls(len(self.numbers), values.type)
        return values.take(self.numbers)

    def attributes(self) -> list[Attributes]:
        """Return the attributes of each message."""
        return [self.distinct[number] for number in self.numbers.to_pylist()]


def open_messages(
    batches: Sequence[FetchedBatch],
    decode: Callable[[bytes], Attributes | None],
    most: int,
    *,
    needs_attributes: bool = True,
    needs_bodies: bool = True,
) -> Opened | None:
    """Return the opened messages. `decode` returns the attributes in a header, None if the message needs more work.

    Return None for replies that did not come as columns, a wrong check sum, a header that is not whole or that `decode`
    declines, and for more than `most` bytes of payloads and attributes. Attributes and bodies that are not needed may
    be missing.
    """
    columns = [batch.messages for batch in batches if isinstance(batch.messages, MessageColumns)]
    if not columns or len(columns) < len(batches) or not all(reply.intact.all() for reply in columns):
        return None
    begins = []
    for reply in columns:
        if (begin := _bodies_begin(reply)) is None:
            return None
        begins.append(begin)
    parts = list(zip(columns, begins, strict=True))
    distinct_headers, numbers = [b""], arrow_arrays.zeros(sum(map(len, columns)))
    if any(reply.flags.any() for reply in columns):
        headers = pa.concat_arrays([_slices(reply.data, reply.starts, begin) for reply, begin in parts])
        if needs_attributes or not _are_plain(headers):
            encoded = headers.dictionary_encode()
            distinct_headers, numbers = encoded.dictionary.to_pylist(), encoded.indices
    attributes = np.array([header.count(b",") + 1 for header in distinct_headers], np.int64)
    # Also bounds the number of attributes in one header, which `split_payload` limits.
    memory = _OBJECT_BYTES * attributes.sum() + ATTRIBUTE_BYTES * attributes[_indexes(numbers)].sum()
    if memory + sum(reply.size for reply in columns) > most:
        return None
    distinct = []
    for header in distinct_headers:
        found = decode(header[_PREFIX:]) if len(header) > _PREFIX else NO_ATTRIBUTES
        if found is None:
            return None
        distinct.append(found)
    ids = _int64(np.concatenate([reply.ids for reply in columns]))
    if needs_bodies:
        bodies = pa.concat_arrays([_slices(reply.data, begin, reply.ends) for reply, begin in parts])
    else:
        bodies = pa.nulls(len(ids), pa.binary())
    return Opened(ids, position_column(batches), bodies, distinct, numbers)


def _are_plain(headers: pa.BinaryArray) -> bool:
    """Return True if no header can name a codec or have too many attributes: nobody needs to decode them."""
    _, ends, data = headers.buffers()
    sizes = np.diff(np.frombuffer(ends, np.int32, len(headers) + 1))
    # `rfind` skips most of the bytes, `in` reads all.
    return bool((sizes <= MAX_ATTRIBUTES).all()) and data.to_pybytes().rfind(_COMPRESSION_KEY) < 0


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
            parts.append(_int64(np.arange(known.start, known.stop, known.step)))
        else:
            parts.append(arrow_arrays.numbers(known, pa.int64()))
    return pa.concat_arrays(parts)


def _indexes(numbers: pa.Int32Array) -> NDArray[int32]:
    # `to_numpy` imports pandas, as `arrow_arrays` explains.
    return np.frombuffer(numbers.buffers()[1], np.int32, len(numbers), 4 * numbers.offset)


def _int64(values: NDArray[int64]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _slices(data: bytes, starts: NDArray[int64], ends: NDArray[int64]) -> pa.BinaryArray:
    """Return `data[starts[n]:ends[n]]` for each n; they follow each other in `data`, with gaps."""
    count = max(0, 2 * len(starts) - 1)  # every second element is a gap
    bounds = np.zeros(max(1, 2 * len(starts)), np.int32)
    bounds[: 2 * len(starts) : 2], bounds[1::2] = starts, ends
    together = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return together.take(_int64(np.arange(0, count, 2)))
