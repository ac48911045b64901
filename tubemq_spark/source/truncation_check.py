# SPDX-License-Identifier: Apache-2.0
"""Truncation check: do the stores still have what the query has read, and if not, where does reading go on?

A broker that crashes loses the tail of its stores and uses the positions again. Before the next batch reads on, the
newest fingerprint is probed: another message there proves that the store was truncated. Then probes at the older
fingerprints and a binary search between two of them find the first new message.

Probing the old fingerprints and taking the new ones is one write for each broker. Stores without news cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.consumer.first_message import has_message_before
from tubemq_spark.client.consumer.probe import PartitionPosition, Prober, ProbeResult
from tubemq_spark.client.consumer.search_runner import run_searches
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.index_search import Search
from tubemq_spark.protocol.log_fingerprint import (
    NO_MESSAGE,
    Fingerprint,
    Fingerprints,
    IdSpan,
    Store,
    span_between,
    thinned,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.partition_set import PartitionSet
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
REPLACED_AFTER = 1.0  # seconds: a broker does not restart, and a topic is not recreated, in less


class StoreChangedError(Exception):
    """A store became shorter while it was checked, or may have been replaced."""


class UnflushedError(Exception):
    """A store needs its first fingerprint, and the message that it would be of may be one that the broker does not
    deliver from memory. `ends` are where files must end."""

    def __init__(self, ends: Positions) -> None:
        super().__init__(f"messages before {dict(ends)} are in memory")
        self.ends = ends


class _Positions(NamedTuple):
    """The arguments of `TruncationCheck.check`."""

    begin: Positions
    ends: Positions
    log_ends: Positions
    unflushed: frozenset[Partition]


class Checked(NamedTuple):
    """What a check of a batch found: where some partitions must end instead, the `fingerprints` of the batch's end, and
    for stores whose last entries no known partition has, where these entries begin."""

    ends: dict[Partition, int]
    fingerprints: dict[Store, tuple[Fingerprint, ...]]
    unowned: dict[Store, int]


@dataclass(frozen=True)
class TruncationCheck:
    """Checks stores. Only finds out; `LossPolicy` decides about losses. All methods raise as `Prober.extents`."""

    prober: Prober
    cluster: Cluster
    known: PartitionSet

    def check(
        self,
        begin: Positions,
        ends: Positions,
        log_ends: Positions,
        fingerprints: Fingerprints,
        *,
        idle_too: bool = False,
        empty: Collection[Partition] = frozenset(),
        unflushed: Collection[Partition] = frozenset(),
    ) -> Checked:
        """Check the stores before the batch [begin, ends) is read; `fingerprints` are those of `begin`. Raise
        `StoreChangedError` if a store does not reach to the batch's end any more, or a broker was away meanwhile, and
        `UnflushedError`.

        A truncated store ends where new messages begin, at most where the batch begins. Each other one ends behind an
        entry of a known partition: entries behind it give no fingerprint, so their loss would not be noticed.

        Stores from which the batch reads nothing are checked only with `idle_too`, or if they have no fingerprint and a
        new offset is needed anyway. The partitions in `empty` have no message in the batch, nor behind it. Those that
        are `unflushed` have messages that the broker may not deliver before they are in files: a later message in the
        place of such a one would be a fingerprint that seems to be replaced then.
        """
        has_news = any(begin[partition] != end for partition, end in ends.items() if partition in begin)
        ranges = (
            store_range
            for store_range in store_ranges(begin, ends, fingerprints, self.cluster)
            if idle_too
            or (has_news and store_range.newest is None)
            or any(begin[partition] != ends[partition] for partition in store_range.partitions)
        )
        to, checked = _Positions(begin, ends, log_ends, frozenset(unflushed)), Checked({}, dict(fingerprints), {})
        visitor = self.prober.visitor
        while several := list(islice(ranges, _STORES_AT_ONCE)):
            known_empty: Collection[Partition] = empty
            while several:
                failures = visitor.failures
                checks, results = self._probe(several, known_empty)
                if visitor.failures != failures:  # after an outage the answers may be those of another store
                    raise StoreChangedError("a broker did not answer while stores were checked")
                judged = [self._judge(check, results, to, checked) for check in checks]
                several, known_empty = [shorter for shorter in judged if shorter is not None], ()
        return checked

    def _probe(
        self, ranges: Sequence[StoreRange], empty: Collection[Partition]
    ) -> tuple[list[StoreCheck], dict[PartitionPosition, ProbeResult]]:
        """Return the checks of some stores, and the answers to all their probes."""
        clock = self.prober.visitor.settings.clock
        begun, now = clock.monotonic(), max(0, int(clock.time()))  # a fingerprint has no negative time
        results: dict[PartitionPosition, ProbeResult] = {}
        checks = self._store_checks(ranges, results, now)
        for store_range in ranges:
            for partition, position in (
                *store_range.places(store_range.start),
                *store_range.places(store_range.last_entry),
            ):
                if partition in empty:
                    results[partition, position] = ProbeResult(position, ())
        first = [place for check in checks for place in check.initial_probes() if place not in results]
        unread = unread_members(ranges)
        exact = {
            place
            for store_range in ranges
            for place in (*store_range.places(store_range.last_entry), *store_range.exact_places)
        }
        results |= self.prober.probe(first, exact, unread)
        results |= self._older(ranges, results)
        # An answer is not replaced by a newer one: messages that came meanwhile would look like those before the end.
        second = [place for check in checks for place in check.follow_up_probes() if place not in results]
        results |= self.prober.probe(second, optional=unread)
        if clock.monotonic() - begun > REPLACED_AFTER:  # the store may be another one since the first answer
            newest = [store_range.place(store_range.newest) for store_range in ranges if store_range.newest is not None]
            results |= self.prober.probe(newest, exact, unread)
        return checks, results

    def _judge(
        self, check: StoreCheck, results: dict[PartitionPosition, ProbeResult], to: _Positions, checked: Checked
    ) -> StoreRange | None:
        """Put into `checked` what the answers prove. Return the store's range if it must end earlier and be checked so:
        no known partition has its last entries."""
        store_range = check.store_range
        # A partition that the query reads shows by its rows, or by the errors of its tasks, what became of it.
        is_unread = (
            store_range.newest is not None and store_range.place(store_range.newest)[0] not in store_range.partitions
        )
        if is_unread and store_range.newest_state(results) is FingerprintState.UNKNOWN:
            broker_id, topic, store_id = store_range.store
            raise StoreChangedError(f"broker {broker_id} does not say what store {store_id} of {topic} has now")
        first_new: int | None = None
        if store_range.is_truncated(results):
            first_new, checked.fingerprints[store_range.store] = self._find_first_new(store_range)
        resume_at = {
            p: min(to.begin[p], to.log_ends[p] if first_new is None else first_new) for p in store_range.partitions
        }
        if any(position < to.begin[partition] for partition, position in resume_at.items()):
            checked.ends.update(resume_at)
            return None
        if not check.needs_fingerprints:
            return None
        if check.is_too_short:
            raise StoreChangedError(f"the store {store_range.store} has become shorter")
        end, is_tail = self._end_of_known(check, results, to)
        if is_tail:
            checked.unowned[store_range.store] = end
        if end < store_range.end and (end > store_range.start or is_tail):
            checked.ends.update({p: max(to.begin[p], min(to.ends[p], end)) for p in store_range.partitions})
            return replace(store_range, end=end)
        marks = [*checked.fingerprints.get(store_range.store, ()), *check.new_fingerprints()]
        checked.fingerprints[store_range.store] = thinned(marks, check.now)
        return None

    def _end_of_known(
        self, check: StoreCheck, results: dict[PartitionPosition, ProbeResult], to: _Positions
    ) -> tuple[int, bool]:
        """Return the position behind the last entry of the batch that a known partition has; and whether no such entry
        follows. Put into `results` who has the last entry, if that was not clear."""
        store_range = check.store_range
        if check.lacks_owner:
            for place in self.prober.proven(check.unclear_places()):
                results[place] = results[place]._replace(is_exact=True)
        if store_range.newest is None and not check.has_owner and not to.unflushed.isdisjoint(store_range.partitions):
            raise UnflushedError({partition: to.log_ends[partition] for partition in store_range.partitions})
        # What retention removed is reported by the readers, and no crash can take it. The newest fingerprint may have
        # expired although the batch has messages.
        if not check.lacks_owner or (store_range.newest is not None and self._is_expired(store_range, store_range.end)):
            return store_range.end, False
        end, is_tail = self._owned_end(store_range)
        # What came behind the end meanwhile belongs to the next batch, as the entries before it.
        return end, is_tail or (
            end < store_range.end and store_range.end >= max(to.log_ends[one] for one in store_range.partitions)
        )

    def _owned_end(self, store_range: StoreRange) -> tuple[int, bool]:
        """Return the position behind the last entry of the batch that a known partition has, or the batch's start; and
        whether no such entry follows the batch."""
        unread = unread_members([store_range])
        low, high = store_range.start, store_range.last_entry
        position = low  # most often the batch has no such entry
        while low < high:
            spans = [(partition, position, store_range.end) for partition in store_range.members]
            if any(self.prober.have_messages(spans, unread).values()):
                low = position + UNIT
            else:
                high = position
            position = low + (high - low) // UNIT // 2 * UNIT
        behind = self.prober.probe(store_range.places(store_range.end), optional=unread)
        return low, not any(result.message_ids for result in behind.values())

    def lost_since(self, ends: Positions, fingerprints: Fingerprints) -> tuple[dict[Partition, int], Fingerprints]:
        """Return where new messages begin before `ends` in truncated stores, and the intact fingerprints of
        these stores. `fingerprints` are those of `ends`."""
        known = {partition: end for partition, end in ends.items() if partition.store in fingerprints}
        ranges = list(store_ranges(known, known, fingerprints, self.cluster))
        newest = [store_range.place(store_range.newest) for store_range in ranges if store_range.newest is not None]
        exact = {place for store_range in ranges for place in store_range.exact_places}
        results = self.prober.probe(newest, exact, unread_members(ranges))
        results |= self._older(ranges, results)
        lost: dict[Partition, int] = {}
        intact: dict[Store, tuple[Fingerprint, ...]] = {}
        for store_range in ranges:
            if not store_range.is_truncated(results):
                continue
            first_new, intact[store_range.store] = self._find_first_new(store_range)
            if first_new is not None:
                lost |= {partition: first_new for partition in store_range.partitions if first_new < ends[partition]}
        return lost, intact

    def _older(self, ranges: Iterable[StoreRange], results: Results) -> dict[PartitionPosition, ProbeResult]:
        """Probe all fingerprints of stores whose newest one got no answer: a broker may not serve its partition.

        If it serves none of theirs, and the masters list none, the store is another one: TubeMQ takes no partition from
        a topic (wire: AbsTopicDeployMapperImpl), so the topic was created anew. Then nothing is there.
        """
        unclear = [
            store_range for store_range in ranges if store_range.newest_state(results) is FingerprintState.UNKNOWN
        ]
        places = [store_range.place(one) for store_range in unclear for one in store_range.fingerprints]
        exact = {place for store_range in unclear for place in store_range.exact_places}
        found = self.prober.probe(places, exact, unread_members(unclear))
        for store_range in unclear:
            partitions = {store_range.place(one)[0] for one in store_range.fingerprints}
            if (
                store_range.newest_state(found) is FingerprintState.UNKNOWN
                and self.known.missing(partitions) == partitions
            ):
                found |= {
                    (one, at): ProbeResult(at, ()) for one, at in map(store_range.place, store_range.fingerprints)
                }
        return found

    def _store_checks(self, ranges: Iterable[StoreRange], results: Results, now: int) -> list[StoreCheck]:
        """`results` is empty; the caller puts what it finds out there."""
        firsts = {store_range.partitions[0]: store_range for store_range in ranges}
        unclear = [partition for partition, store_range in firsts.items() if store_range.needs_flushed_end]
        flushed_ends = self.prober.flushed_ends(unclear)
        return [StoreCheck(store_range, results, now, flushed_ends.get(one)) for one, store_range in firsts.items()]

    # Where new messages begin

    def _find_first_new(self, store_range: StoreRange) -> tuple[int | None, tuple[Fingerprint, ...]]:
        """Return where new messages begin in a store that seems to be truncated, None if it is not; and its intact
        fingerprints.
        """
        places = [store_range.place(fingerprint) for fingerprint in store_range.fingerprints]
        results = self.prober.probe(places, store_range.exact_places, unread_members([store_range]))
        results |= self._older([store_range], results)
        if not store_range.is_truncated(results):
            return None, store_range.fingerprints
        states = {one: store_range.state(one, results) for one in store_range.fingerprints}
        for one in reversed(store_range.fingerprints):
            if states[one] is FingerprintState.REPLACED and self._is_expired(store_range, one.position + UNIT):
                states[one] = FingerprintState.EXPIRED
        newest = next(one for one in reversed(store_range.fingerprints) if states[one] is not FingerprintState.UNKNOWN)
        if states[newest] is FingerprintState.EXPIRED:
            return None, store_range.fingerprints
        intact = tuple(one for one, state in states.items() if state is FingerprintState.INTACT)
        # What has expired had been flushed, so no crash has lost it.
        survived = [one for one, state in states.items() if one in intact or state is FingerprintState.EXPIRED]
        store_begin, store_end = self.prober.extents(store_range.partitions[:1])[store_range.partitions[0]]
        oldest = store_range.fingerprints[0]
        is_oldest_gone = not survived and states[oldest] is FingerprintState.REPLACED
        if is_oldest_gone and (len(store_range.fingerprints) > 1 or oldest.message_id == NO_MESSAGE):
            return store_begin, ()  # so all messages are new
        last = survived[-1] if survived else None
        replaced = next(
            one
            for one, state in states.items()
            if state is FingerprintState.REPLACED and (last is None or one.position > last.position)
        )
        low = max(last.position + UNIT if last else 0, store_begin)
        high = min(replaced.position, store_end)
        if low < high:
            is_exact = last is not None and self._is_of_its_entry(store_range, last)
            high = self._search(store_range, low, high, span_between(last, replaced) if last and is_exact else None)
        return high, intact

    def _is_expired(self, store_range: StoreRange, behind: int) -> bool:
        """Whether retention removed the data before a position, and not yet its index. Then no message is left there; a
        crash leaves messages there, or a store that ends before."""
        flushed_end = self.prober.flushed_ends(store_range.partitions[:1])[store_range.partitions[0]]
        return flushed_end >= behind and not has_message_before(
            self.prober, store_range.members, behind, optional=unread_members([store_range])
        )

    def _is_of_its_entry(self, store_range: StoreRange, fingerprint: Fingerprint) -> bool:
        """Whether the message stands at the fingerprint's position. One without a time may be of a later message, whose
        id does not show which ones before it are old."""
        if fingerprint.time:
            return True
        partition, position = store_range.place(fingerprint)
        behind = self.prober.probe([(partition, position + UNIT)], optional=unread_members([store_range])).values()
        return any(one.first_id != fingerprint.message_id for one in behind)

    def _search(self, store_range: StoreRange, low: int, high: int, old_ids: IdSpan | None) -> int:
        """Return the position of the first new message in [low, high), or `high`.

        It is the store's first, and counts for all its partitions. The new messages there may be lost later, too, and
        be replaced once more.
        """
        if old_ids is None:
            # A reported loss, whose range can be read again, is better than duplicates that nobody notices.
            _log.warning(
                "[new-messages-unclear] "
                "broker %d, topic %s, store %d: message ids do not show which messages of [%d, %d) are new. The query "
                "skips them; a batch read of that range returns them", *store_range.store, low, high,
            )  # fmt: skip
            return high
        has_old_id = old_ids.has
        searches = {
            partition: Search(1, low, high, lambda message: 0 if has_old_id(message.messageId) else 1)
            for partition in store_range.partitions
        }
        return min(run_searches(self.prober.visitor, searches, "the first new message").values())
