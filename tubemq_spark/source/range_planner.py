"""What to read: the user's bounds and the stores' ends as positions. Decides, asks nobody.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from tubemq_spark.client.consumer.driver_claims import GroupPosition
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.options import EARLIEST, GROUP, LATEST, Bound

T = TypeVar("T")

Ranges = Mapping[Partition, tuple[int, int]]
"""What to read of each partition, half-open."""

_MANY_TASKS = 64  # more than that are not made for partitions with little to read
_THIN = 4000  # index entries: what one fetch gets on with


def needs_earliest(starting: Bound) -> bool:
    """Whether `starting_positions` wants to know where the stores begin."""
    return starting == "earliest" or isinstance(starting, dict)


def starting_positions(
    starting: Bound, standings: Mapping[Partition, GroupPosition], earliest: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Where each partition of `standings` is read from.

    `ConfigError` when explicit positions do not name exactly these partitions or lie beyond the end. Positions that are
    not kept any more are not looked at here: who reads there finds out, at any time.
    """
    if isinstance(starting, dict):
        check_partitions("startingOffsets", starting, standings)
        return {
            partition: _explicit_start(partition, starting[partition], standing, earliest[partition])
            for partition, standing in standings.items()
        }
    if starting == "earliest":
        return {partition: earliest[partition] for partition in standings}
    if starting == GROUP:
        # A broker that lost its tail still tells the old position, which is beyond the end then.
        return {partition: min(standing) for partition, standing in standings.items()}
    return {partition: standing.end for partition, standing in standings.items()}


def ending_positions(
    ending: Bound, starts: Positions, standings: Mapping[Partition, GroupPosition]
) -> dict[Partition, int]:
    """Where each partition's range ends. `ConfigError` when explicit positions do not name exactly these partitions,
    lie beyond the end or before the start."""
    if not isinstance(ending, dict):
        return {partition: standing.end for partition, standing in standings.items()}
    check_partitions("endingOffsets", ending, standings)
    ends: dict[Partition, int] = {}
    for partition, standing in standings.items():
        position = ending[partition]
        ends[partition] = standing.end if position == LATEST else position
        _check_end("endingOffsets", partition, ends[partition], standing)
        if ends[partition] < starts[partition]:
            raise ConfigError(
                f"option 'endingOffsets' has {position} for {partition}, which lies before the start "
                f"{starts[partition]}"
            )
    return ends


def lost_tails(start: Positions, offered: Positions, ends: Positions | None = None) -> list[DataLossError]:
    """A loss for each partition that goes on before the position reached so far, at the one of `offered`. The stores
    end at `ends`, there as well when that is not said."""
    return [
        DataLossError(
            _what_was_lost(partition, position, offered[partition], (offered if ends is None else ends)[partition]),
            topic=partition.topic,
            broker_id=partition.broker_id,
            partition=partition.partition_id,
            asked=position,
            offered=offered[partition],
        )
        for partition, position in start.items()
        if partition in offered and offered[partition] < position
    ]


def _what_was_lost(partition: Partition, read: int, offered: int, end: int) -> str:
    found = f"the store ends at {end}" if end <= offered else f"the store has other messages from {offered} on"
    return (
        f"{partition}: {found}, but the query has read up to {read}: the broker lost [{offered}, {read}) after it was "
        "read and uses the positions for other messages, the topic was made anew, or the checkpoint belongs to another "
        "cluster"
    )


def entries_between(start: Positions, end: Positions) -> int:
    """How many index entries of the stores lie in the ranges; those that partitions of a store share count once."""
    return sum(high - low for low, high in _store_ranges(start, end).values()) // UNIT


def limited(
    start: Positions, ends: Positions, limit: int, served: Store | None
) -> tuple[dict[Partition, int], Store | None]:
    """Where a micro-batch of at most `limit` index entries ends, and the store that was `served` last.

    Each store gets its part in proportion to its backlog; what rounding leaves over goes round the stores, one entry
    each, from the one behind `served` on, so that none starves. The partitions of a store share its range; one that is
    ahead of the others waits for them.
    """
    stores = _store_ranges(start, ends)
    backlogs = {store: (high - low) // UNIT for store, (low, high) in sorted(stores.items()) if high > low}
    total = sum(backlogs.values())
    if total <= limit:
        return dict(ends), served
    shares = {store: backlog * limit // total for store, backlog in backlogs.items()}
    left = limit - sum(shares.values())
    waiting = [store for store, backlog in backlogs.items() if shares[store] < backlog]
    round_robin = sorted(waiting, key=lambda store: (served is not None and store <= served, store))
    for store in round_robin[:left]:
        shares[store] += 1
        served = store
    reach = {store: stores[store][0] + share * UNIT for store, share in shares.items()}
    return {
        partition: min(end, max(start.get(partition, end), reach.get(store_of(partition), end)))
        for partition, end in ends.items()
    }, served


def store_of(partition: Partition) -> Store:
    return partition.store


def _store_ranges(start: Positions, ends: Positions) -> dict[Store, tuple[int, int]]:
    """From the least position of a store's partitions to the greatest end of those that have something to read."""
    found: dict[Store, tuple[int, int]] = {}
    for partition, (low, high) in ranges(start, ends).items():
        store = store_of(partition)
        least, most = found.get(store, (low, high))
        found[store] = min(least, low), max(most, high)
    return found


def ranges(start: Positions, end: Positions) -> dict[Partition, tuple[int, int]]:
    """What to read of each partition that has something new. An end before its start is a loss that was accepted: the
    store lost its tail, and reading goes on from there with the next batch."""
    return {
        partition: (start[partition], until)
        for partition, until in end.items()
        if partition in start and until > start[partition]
    }


def tasks(wanted: Sequence[T], sizes: Sequence[int], per_task: int | None) -> list[tuple[T, ...]]:
    """Deals ranges out to tasks: one each, but for those with little to read (`sizes` in index entries) up to
    `per_task` to a task. Without `per_task` these share tasks only where there would be very many."""
    thin = [one for one, size in zip(wanted, sizes, strict=True) if size <= _THIN]
    groups: list[tuple[T, ...]] = [(one,) for one, size in zip(wanted, sizes, strict=True) if size > _THIN]
    if per_task is None:
        per_task = max(1, -(-len(thin) // _MANY_TASKS))
    count = -(-len(thin) // per_task)
    return groups + [tuple(thin[number::count]) for number in range(count)]


def _explicit_start(partition: Partition, position: int, standing: GroupPosition, earliest: int) -> int:
    if position == EARLIEST:
        return earliest
    if position == LATEST:
        return standing.end
    _check_end("startingOffsets", partition, position, standing)
    return position


def _check_end(option: str, partition: Partition, position: int, standing: GroupPosition) -> None:
    if position > standing.end:
        raise ConfigError(
            f"option '{option}' has {position} for {partition}, which lies beyond the end of the store: "
            f"{standing.end}; use -1 for the latest, and check that the position is one of this cluster"
        )


def check_partitions(option: str, given: Collection[Partition], expected: Collection[Partition]) -> None:
    """`ConfigError` when the explicit positions `given` do not name exactly the `expected` partitions."""
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
