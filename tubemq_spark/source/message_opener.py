# SPDX-License-Identifier: Apache-2.0
"""Opens the messages of replies by columns: compares their check sums, and finds their attributes and bodies.

A call for each message is what makes rows slow. Here only two run for each: one slices its body, one computes its check
sum. Each distinct header of attributes is decoded once, and its check sum is computed once. `RowMaker.batches` is the
specification: it opens messages one by one, and also those for which `open_messages` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, NO_ATTRIBUTES, Attributes
from tubemq_spark.protocol.message_columns import MessageColumns

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray
with suppress(ImportError):  # then no reply is read by columns
    import numpy as np

ATTRIBUTE_BYTES = 32  # memory that an attribute takes in a row besides its text
_OBJECT_BYTES = 200  # of an attribute as Python objects, for each distinct header
_PREFIX = 4  # bytes of the attributes' size


class Opened(NamedTuple):
    """Messages whose check sums are right. Message n has the attributes `distinct[numbers[n]]`."""

    ids: NDArray[int64]
    bodies: list[bytes]
    sizes: NDArray[int64]  # of the bodies
    distinct: list[Attributes]
    numbers: NDArray[int64]

    def only(self, wanted: NDArray[Any]) -> Opened:
        """Return the messages for which `wanted` is True."""
        bodies = list(compress(self.bodies, wanted.tolist()))
        return Opened(self.ids[wanted], bodies, self.sizes[wanted], self.distinct, self.numbers[wanted])

    def of_types(self, types: Collection[str]) -> NDArray[Any]:
        """Return for each message whether its type is one of `types`."""
        return np.array([found.msg_type in types for found in self.distinct])[self.numbers]

    def attributes(self) -> list[Attributes]:
        """Return the attributes of each message."""
        return [self.distinct[number] for number in self.numbers.tolist()]

    def values(self) -> pa.Array:
        """Return the bodies as a column of Arrow."""
        bounds = np.zeros(len(self.bodies) + 1, np.int32)
        np.cumsum(self.sizes, out=bounds[1:])
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(self.bodies))]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self.bodies), buffers)


def open_messages(
    replies: Sequence[Sequence[Any]], decode: Callable[[bytes], Attributes | None], most: int
) -> Opened | None:
    """Return the opened messages. `decode` returns the attributes in a header, None if the message needs more work.

    Return None for replies that did not come as columns, a wrong check sum, a header that is not whole or that `decode`
    declines, and for more than `most` bytes of payloads and attributes.
    """
    columns = [reply for reply in replies if isinstance(reply, MessageColumns)]
    if not columns or len(columns) < len(replies):
        return None
    begins = []
    for reply in columns:
        if (begin := _bodies_begin(reply)) is None:
            return None
        begins.append(begin)
    headers, numbers = _headers(columns, begins)
    attributes = np.array([header.count(b",") + 1 for header in headers], np.int64)
    memory = _OBJECT_BYTES * attributes.sum() + ATTRIBUTE_BYTES * attributes[numbers].sum()
    if memory + sum(reply.size for reply in columns) > most:
        return None
    distinct = []
    for header in headers:
        found = decode(header[_PREFIX:]) if len(header) > _PREFIX else NO_ATTRIBUTES
        if found is None:
            return None
        distinct.append(found)
    bodies: list[bytes] = []
    for reply, begin in zip(columns, begins, strict=True):
        data = reply.data
        bodies += [data[start:end] for start, end in zip(begin.tolist(), reply.ends.tolist(), strict=True)]
    of_headers = np.array([crc32(header) for header in headers], np.int64)[numbers]
    sums = np.fromiter(map(crc32, bodies, of_headers.tolist()), np.int64, len(bodies)) & 0x7FFFFFFF
    if (sums != np.concatenate([reply.check_sums for reply in columns])).any():
        return None
    sizes = np.concatenate([reply.ends - begin for reply, begin in zip(columns, begins, strict=True)])
    return Opened(np.concatenate([reply.ids for reply in columns]), bodies, sizes, distinct, numbers)


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


def _headers(replies: Sequence[MessageColumns], begins: Sequence[NDArray[int64]]) -> tuple[list[bytes], NDArray[int64]]:
    """Return the distinct headers with their sizes before them, and the number of each message's header."""
    parts = [slices(reply.data, reply.starts, begin) for reply, begin in zip(replies, begins, strict=True)]
    encoded = pa.concat_arrays(parts).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def position_column(batches: Sequence[FetchedBatch]) -> pa.Array:
    """Return the positions of the messages of `batches`, null where the protocol does not determine them."""
    parts = []
    for batch in batches:
        known = batch.positions
        if known is None:
            parts.append(pa.nulls(len(batch.messages), pa.int64()))
        elif isinstance(known, range):  # as long as no entry is empty
            parts.append(pa.array(np.arange(known.start, known.stop, known.step)))
        else:
            parts.append(pa.array(known, pa.int64()))
    return pa.concat_arrays(parts)


def slices(data: bytes, starts: NDArray[int64], ends: NDArray[int64]) -> pa.BinaryArray:
    """Return `data[starts[n]:ends[n]]` for each n; they follow each other in `data`, with gaps."""
    count = max(0, 2 * len(starts) - 1)  # every second element is a gap
    bounds = np.zeros(max(1, 2 * len(starts)), np.int32)
    bounds[: 2 * len(starts) : 2], bounds[1::2] = starts, ends
    together = pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return together.take(pa.array(np.arange(0, count, 2)))
