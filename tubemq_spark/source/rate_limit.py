# SPDX-License-Identifier: Apache-2.0
"""Rate limit of micro-batches: options `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger` and
`maxTriggerDelay`, and the end of a run with trigger AvailableNow. Poll interval: how often the driver asks the brokers
for the log ends.

All positions are bytes of the index, 28 a message; limits are in index entries. A limit in bytes becomes one in entries
by the sizes of messages that were sampled (`client.consumer.size_sample`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.range_planner import ranges

_CAUTIOUS_SIZE = 64 * 1024.0  # bytes of a message in stores whose brokers told nothing
_IDLE_SHARE = 0.1  # of the time without news: a message that arrives then waits at most that long


class RateLimit:
    """The read limits of one run of a query, in index entries and bytes. `least` may hold a batch back for `max_delay`
    seconds. If a batch has two upper limits, the smaller one applies."""

    def __init__(
        self,
        least: int | None,
        most: int | None,
        max_delay: float,
        clock: Clock = SYSTEM_CLOCK,
        most_bytes: int | None = None,
    ) -> None:
        self._least = least
        self._most = most
        self._most_bytes = most_bytes
        self._max_delay = max_delay
        self._clock = clock
        self._served: Store | None = None  # the store that got the last entry that rounding left over
        self._batch_start: Positions | None = None  # of the last batch whose end was returned
        self._batch_since: float | None = None  # when that end was returned first
        self._is_available_now = False
        self._run_ends: Positions = {}  # where a run with trigger AvailableNow ends
        self.held_back: dict[Partition, tuple[int, int]] = {}
        """What the last `batch_end` left out of a run with trigger AvailableNow, because it is not `readable` yet."""
        self._keeps_run_ends = False

    def stop_at_next_ends(self) -> None:
        """Let the run end where the stores end when `batch_end` is called before `keep_run_ends`."""
        self._is_available_now, self._keeps_run_ends = True, False

    def keep_run_ends(self) -> None:
        """Note that an end was returned to Spark: from now on a run with trigger AvailableNow ends where it ends."""
        self._keeps_run_ends = True

    @property
    def admits_new_partitions(self) -> bool:
        return not (self._is_available_now and self._keeps_run_ends)

    def batch_end(
        self,
        start: Positions,
        log_ends: Positions,
        new: Positions,
        *,
        limited: bool,
        readable: Positions = MappingProxyType({}),
        sizes: Mapping[Store, float] = MappingProxyType({}),
    ) -> Positions:
        """Return where a batch from `start` ends; `start` itself if it must wait for more messages. `new` are the log
        ends of partitions that enter with it. If not `limited`, it ends at the log ends, or at the run's end, but where
        only the entries before a `readable` end can be read yet, there. `sizes` are the mean bytes of a message by
        store, if it `needs_sizes`.
        """
        self.held_back = {}
        ends = log_ends
        if self._is_available_now:
            if self.admits_new_partitions:
                self._run_ends = {**log_ends, **new}
            ends = {partition: min(end, self._run_ends.get(partition, end)) for partition, end in log_ends.items()}
            self.held_back = {one: (at, ends[one]) for one, at in readable.items() if at < ends[one]}
        ends = {partition: min(end, readable.get(partition, end)) for partition, end in ends.items()}
        if not limited:
            return ends
        growing = {partition: end for partition, end in ends.items() if end >= start[partition]}
        return {**ends, **self._limited({partition: start[partition] for partition in growing}, growing, sizes)}

    @property
    def needs_sizes(self) -> bool:
        """Whether the end of a batch depends on the sizes of messages."""
        return self._most_bytes is not None

    def _limited(self, start: Positions, ends: Positions, sizes: Mapping[Store, float]) -> Positions:
        if self._waits(start, ends):
            return start
        if self._batch_start != start:
            self._batch_start, self._batch_since = start, self._clock.monotonic()
        most = self._most
        if self._most_bytes is not None and entries_between(start, ends):
            by_bytes = entries_within(start, ends, self._most_bytes, sizes)
            most = by_bytes if most is None else min(most, by_bytes)
        if most is None:
            return ends
        limited, self._served = limited_ends(start, ends, most, self._served)
        return limited

    def _waits(self, start: Positions, ends: Positions) -> bool:
        """A run's first batch does not wait, as in Spark's Kafka source. With AvailableNow nothing more will come."""
        if self._least is None or self._is_available_now or self._batch_since is None:
            return False
        is_late = self._clock.monotonic() - self._batch_since >= self._max_delay
        return not is_late and entries_between(start, ends) < self._least


def entries_between(start: Positions, ends: Positions) -> int:
    """Return how many index entries lie in the ranges; entries that partitions of a store share count once."""
    return sum(high - low for low, high in _store_ranges(start, ends).values()) // UNIT


def entries_within(start: Positions, ends: Positions, limit: int, sizes: Mapping[Store, float]) -> int:
    """Return how many index entries of the ranges have about `limit` bytes if each store gives a share in proportion to
    its backlog; at least one, so that a longer message is read too. `sizes` are the mean bytes of a store's messages.

    A store without a size counts with the greatest one, or with a cautious default if there is none at all.
    """
    backlogs = {store: (high - low) // UNIT for store, (low, high) in _store_ranges(start, ends).items()}
    unknown = max(sizes.values(), default=_CAUTIOUS_SIZE)
    entries = sum(backlogs.values())
    total = sum(count * sizes.get(store, unknown) for store, count in backlogs.items())
    return entries if total <= limit else max(1, int(entries * limit / total))


def limited_ends(
    start: Positions, ends: Positions, limit: int, served: Store | None
) -> tuple[dict[Partition, int], Store | None]:
    """Return where a micro-batch of at most `limit` index entries ends, and the store that was `served` last.

    Each store gets a share in proportion to its backlog. The entries that rounding leaves over go round the stores, one
    each, beginning behind `served`, so that no store starves. The partitions of a store share its range; one that is
    ahead waits for the others.
    """
    stores = _store_ranges(start, ends)
    backlogs = {store: (high - low) // UNIT for store, (low, high) in sorted(stores.items()) if high > low}
    total = sum(backlogs.values())
    if total <= limit:
        return dict(ends), served
    shares = {store: backlog * limit // total for store, backlog in backlogs.items()}
    left_over = limit - sum(shares.values())
    waiting = [store for store, backlog in backlogs.items() if shares[store] < backlog]
    round_robin = sorted(waiting, key=lambda store: (served is not None and store <= served, store))
    for store in round_robin[:left_over]:
        shares[store] += 1
        served = store
    share_ends = {store: stores[store][0] + share * UNIT for store, share in shares.items()}
    return {
        partition: min(end, max(start.get(partition, end), share_ends.get(partition.store, end)))
        for partition, end in ends.items()
    }, served


def _store_ranges(start: Positions, ends: Positions) -> dict[Store, tuple[int, int]]:
    """Return the range of each store: from the least start to the greatest end of its partitions with new entries."""
    found: dict[Store, tuple[int, int]] = {}
    for partition, (low, high) in ranges(start, ends).items():
        least, most = found.get(partition.store, (low, high))
        found[partition.store] = min(least, low), max(most, high)
    return found


class PollInterval:
    """Tells how long to wait before the next request. While nothing arrives, the interval grows to a tenth of the time
    without news, from `least` to `most` seconds. A `least` above `most` wins."""

    def __init__(self, least: float, most: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._least = least
        self._most = most
        self._clock = clock
        self._polled_at = float("-inf")
        self._news_at = clock.monotonic()

    def pause(self) -> float:
        """Return the seconds until the next request may be made; 0 if it may be made now.

        It may be made `least` seconds after the last reply: who asks so late has other pauses, such as a trigger's, or
        the wait of a second source, and must not wait for both.
        """
        passed = self._clock.monotonic() - self._polled_at
        if passed >= self._least:
            return 0.0
        return max(self._least, min(self._most, _IDLE_SHARE * (self._polled_at - self._news_at))) - passed

    def polled(self, *, has_news: bool) -> None:
        """Note that the brokers answered now. `has_news`: there is something to read, or something was committed."""
        self._polled_at = self._clock.monotonic()
        if has_news:
            self._news_at = self._polled_at
