# SPDX-License-Identifier: Apache-2.0
"""Range planner: the ranges of a batch, and how tasks share them.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions

T = TypeVar("T")

Ranges = Mapping[Partition, tuple[int, int]]
"""Start and end of what is read of each partition."""

_MAX_SHARED_TASKS = 64  # partitions with little to read share at most that many tasks


def ranges(start: Positions, end: Positions) -> dict[Partition, tuple[int, int]]:
    """Return what to read of each partition that has something new. An end before its start is an accepted loss: the
    store lost its tail, and the next batch reads on from there."""
    grown = {partition: until for partition, until in end.items() if until > start.get(partition, until)}
    return {partition: (start[partition], until) for partition, until in grown.items()}


def tasks(wanted: Sequence[T], sizes: Sequence[int], per_task: int | None) -> list[tuple[T, ...]]:
    """Return the ranges of each task: one, or up to `per_task` ranges with little to read (`sizes` in index entries).
    Without `per_task`, such ranges share tasks only if there are very many."""
    small = [one for one, size in zip(wanted, sizes, strict=True) if size <= ENTRIES_PER_READ]
    alone: list[tuple[T, ...]] = [(one,) for one, size in zip(wanted, sizes, strict=True) if size > ENTRIES_PER_READ]
    if per_task is None:
        per_task = max(1, -(-len(small) // _MAX_SHARED_TASKS))
    count = -(-len(small) // per_task)
    return alone + [tuple(small[number::count]) for number in range(count)]
