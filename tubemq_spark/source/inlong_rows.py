"""Rows of InLongMsg packs: gathers their messages as Arrow columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tubemq_spark.source.inlong import ATTRIBUTE_BYTES, MESSAGE_BYTES, Head
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP

_ATTRIBUTE_OBJECT_BYTES = 200  # of an attribute of a head as Python objects


class InlongColumns:
    """The rows of one batch: each message of a pack is a row, and so is a corrupt pack that is kept.

    The batch `is_full` when it has `most_rows` rows, or when they take about `most_bytes` with their repeated values.
    """

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
        """Add messages of pack number `pack` of the outer columns, and return how many were added: at least one, and
        no more once the batch is full.

        A row repeats `each` bytes of the outer columns. `index` is the first message's place in its pack. Without a
        head the pack is corrupt.
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
