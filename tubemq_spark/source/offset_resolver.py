# SPDX-License-Identifier: Apache-2.0
"""Offset resolver: the positions that the user's bounds mean, in bytes of the index."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, ReadStatus
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.index_search import outside_repeated_hour, whole_minute
from tubemq_spark.protocol.message import microseconds_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.bound import EARLIEST, GROUP, LATEST, Bound
from tubemq_spark.source.long_messages import LongMessages
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.options import SourceOptions

_log = logging.getLogger(__name__)


class OffsetResolver:
    """Asks the brokers for the positions that the user's bounds mean."""

    def __init__(self, options: SourceOptions, prober: Prober, long_messages: LongMessages) -> None:
        self._options = options
        self._prober = prober
        self._long_messages = long_messages

    def starting(
        self, at: Mapping[Partition, GroupPosition], earliest: Positions | None = None
    ) -> dict[Partition, int]:
        """Return where each partition of `at` is read from. `earliest` positions are asked for if they are needed and
        not given. Raises as `Bound.of`, `Prober.extents` and `find_positions`, and `ConfigError` for a position beyond
        the end, or for a moment that no message reaches if `startingOffsetsByTimestampStrategy` says so. A group beyond
        the end goes to the loss policy.

        A position that retention has removed is not refused here: that may happen at any time, and the reader reports
        it.
        """
        starts = self._resolve(self._options.starting, at, earliest)
        self._check_late(starts, at)
        self._warn_of_skipped(starts, at)
        return starts

    def ending(self, starts: Positions, at: Mapping[Partition, GroupPosition]) -> dict[Partition, int]:
        """Return where the range of each partition of `starts` ends. Raises as `starting`, and `ConfigError` for a time
        before that of the start, or for an end before the start, unless both are found by time or are where a store
        begins or ends."""
        options = self._options
        from_places, to_places = options.starting.of(starts), options.ending.of(starts)
        for partition, start in from_places.items():
            place = to_places[partition]
            if isinstance(start, datetime) and isinstance(place, datetime) and start > place:
                raise ConfigError(
                    f"option '{options.starting.option}' is {start} for {partition}, later than "
                    f"'{options.ending.option}', which is {place}: make it earlier"
                )
        ends = self._resolve(options.ending, at, is_end=True)
        for partition, end in ends.items():
            start, place = from_places[partition], to_places[partition]
            is_chosen = isinstance(start, int) or start == GROUP or isinstance(place, int)
            # A start by time may lie behind messages that came since `at`.
            if end < min(starts[partition], at[partition].end) and is_chosen:
                raise ConfigError(
                    f"option '{options.ending.option}' has {place} for {partition}, position {end}, which lies before "
                    f"the start {starts[partition]}, {start} in option '{options.starting.option}'"
                )
        self._warn_of_empty(starts, ends)
        return {partition: max(starts[partition], end) for partition, end in ends.items()}

    def _at_times(self, moments: Mapping[Partition, datetime], *, is_end: bool = False) -> dict[Partition, int]:
        """Return the position of each partition's first message that is not earlier, see `find_positions`. `is_end`: a
        read ends there, see `outside_repeated_hour`."""
        zone = self._options.rows.zone
        outside = {one: outside_repeated_hour(moment, zone, is_end=is_end) for one, moment in moments.items()}
        wanted = {one: microseconds_of(moment) for one, moment in outside.items()}
        if not wanted:
            return {}
        extents, skips_untimed = self._prober.extents(wanted), self._options.skips_untimed
        return self._long_messages.found(
            {partition: extent.end for partition, extent in extents.items()},
            lambda: find_positions(
                self._prober.visitor, wanted, extents, zone, is_end=is_end, skips_untimed=skips_untimed
            ),
        )

    def _resolve(
        self,
        bound: Bound,
        at: Mapping[Partition, GroupPosition],
        earliest: Positions | None = None,
        *,
        is_end: bool = False,
    ) -> dict[Partition, int]:
        places = bound.of(at)
        found = self._at_times({p: one for p, one in places.items() if isinstance(one, datetime)}, is_end=is_end)
        # A broker that lost its tail still reports the group's old position, which is beyond the end then.
        beyond = [p for p, place in places.items() if place == GROUP and at[p].group > at[p].end]
        if earliest is None:
            extents = self._prober.extents([*(p for p, place in places.items() if place == EARLIEST), *beyond])
            earliest = {partition: extent.begin for partition, extent in extents.items()}
        for partition, place in places.items():
            group, end = at[partition]
            if isinstance(place, int) and place > end:
                raise ConfigError(
                    f"option '{bound.option}' has {place} for {partition}, which lies beyond the end of the store: "
                    f"{end}; check that the position is one of this cluster"
                )
            if isinstance(place, int):
                found[partition] = place
            elif partition in beyond:
                text = (
                    f"{partition}: group {self._options.group} stands at {group}, and the store ends at {end}: the "
                    "broker lost messages, or the topic was created again, so nobody knows which messages are new to "
                    f"the group. With 'failOnDataLoss' false, reading begins at the earliest, {earliest[partition]}"
                )
                self._options.loss_policy.report(loss_of(partition, text, asked=group, offered=end))
                found[partition] = earliest[partition]
            elif place == EARLIEST:
                found[partition] = earliest[partition]
            elif place == GROUP:
                found[partition] = group
            elif place == LATEST:
                found[partition] = end
        return found

    def _check_late(self, starts: Positions, at: Mapping[Partition, GroupPosition]) -> None:
        bound, strategy = self._options.starting, self._options.late_start
        moments = {p: place for p, place in bound.of(starts).items() if isinstance(place, datetime)}
        late = sorted(partition for partition in moments if starts[partition] >= at[partition].end)
        extents = self._prober.extents(late)  # messages may have come since `at`
        late = [partition for partition in late if starts[partition] >= extents[partition].end]
        if late and strategy == "error":
            empty = ", ".join(str(one) for one in late if extents[one].begin >= extents[one].end)
            remedy = f"{empty} has no messages, so" if empty else "give an earlier time, or"
            raise ConfigError(
                f"option '{bound.option}': no message of {', '.join(map(str, late))} is as late as "
                f"{moments[late[0]]}: {remedy} set option 'startingOffsetsByTimestampStrategy' to latest to begin at "
                "the end"
            )
        if late and len(late) == len(moments):
            _log.warning(
                "[starting-time-too-late] no message of %s is as late as %s (option '%s'): reading begins at the end",
                ", ".join(map(str, late)),
                moments[late[0]],
                bound.option,
            )

    def _warn_of_empty(self, starts: Positions, ends: Positions) -> None:
        """Warn if a read ends by time before all messages, or within the minute in which it begins. Other empty ranges
        are normal for a periodic job."""
        bound = self._options.ending
        from_places, to_places = self._options.starting.of(starts), bound.of(ends)
        moments = {p: place for p, place in to_places.items() if isinstance(place, datetime)}
        if not moments or len(moments) < len(ends):
            return
        is_empty = all(end <= starts[partition] for partition, end in ends.items())
        if is_empty and all(
            isinstance(at, datetime) and _is_same_minute(at, moments[p]) for p, at in from_places.items()
        ):
            end = min(moments.values())
            why = f"the read begins in the minute of {end}, where it ends, because times are rounded down"
        elif early := self._without_earlier(ends):
            why = f"the first message of {', '.join(map(str, early))} is not earlier than {moments[early[0]]}"
        else:
            return
        _log.warning("[ending-time-too-early] %s (option '%s'): nothing is read", why, bound.option)

    def _without_earlier(self, ends: Positions) -> list[Partition]:
        """Return the partitions with messages if none of these lies before its end; otherwise nothing."""
        extents = self._prober.extents(ends)
        before = [(p, extents[p].begin, end) for p, end in ends.items() if extents[p].begin < end]
        before.sort(key=lambda span: span[1] - span[2])  # most often the longest has messages, then one probe is enough
        for several in (before[:1], before[1:]):
            found = self._prober.have_messages(several)
            if any(found.values()) or len(found) < len(several):
                return []
        return sorted(partition for partition, end in ends.items() if end < extents[partition].end)

    def _warn_of_skipped(self, starts: Positions, at: Mapping[Partition, GroupPosition]) -> None:
        """Warn if a read begins at the end although the group had not come so far: perhaps a checkpoint was lost."""
        places = self._options.starting.of(starts)
        skipped = {
            p: starts[p] - at[p].group for p, place in places.items() if place == LATEST and at[p].group < starts[p]
        }
        if skipped:
            _log.warning(
                "[group-skipped] reading begins at the end, by option 'startingOffsets' or its default, and group %s "
                "stands before that: up to %d index entries of %s are not read. To read them, start again with a new "
                "checkpoint and startingOffsets=group",
                self._options.group,
                max(skipped.values()) // INDEX_MSG_UNIT_SIZE,
                ", ".join(map(str, sorted(skipped))),
            )


def _is_same_minute(one: datetime, other: datetime) -> bool:
    return whole_minute(microseconds_of(one)) == whole_minute(microseconds_of(other))


def read_status(options: SourceOptions) -> ReadStatus:
    """Return where brokers let a new group begin, so that its position is right from the start."""
    return ReadStatus.FROM_MAX if options.starting.places == {LATEST} else ReadStatus.NORMAL
