# SPDX-License-Identifier: Apache-2.0
"""Truncation check: do the stores still have what the query has read, and if not, where does reading go on?

A broker that crashes loses the tail of its stores and uses the positions again. Before the next batch reads on, the
newest fingerprint is probed: another message there proves that the store was truncated. Then probes at the older
fingerprints and a binary search between two of them find the first new message.

Probing the old fingerprints and taking the new ones is one write for each broker. Stores without news cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.consumer.probe import PartitionPosition, Prober, ProbeResult
from tubemq_spark.client.consumer.time_search import run_searches
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.index_search import Search
from tubemq_spark.protocol.log_fingerprint import Fingerprint, Fingerprints, IdSpan, Store, span_between, thinned
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.store_check import (
    FingerprintState,
    Results,
    StoreCheck,
    StoreRange,
    store_ranges,
    unread_members,
)

_log = logging.getLogger(__name__)

# A check of a store makes some twenty objects. If all stores were checked together, they would outlive Python's young
# garbage collections, and more full ones would follow, which visit all objects of the process.
_STORES_AT_ONCE = 128
_REPLACED_AFTER = 1.0  # seconds: a broker does not restart, and a topic is not created anew, in less


class StoreChangedError(Exception):
    """A store became shorter while it was checked, may have been replaced, or has messages of an unknown partition."""


@dataclass(frozen=True)
class TruncationCheck:
    """Checks stores. Only finds out; `LossPolicy` decides about losses. All methods raise as `Prober.extents`."""

    prober: Prober
    cluster: Cluster
    waits_for_owner: Callable[[StoreCheck], bool] = lambda check: False
    """Whether a batch leaves a store out, because no known partition has its last entry. Called for each store."""

    def check(
        self,
        begin: Positions,
        ends: Positions,
        log_ends: Positions,
        fingerprints: Fingerprints,
        *,
        idle_too: bool = False,
        empty: Collection[Partition] = frozenset(),
    ) -> tuple[dict[Partition, int], Fingerprints]:
        """Check the stores before the batch [begin, ends) is read; `fingerprints` are those of `begin`. Return where
        each partition of a truncated store goes on, and the fingerprints of the batch's end. Raise `StoreChangedError`
        if a store does not reach to the batch's end any more, or a broker was away meanwhile.

        A store that `waits_for_owner` is returned as one that goes on where the batch begins.

        Stores from which the batch reads nothing are checked only with `idle_too`, or if they have no fingerprint and a
        new offset is needed anyway. The partitions in `empty` have no message in the batch, nor behind it.
        """
        has_news = any(begin[partition] != end for partition, end in ends.items() if partition in begin)
        batches = (
            batch
            for batch in store_ranges(begin, ends, fingerprints, self.cluster)
            if idle_too
            or (has_news and batch.newest is None)
            or any(begin[partition] != ends[partition] for partition in batch.partitions)
        )
        found = dict(fingerprints)
        resume_at: dict[Partition, int] = {}
        visitor = self.prober.visitor
        while several := list(islice(batches, _STORES_AT_ONCE)):
            failures = visitor.failures
            checks, results = self._probe(several, empty)
            if visitor.failures != failures:  # after an outage the answers may be those of another store
                raise StoreChangedError("a broker did not answer while stores were checked")
            self._evaluate(checks, results, begin, log_ends, found, resume_at)
        return resume_at, {store: marks for store, marks in found.items() if marks}

    def _probe(
        self, batches: Sequence[StoreRange], empty: Collection[Partition]
    ) -> tuple[list[StoreCheck], dict[PartitionPosition, ProbeResult]]:
        """Return the checks of some stores, and the answers to all their probes."""
        clock = self.prober.settings.clock
        begun, now = clock.monotonic(), max(0, int(clock.time()))  # a fingerprint has no negative time
        results: dict[PartitionPosition, ProbeResult] = {}
        checks = self._store_checks(batches, results, now)
        for batch in batches:
            for partition, position in (*batch.places(batch.start), *batch.places(batch.last_entry)):
                if partition in empty:
                    results[partition, position] = ProbeResult(position, ())
        first = [place for check in checks for place in check.first_places() if place not in results]
        unread = unread_members(batches)
        results |= self.prober.probe(first, {place for check in checks for place in check.exact_places()}, unread)
        results |= self.prober.probe((place for check in checks for place in check.second_places()), optional=unread)
        if clock.monotonic() - begun > _REPLACED_AFTER:  # the store may be another one since the first answer
            newest = [batch.place(batch.newest) for batch in batches if batch.newest is not None]
            results |= self.prober.probe(newest, optional=unread)
        return checks, results

    def _evaluate(
        self,
        checks: Iterable[StoreCheck],
        results: Results,
        begin: Positions,
        log_ends: Positions,
        found: dict[Store, tuple[Fingerprint, ...]],
        resume_at: dict[Partition, int],
    ) -> None:
        """Put the stores' fingerprints into `found`, and where truncated ones go on into `resume_at`."""
        for check in checks:
            batch = check.batch
            first_new: int | None = None
            if batch.is_truncated(results):
                first_new, found[batch.store] = self._find_first_new(batch)
            goes_on = {p: min(begin[p], log_ends[p] if first_new is None else first_new) for p in batch.partitions}
            if any(position < begin[partition] for partition, position in goes_on.items()):
                resume_at |= goes_on
            elif check.needs_fingerprints:
                if check.is_too_short:
                    raise StoreChangedError(f"the store {batch.store} has become shorter")
                if self.waits_for_owner(check):
                    resume_at |= {partition: begin[partition] for partition in batch.partitions}
                    continue
                found[batch.store] = thinned([*found.get(batch.store, ()), *check.new_fingerprints()], check.now)

    def lost_since(self, ends: Positions, fingerprints: Fingerprints) -> dict[Partition, int]:
        """Return where new messages begin before `ends` in truncated stores. `fingerprints` are those of `ends`."""
        known = {partition: end for partition, end in ends.items() if partition.store in fingerprints}
        batches = list(store_ranges(known, known, fingerprints, self.cluster))
        newest = [batch.place(batch.newest) for batch in batches if batch.newest is not None]
        results = self.prober.probe(newest, optional=unread_members(batches))
        lost: dict[Partition, int] = {}
        for batch in batches:
            first_new, _ = self._find_first_new(batch) if batch.is_truncated(results) else (None, ())
            if first_new is not None:
                lost |= {partition: first_new for partition in batch.partitions if first_new < ends[partition]}
        return lost

    def _store_checks(self, batches: Iterable[StoreRange], results: Results, now: int) -> list[StoreCheck]:
        """`results` is empty; the caller puts what it finds out there."""
        firsts = {batch.partitions[0]: batch for batch in batches}
        unclear = [partition for partition, batch in firsts.items() if batch.needs_flushed_end]
        flushed_ends = self.prober.flushed_ends(unclear) if unclear else {}
        return [StoreCheck(batch, results, now, flushed_ends.get(one)) for one, batch in firsts.items()]

    # Where new messages begin

    def _find_first_new(self, batch: StoreRange) -> tuple[int | None, tuple[Fingerprint, ...]]:
        """Return where new messages begin in a store that seems to be truncated, None if it is not; and its intact
        fingerprints.
        """
        places = [batch.place(fingerprint) for fingerprint in batch.fingerprints]
        results = self.prober.probe(places, optional=unread_members([batch]))
        if not batch.is_truncated(results):
            return None, batch.fingerprints
        states = {one: batch.state(one, results) for one in batch.fingerprints}
        intact = tuple(one for one, state in states.items() if state is FingerprintState.INTACT)
        # What has expired had been flushed, so no crash has lost it.
        survived = [one for one, state in states.items() if one in intact or state is FingerprintState.EXPIRED]
        store_begin, store_end = self.prober.extents(batch.partitions[:1])[batch.partitions[0]]
        if not survived and len(batch.fingerprints) > 1:
            return store_begin, ()  # not even the oldest message is there, so all messages are new
        last = survived[-1] if survived else None
        replaced = next(one for one in batch.fingerprints if last is None or one.position > last.position)
        low = max(last.position + UNIT if last else 0, store_begin)
        high = min(replaced.position, store_end)
        if low < high:
            high = self._search(batch, low, high, span_between(last, replaced) if last else None)
        return high, intact

    def _search(self, batch: StoreRange, low: int, high: int, old_ids: IdSpan | None) -> int:
        """Return the position of the first new message in [low, high), or `high`.

        It is the store's first, and counts for all its partitions. The new messages there may be lost later, too, and
        be replaced once more.
        """
        if old_ids is None:
            # A reported loss, whose range can be read again, is better than duplicates that nobody notices.
            _log.warning(
                "[new-messages-unclear] "
                "broker %d, topic %s, store %d: message ids do not tell which messages of [%d, %d) are new. The query "
                "skips them; a batch read of that range returns them", *batch.store, low, high,
            )  # fmt: skip
            return high
        has_old_id = old_ids.has
        searches = {
            partition: Search(1, low, high, lambda message: 0 if has_old_id(message.messageId) else 1)
            for partition in batch.partitions
        }
        return min(run_searches(self.prober.visitor, searches, "the first new message").values())
