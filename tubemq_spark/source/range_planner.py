"""Range planner: turns the user's bounds and the log ends into ranges of positions, and ranges into tasks. No I/O.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.option_parsers import EARLIEST, GROUP, LATEST, Bound

T = TypeVar("T")

Ranges = Mapping[Partition, tuple[int, int]]
"""Start and end of what is read of each partition."""

_MAX_SHARED_TASKS = 64  # partitions with little to read share at most that many tasks
_SMALL_RANGE = 4000  # index entries: about what one fetch reads


def needs_earliest(starting: Bound) -> bool:
    """Return True if `starting_positions` needs the earliest positions."""
    return starting == "earliest" or isinstance(starting, dict)


def starting_positions(
    starting: Bound, group_positions: Mapping[Partition, GroupPosition], earliest: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return where each partition of `group_positions` is read from.

    Raise `ConfigError` if explicit positions do not name exactly these partitions, or lie beyond the end. A position
    that retention has removed is not checked here: it may be removed at any time, and the reader reports it.
    """
    if isinstance(starting, dict):
        check_partitions("startingOffsets", starting, group_positions)
        return {
            partition: _explicit_start(partition, starting[partition], at.end, earliest[partition])
            for partition, at in group_positions.items()
        }
    if starting == "earliest":
        return {partition: earliest[partition] for partition in group_positions}
    if starting == GROUP:
        # A broker that lost its tail still reports the group's old position, which is beyond the end then.
        return {partition: min(at) for partition, at in group_positions.items()}
    return {partition: at.end for partition, at in group_positions.items()}


def ending_positions(
    ending: Bound, starts: Positions, group_positions: Mapping[Partition, GroupPosition]
) -> dict[Partition, int]:
    """Return where each partition's range ends.

    Raise `ConfigError` if explicit positions do not name exactly these partitions, or lie beyond the end or before the
    start.
    """
    if not isinstance(ending, dict):
        return {partition: at.end for partition, at in group_positions.items()}
    check_partitions("endingOffsets", ending, group_positions)
    ends: dict[Partition, int] = {}
    for partition, (_, log_end) in group_positions.items():
        position = ending[partition]
        ends[partition] = log_end if position == LATEST else position
        _check_end("endingOffsets", partition, ends[partition], log_end)
        if ends[partition] < starts[partition]:
            raise ConfigError(
                f"option 'endingOffsets' has {position} for {partition}, which lies before the start "
                f"{starts[partition]}"
            )
    return ends


def check_partitions(option: str, given: Collection[Partition], expected: Collection[Partition]) -> None:
    """Raise `ConfigError` if the explicit positions `given` do not name exactly the `expected` partitions."""
    if unknown := sorted(set(given) - set(expected)):
        raise ConfigError(
            f"option '{option}' names {', '.join(map(str, unknown))} (brokerId:topic:partitionId), which the "
            f"subscribed topics do not have: they have {', '.join(map(str, sorted(expected)))}"
        )
    if missing := sorted(set(expected) - set(given)):
        raise ConfigError(
            f"option '{option}' must name all partitions of the subscribed topics, {', '.join(map(str, missing))} "
            "(brokerId:topic:partitionId) are missing; use -2 for the earliest, -1 for the latest position"
        )


def _explicit_start(partition: Partition, position: int, log_end: int, earliest: int) -> int:
    if position == EARLIEST:
        return earliest
    if position == LATEST:
        return log_end
    _check_end("startingOffsets", partition, position, log_end)
    return position


def _check_end(option: str, partition: Partition, position: int, log_end: int) -> None:
    if position > log_end:
        raise ConfigError(
            f"option '{option}' has {position} for {partition}, which lies beyond the end of the store: {log_end}; use "
            "-1 for the latest, and check that the position is one of this cluster"
        )


def lost_tails(reached: Positions, offered: Positions, log_ends: Positions) -> list[DataLossError]:
    """Return a loss for each partition that goes on before the position that the query has `reached`: at the one of
    `offered`."""
    return [
        loss_of(
            partition,
            _lost_tail(partition, position, offered[partition], log_ends[partition]),
            asked=position,
            offered=offered[partition],
        )
        for partition, position in reached.items()
        if partition in offered and offered[partition] < position
    ]


def _lost_tail(partition: Partition, reached: int, offered: int, log_end: int) -> str:
    found = f"the store ends at {log_end}" if log_end <= offered else f"the store has other messages from {offered} on"
    return (
        f"{partition}: {found}, but the query has read up to {reached}: the broker lost [{offered}, {reached}) after "
        "it was read and uses the positions for other messages, the topic was created anew, or the checkpoint belongs "
        "to another cluster"
    )


def partition_of(loss: DataLossError) -> Partition:
    return Partition(loss.broker_id, loss.topic, loss.partition)


def ranges(start: Positions, end: Positions) -> dict[Partition, tuple[int, int]]:
    """Return what to read of each partition that has something new.

    An end before its start is an accepted loss: the store lost its tail, and the next batch reads on from there.
    """
    return {
        partition: (start[partition], until)
        for partition, until in end.items()
        if partition in start and until > start[partition]
    }


def tasks(wanted: Sequence[T], sizes: Sequence[int], per_task: int | None) -> list[tuple[T, ...]]:
    """Return the ranges of each task: one, or up to `per_task` ranges with little to read (`sizes` in index entries).
    Without `per_task`, such ranges share tasks only if there are very many."""
    small = [one for one, size in zip(wanted, sizes, strict=True) if size <= _SMALL_RANGE]
    alone: list[tuple[T, ...]] = [(one,) for one, size in zip(wanted, sizes, strict=True) if size > _SMALL_RANGE]
    if per_task is None:
        per_task = max(1, -(-len(small) // _MAX_SHARED_TASKS))
    count = -(-len(small) // per_task)
    return alone + [tuple(small[number::count]) for number in range(count)]
