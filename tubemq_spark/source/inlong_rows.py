"""The messages inside of packs as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tubemq_spark.source.inlong import Head, Inside
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP


class InlongColumns:
    """Gathers the rows of several packs: each message inside is one, and so is a pack that is kept though it is
    corrupt."""

    def __init__(self) -> None:
        self.corrupt: list[bool] = []
        self._bodies: list[bytes] = []
        self._packs: list[int] = []
        self._indexes: list[int | None] = []
        self._heads: list[Head] = []
        self._head_of: list[int | None] = []

    def add(self, pack: int, inside: Inside) -> None:
        """The messages of the pack that is number `pack` of its batch."""
        count = 0
        for head, bodies in inside:
            self._bodies += bodies
            self._head_of += [len(self._heads)] * len(bodies)
            self._heads.append(head)
            count += len(bodies)
        self._packs += [pack] * count
        self._indexes += range(count)
        self.corrupt += [False] * count

    def add_corrupt(self, pack: int, body: bytes) -> None:
        self._bodies.append(body)
        self._packs.append(pack)
        self._indexes.append(None)
        self._head_of.append(None)
        self.corrupt.append(True)

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
