"""The messages inside of packs as columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tubemq_spark.source.inlong import A_MESSAGE, AN_ENTRY, Head
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP

_A_HEAD_ENTRY = 200  # bytes of an attribute of a head, while it is a Python object


class InlongColumns:
    """Gathers the rows of one batch: each message inside of a pack is one, and so is a pack that is kept though it is
    corrupt. It `is_full` when its rows are `most_rows`, or take about `most_bytes`, with what they repeat."""

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
        """Messages of the pack that is number `pack` of its outer columns, of which a row repeats `each` bytes; `index`
        is the place of the first in its pack. Without a head they are corrupt. Returns how many it took: one at least,
        and no more once it is full."""
        cost = A_MESSAGE + each
        if head is not None:
            if not self._heads or self._heads[-1] is not head:
                self._heads.append(head)
                self._bytes_left -= head.text + _A_HEAD_ENTRY * len(head.attributes)
            cost += head.text + AN_ENTRY * len(head.attributes)
        count = len(bodies)
        size = cost * count + sum(map(len, bodies))
        if count > self._rows_left or size > self._bytes_left:
            bodies = bodies[: max(1, self._rows_left)]
            sizes = list(accumulate(cost + len(body) for body in bodies))
            count = min(len(bodies), bisect_left(sizes, self._bytes_left) + 1)  # with the one that reaches the limit
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
        """All columns but `corrupt`, for one batch; `outer` are the packs' own, each value repeated for each row."""
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
