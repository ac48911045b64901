# SPDX-License-Identifier: Apache-2.0
"""Range planner: resolves the user's starting and ending offsets to positions, and divides ranges among tasks.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.constants import ENTRIES_PER_READ, ReadStatus
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.index_search import outside_repeated_hour
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.option_parsers import EARLIEST, GROUP, LATEST, Bound
from tubemq_spark.source.options import SourceOptions

_log = logging.getLogger(__name__)

T = TypeVar("T")

Ranges = Mapping[Partition, tuple[int, int]]
"""Start and end of what is read of each partition."""

_MAX_SHARED_TASKS = 64  # partitions with little to read share at most that many tasks
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class OffsetResolver:
    """Asks the brokers for the positions that the user's bounds mean."""

    def __init__(self, options: SourceOptions, prober: Prober) -> None:
        self._options = options
        self._prober = prober

    def starting(
        self, positions: Mapping[Partition, GroupPosition], extents: Mapping[Partition, Extent] | None = None
    ) -> dict[Partition, int]:
        """Return where each partition of `positions` is read from, by the options. `extents` are asked for if they are
        needed and not given. Raises as `starting_positions`, `Prober.extents` and `find_positions`."""
        options = self._options
        if options.starting_at is not None:
            found = self.at_time(options.starting_at, positions)
            if found and all(position >= positions[one].end for one, position in found.items()):
                _log.warning(
                    "[starting-time-too-late] no message of %s is as late as %s (option 'startingTimestamp'): reading "
                    "begins at the end",
                    ", ".join(map(str, sorted(found))),
                    options.starting_at,
                )
            return found
        needs_earliest = options.starting == "earliest" or isinstance(options.starting, dict)
        if extents is None:
            extents = self._prober.extents(positions) if needs_earliest else {}
        return starting_positions(options.starting, positions, {p: extent.begin for p, extent in extents.items()})

    def ending(self, starts: Positions, positions: Mapping[Partition, GroupPosition]) -> dict[Partition, int]:
        """Return where the range of each partition of `starts` ends, by the options. Raises as `ending_positions`."""
        options = self._options
        if options.ending_at is None:
            return ending_positions(options.ending, starts, positions)
        ends = self.at_time(options.ending_at, starts, is_end=True)
        if options.starting_at is None and isinstance(options.starting, dict):
            for partition, end in ends.items():
                if end < starts[partition]:
                    raise ConfigError(
                        f"option 'startingOffsets' has {starts[partition]} for {partition}, which lies behind {end}, "
                        f"the position of option 'endingTimestamp' ({options.ending_at})"
                    )
        return {partition: max(starts[partition], end) for partition, end in ends.items()}

    def at_time(
        self, moment: datetime, partitions: Iterable[Partition], *, is_end: bool = False
    ) -> dict[Partition, int]:
        """Return the position of each partition's first message that is not earlier, see `find_positions`. `is_end`: a
        read ends there, see `outside_repeated_hour`."""
        moment = outside_repeated_hour(moment, self._options.msg_time_zone, is_end=is_end)
        extents = self._prober.extents(partitions)
        wanted = dict.fromkeys(extents, (moment - _EPOCH) // timedelta(microseconds=1))
        return find_positions(self._prober.visitor, wanted, extents, self._options.msg_time_zone)


def read_status(options: SourceOptions) -> ReadStatus:
    """Return where brokers let a new group begin, so that its position is right from the start."""
    at_the_end = options.starting == "latest" and options.starting_at is None
    return ReadStatus.FROM_MAX if at_the_end else ReadStatus.NORMAL


def starting_positions(
    starting: Bound, group_positions: Mapping[Partition, GroupPosition], earliest: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return where each partition of `group_positions` is read from.

    Raise `ConfigError` if explicit positions do not name exactly these partitions, or lie beyond the end. A position
    that retention has removed is not checked here: it may be removed at any time, and the reader reports it.
    """
    if isinstance(starting, dict):
        return _explicit_positions("startingOffsets", starting, group_positions, earliest)
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

    Raise `ConfigError` for explicit positions as `starting_positions`, and if one lies before the start.
    """
    if not isinstance(ending, dict):
        return {partition: at.end for partition, at in group_positions.items()}
    ends = _explicit_positions("endingOffsets", ending, group_positions, {})
    for partition, end in ends.items():
        if end < starts[partition]:
            raise ConfigError(
                f"option 'endingOffsets' has {ending[partition]} for {partition}, which lies before the start "
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


def _explicit_positions(
    option: str,
    given: Positions,
    group_positions: Mapping[Partition, GroupPosition],
    earliest: Mapping[Partition, int],
) -> dict[Partition, int]:
    check_partitions(option, given, group_positions)
    found: dict[Partition, int] = {}
    for partition, (_, log_end) in group_positions.items():
        position = given[partition]
        if position > log_end:
            raise ConfigError(
                f"option '{option}' has {position} for {partition}, which lies beyond the end of the store: {log_end}; "
                "use -1 for the latest, and check that the position is one of this cluster"
            )
        if position == EARLIEST:
            position = earliest[partition]
        found[partition] = log_end if position == LATEST else position
    return found


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
