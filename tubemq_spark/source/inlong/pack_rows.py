# SPDX-License-Identifier: Apache-2.0
"""Rows of the packs of InLong's DataProxy, without a Python object for each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, repeat

import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.message import Attributes
from tubemq_spark.source.arrow_arrays import binaries, maps, numbers, texts
from tubemq_spark.source.inlong.inlongmsg import ATTRIBUTE_BYTES, MESSAGE_BYTES, Head, unpack
from tubemq_spark.source.message_opener import Opened
from tubemq_spark.source.row_format import ATTRIBUTE_OBJECT_BYTES, BYTES, KEPT, ROWS
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP
from tubemq_spark.source.value_format import Columns, IsKept, ValueFormat


class PackFormat(ValueFormat):
    """The formats `inlongmsg` and `inlong`: each message of a pack is a row."""

    opens_bodies = True

    def rows(self, opened: Opened, columns: Columns, names: Sequence[str], is_kept: IsKept) -> Iterator[Columns]:
        """Yield at least one batch. Raise as `is_kept`."""
        for rows in self._rows(opened, is_kept):
            yield rows.columns(names, columns)

    def _rows(self, opened: Opened, is_kept: IsKept) -> Iterator[PackRows]:
        rows = PackRows(ROWS, BYTES)
        has_yielded = False
        packs = (body.as_py() for body in opened.bodies)
        for number, (message_id, pack, found) in enumerate(
            zip(opened.ids.to_pylist(), packs, opened.attributes(), strict=True)
        ):
            each = _size(found)
            index = 0
            for head, bodies in self._messages(message_id, pack, found, each, is_kept):
                taken = 0
                while taken < len(bodies):
                    if rows.is_full:
                        yield rows
                        rows, has_yielded = PackRows(ROWS, BYTES), True
                    count = rows.add(number, index, head, bodies[taken:] if taken else bodies, each)
                    taken, index = taken + count, index + count
        if len(rows) or not has_yielded:
            yield rows

    def _messages(
        self, message_id: int, pack: bytes, found: Attributes, each: int, is_kept: IsKept
    ) -> Iterable[tuple[Head | None, pa.BinaryArray]]:
        """Return the messages of a pack. A corrupt pack that is kept is returned itself, without a head."""
        if found is not KEPT:
            try:
                if self.form.message_format == "inlongmsg":
                    return unpack(pack, self.form.zone, self.form.max_unpacked, each)
                from tubemq_spark.source.inlong.message_objs import open_message  # only this format needs its protobuf

                return open_message(
                    pack, found.own or {}, self.form.zone, self.form.max_unpacked, each, self.form.default_format
                )
            except ProtocolError as error:
                if not is_kept(message_id, f"{error}{self._hint(found)}"):
                    return ()
        return [(None, binaries([pack]))]

    def _hint(self, found: Attributes) -> str:
        is_marked = not {"version", "msgEnType"}.isdisjoint(found.own or ())
        if is_marked is (self.form.message_format == "inlong"):
            return ""
        if is_marked:
            return "; with option 'messageFormat' inlong it is opened as its attribute version or msgEnType says"
        return ", and it has no attribute version or msgEnType; option 'inlongDefaultFormat' says what it is then"


def _size(attributes: Attributes) -> int:
    """Return about how many bytes of a row the attributes take."""
    own = sum(len(key) + len(value) + ATTRIBUTE_BYTES for key, value in (attributes.own or {}).items())
    return own + len(attributes.msg_type or "")


class PackRows:
    """The rows of one batch, `most_rows` or about `most_bytes` with their repeated values. Each message of a pack is a
    row, and so is a corrupt pack that is kept."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._rows_left = most_rows
        self._bytes_left = most_bytes
        self.heads: list[Head] = []
        self._indexes = array("i")
        # Runs of rows with the same pack and head
        self._bodies: list[pa.BinaryArray] = []
        self._packs: list[int] = []
        self._runs_head: list[int | None] = []

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def is_full(self) -> bool:
        return self._rows_left <= 0 or self._bytes_left <= 0

    def add(self, pack: int, index: int, head: Head | None, bodies: pa.BinaryArray, each: int) -> int:
        """Add messages of pack number `pack`, the first at `index` in it, until the batch is full. Return how many.

        A row repeats `each` bytes of the outer columns. Without a head the pack is corrupt.
        """
        cost = MESSAGE_BYTES + each
        if head is not None:
            if not self.heads or self.heads[-1] is not head:
                self.heads.append(head)
                self._bytes_left -= head.text + ATTRIBUTE_OBJECT_BYTES * len(head.attributes)
            cost += head.text + ATTRIBUTE_BYTES * len(head.attributes)
        count = len(bodies)
        size = cost * count + bodies.nbytes
        if count > self._rows_left or size > self._bytes_left:
            bodies = bodies[: max(1, self._rows_left)]
            sizes = list(accumulate(cost + length for length in pc.binary_length(bodies).to_pylist()))
            count = min(len(bodies), bisect_left(sizes, self._bytes_left) + 1)  # with the row that reaches the limit
            bodies, size = bodies[:count], sizes[count - 1]
        self._bodies.append(bodies)
        self._packs.append(pack)
        self._runs_head.append(None if head is None else len(self.heads) - 1)
        self._indexes.extend(range(index, index + count))
        self._rows_left -= count
        self._bytes_left -= size
        return count

    def columns(self, names: Sequence[str], outer: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return columns of the rows. `outer` are the packs' own: a row repeats the values of its pack."""
        packs = self._repeated(self._packs)
        return {name: _MAKERS[name](self) if name in _MAKERS else outer[name].take(packs) for name in names}

    @cached_property
    def head_of(self) -> pa.Int32Array:
        """The index of each row's head, null for a corrupt pack."""
        return self._repeated(self._runs_head)

    def each(self, values: pa.Array) -> pa.Array:
        """Return the value of each row; `values` has one for each head."""
        return values.take(self.head_of)

    def bodies(self) -> pa.BinaryArray:
        return pa.concat_arrays(self._bodies) if self._bodies else binaries([])

    def indexes(self) -> pa.Int32Array:
        known = pa.Array.from_buffers(pa.int32(), len(self), [None, pa.py_buffer(self._indexes)])
        return pc.if_else(self.head_of.is_null(), pa.nulls(len(self), pa.int32()), known)

    def _repeated(self, values: Sequence[int | None]) -> pa.Int32Array:
        """Return the run's value for each row."""
        counts = list(map(len, self._bodies))
        if None in values:
            return numbers(chain.from_iterable(map(repeat, values, counts)), pa.int32())
        repeated = array("i")
        for value, count in zip(values, counts, strict=True):
            repeated += array("i", [value or 0]) * count
        return pa.Array.from_buffers(pa.int32(), len(repeated), [None, pa.py_buffer(repeated)])


_MAKERS: Mapping[str, Callable[[PackRows], pa.Array]] = {
    "value": lambda rows: rows.bodies(),
    "inlong_group": lambda rows: rows.each(texts([head.group for head in rows.heads])),
    "inlong_stream": lambda rows: rows.each(texts([head.stream for head in rows.heads])),
    "inlong_time": lambda rows: rows.each(numbers([head.time for head in rows.heads], TIMESTAMP)),
    "inlong_attributes": lambda rows: rows.each(maps([head.attributes for head in rows.heads], ATTRIBUTES)),
    "inlong_index": lambda rows: rows.indexes(),
    "corrupt": lambda rows: rows.head_of.is_null(),
}
