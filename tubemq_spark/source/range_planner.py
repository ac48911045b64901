# SPDX-License-Identifier: Apache-2.0
"""Range planner: finds what the stores have lost, and divides ranges among tasks.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions

T = TypeVar("T")

Ranges = Mapping[Partition, tuple[int, int]]
"""Start and end of what is read of each partition."""

_MAX_SHARED_TASKS = 64  # partitions with little to read share at most that many tasks


def lost_tails(reached: Positions, offered: Positions, log_ends: Positions) -> dict[Partition, DataLossError]:
    """Return a loss for each partition that goes on, at `offered`, before the position that the query has `reached`."""
    losses: dict[Partition, DataLossError] = {}
    for partition, asked in reached.items():
        at = offered.get(partition, asked)
        if at >= asked:
            continue
        is_short = log_ends[partition] <= at
        found = f"the store ends at {log_ends[partition]}" if is_short else f"the store has other messages from {at} on"
        text = (
            f"{partition}: {found}, but the query has read up to {asked}: the broker lost [{at}, {asked}) after it was "
            "read and uses the positions for other messages, the topic was created again, or the checkpoint belongs to "
            "another cluster"
        )
        losses[partition] = loss_of(partition, text, asked=asked, offered=at)
    return losses


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
