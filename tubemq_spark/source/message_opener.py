# SPDX-License-Identifier: Apache-2.0
"""Opens the messages of replies by columns: finds their attributes and bodies without a Python object for each message.

Equal headers of attributes are decoded once. Arrow copies the bodies out of the replies. `RowMaker` has the
specification: it opens messages one by one, and also those for which `open_messages` returns None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, COMPRESSION_KEY, MAX_ATTRIBUTES, Attributes
from tubemq_spark.protocol.message_columns import MessageColumns
from tubemq_spark.source import arrow_arrays
from tubemq_spark.source.arrow_arrays import indexes, int64s, slices
from tubemq_spark.source.attribute_columns import AttributeColumns, count_attributes, decode_headers
from tubemq_spark.source.row_format import KEPT

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

ATTRIBUTE_BYTES = 32  # memory that an attribute takes in a row besides its text
_PART_BYTES, _MOST_FOR_PARTS = 100, 32 << 20  # memory that `decode_headers` takes for an attribute, and for all
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
        ids, positions, bodies, numbers = (
            column.filter(chosen) for column in (self.ids, self.positions, self.bodies, self.numbers)
        )
        return Opened(ids, positions, bodies, self.headers, self.kept, numbers)

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
        each = [slices(reply.data, np.minimum(reply.starts + _PREFIX, begin), begin) for reply, begin in parts]
        encoded = pa.concat_arrays(each).dictionary_encode()
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
        bodies = pa.concat_arrays([slices(reply.data, begin, reply.ends) for reply, begin in parts])
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
