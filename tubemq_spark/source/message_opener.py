# SPDX-License-Identifier: Apache-2.0
"""Opens the messages of replies by columns: finds their attributes and bodies without a Python object for each message.

Each distinct header of attributes is decoded once. Arrow copies the bodies out of the replies. `RowMaker.batches` is
the specification: it opens messages one by one, and also those for which `open_messages` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, NO_ATTRIBUTES, Attributes
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.source import arrow_arrays

if TYPE_CHECKING:
    from numpy import int32, int64
    from numpy.typing import NDArray

ATTRIBUTE_BYTES = 32  # memory that an attribute takes in a row besides its text
_OBJECT_BYTES = 200  # of an attribute as Python objects, for each distinct header
_PREFIX = 4  # bytes of the attributes' size


class Opened(NamedTuple):
    """Messages whose check sums are right. Message n has the attributes `distinct[numbers[n]]`."""

    ids: pa.Array
    bodies: pa.Array
    distinct: list[Attributes]
    numbers: pa.Array

    def only(self, types: Collection[str]) -> tuple[Opened, pa.Array]:
        """Return the messages of these types, and for each message whether it is one of them."""
        wanted = arrow_arrays.booleans([found.msg_type in types for found in self.distinct]).take(self.numbers)
        ids, bodies, numbers = (column.filter(wanted) for column in (self.ids, self.bodies, self.numbers))
        return Opened(ids, bodies, self.distinct, numbers), wanted

    def attributes(self) -> list[Attributes]:
        """Return the attributes of each message."""
        return [self.distinct[number] for number in self.numbers.to_pylist()]


def open_messages(
    replies: Sequence[Sequence[Any]], decode: Callable[[bytes], Attributes | None], most: int
) -> Opened | None:
    """Return the opened messages. `decode` returns the attributes in a header, None if the message needs more work.

    Return None for replies that did not come as columns, a wrong check sum, a header that is not whole or that `decode`
    declines, and for more than `most` bytes of payloads and attributes.
    """
    columns = [reply for reply in replies if isinstance(reply, MessageColumns)]
    if not columns or len(columns) < len(replies) or not all(reply.intact.all() for reply in columns):
        return None
    begins = []
    for reply in columns:
        if (begin := _bodies_begin(reply)) is None:
            return None
        begins.append(begin)
    parts = list(zip(columns, begins, strict=True))
    headers, numbers = _headers(parts)
    attributes = np.array([header.count(b",") + 1 for header in headers], np.int64)
    # Also bounds the number of attributes in one header, which `split_payload` limits.
    memory = _OBJECT_BYTES * attributes.sum() + ATTRIBUTE_BYTES * attributes[_indexes(numbers)].sum()
    if memory + sum(reply.size for reply in columns) > most:
        return None
    distinct = []
    for header in headers:
        found = decode(header[_PREFIX:]) if len(header) > _PREFIX else NO_ATTRIBUTES
        if found is None:
            return None
        distinct.append(found)
    ids = _int64(np.concatenate([reply.ids for reply in columns]))
    bodies = pa.concat_arrays([_slices(reply.data, begin, reply.ends) for reply, begin in parts])
    return Opened(ids, bodies, distinct, numbers)


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


def _headers(parts: Sequence[tuple[MessageColumns, NDArray[int64]]]) -> tuple[list[bytes], pa.Array]:
    """Return the distinct headers with their sizes before them, and for each message the number of its header."""
    if not any(reply.flags.any() for reply, _ in parts):
        return [b""], arrow_arrays.zeros(sum(len(reply) for reply, _ in parts))
    encoded = pa.concat_arrays([_slices(reply.data, reply.starts, begin) for reply, begin in parts]).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices


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
