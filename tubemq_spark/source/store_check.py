# SPDX-License-Identifier: Apache-2.0
"""Decides which positions of a store to probe for log truncation, and what the results prove. No I/O.

`protocol.log_fingerprint` explains what a fingerprint proves. All positions are bytes of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tubemq_spark.client.cluster.cluster_metadata import Cluster, by_store
from tubemq_spark.client.consumer.probe import PartitionPosition, ProbeResult
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import (
    NO_MESSAGE,
    Fingerprint,
    Fingerprints,
    KnownIds,
    Store,
    span_between,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions

# More than a broker keeps unflushed of a store with the default settings: two memory blocks of 5 120 messages.
UNFLUSHED_AT_MOST = 20_000 * UNIT
_RECENT = 60  # seconds

Results = Mapping[PartitionPosition, ProbeResult]


class FingerprintState(Enum):
    INTACT = auto()  # the message is still there
    REPLACED = auto()  # another message is there, or none
    EXPIRED = auto()  # retention removed it, so it had been flushed and was not lost in a crash
    UNKNOWN = auto()  # no probe gave an answer


@dataclass(frozen=True)
class StoreRange:
    """What a batch reads of one store: from the least start to the greatest end of the `partitions` that it reads.
    `members` are all partitions of the store. A fingerprint may be of one that the query does not read, or that the
    cluster does not have any more."""

    store: Store
    partitions: Sequence[Partition]
    members: Sequence[Partition]
    start: int
    end: int
    fingerprints: tuple[Fingerprint, ...]

    @property
    def newest(self) -> Fingerprint | None:
        return self.fingerprints[-1] if self.fingerprints else None

    @property
    def last_entry(self) -> int:
        return self.end - UNIT

    @property
    def needs_flushed_end(self) -> bool:
        """Whether a first fingerprint is needed that is safe from a crash."""
        return self.newest is None and self.start > 0

    def state(self, fingerprint: Fingerprint, results: Results) -> FingerprintState:
        position = fingerprint.position
        result = results.get(self.place(fingerprint))
        if result is None:
            return FingerprintState.UNKNOWN
        if result.begin > position:
            return FingerprintState.EXPIRED
        # All ids count: a long message before this one may be unreadable in memory, and readable once it is in files.
        is_there = result.begin == position and fingerprint.message_id in result.message_ids
        return FingerprintState.INTACT if is_there else FingerprintState.REPLACED

    def newest_state(self, results: Results) -> FingerprintState | None:
        """Return the state of the newest fingerprint that `results` answer, None without fingerprints."""
        states = [self.state(one, results) for one in self.fingerprints]
        known = [one for one in states if one is not FingerprintState.UNKNOWN]
        return (known or states or [None])[-1]

    def is_truncated(self, results: Results) -> bool:
        """Return True if the newest fingerprint with an answer proves that the store lost its tail."""
        return self.newest_state(results) is FingerprintState.REPLACED

    def place(self, fingerprint: Fingerprint) -> PartitionPosition:
        return Partition(self.store[0], self.store[1], fingerprint.partition_id), fingerprint.position

    @property
    def exact_places(self) -> set[PartitionPosition]:
        """The places of the fingerprints that are surely of the messages there."""
        return {self.place(one) for one in self.fingerprints if one.time}

    def places(self, position: int) -> list[PartitionPosition]:
        return [(partition, position) for partition in self.members]


def store_ranges(
    begin: Positions, ends: Positions, fingerprints: Fingerprints, cluster: Cluster
) -> Iterator[StoreRange]:
    """Yield the ranges of all stores, made of the partitions that both `begin` and `ends` have."""
    for store, partitions in by_store(partition for partition in begin if partition in ends).items():
        yield StoreRange(
            store,
            partitions,
            sorted({*partitions, *cluster.store_members(partitions[0])}),
            min(begin[partition] for partition in partitions),
            max(ends[partition] for partition in partitions),
            fingerprints.get(store, ()),
        )


def unread_members(ranges: Iterable[StoreRange]) -> set[Partition]:
    """Return the partitions that the query does not read: a broker may not serve them yet, or not any more."""
    return {
        member
        for store_range in ranges
        for member in {
            *store_range.members,
            *(store_range.place(one)[0] for one in store_range.fingerprints),
        }.difference(store_range.partitions)
    }


def ids_between(
    begin: Positions, ends: Positions, fingerprints: Fingerprints, cluster: Cluster
) -> dict[Partition, KnownIds]:
    """Return what was known of the message ids in [begin, ends) when `fingerprints`, those of `ends`, were taken."""
    found: dict[Partition, KnownIds] = {}
    for store_range in store_ranges(begin, ends, fingerprints, cluster):
        at = {one.position: one for one in store_range.fingerprints}
        first, last = at.get(store_range.start, at.get(store_range.start - UNIT)), at.get(store_range.last_entry)
        if last is None:  # perhaps no probe could read the last entry
            served = [one for one in store_range.fingerprints if store_range.place(one)[0] in store_range.members]
            if served:
                found |= dict.fromkeys(store_range.partitions, KnownIds(mark=served[-1]))
            continue
        span = None if first is None else span_between(first, last)
        found |= dict.fromkeys(store_range.partitions, KnownIds(span, mark=last))
        owner, _ = store_range.place(last)
        if owner in store_range.partitions and begin[owner] < ends[owner] == store_range.end:
            found[owner] = KnownIds(span, last.message_id, last)
    return found


@dataclass(frozen=True)
class StoreCheck:
    """Checks one store before a batch reads it, and takes the fingerprints of the batch's end."""

    store_range: StoreRange
    results: Results  # of all probes so far
    now: int  # in seconds since the epoch
    flushed_end: int | None  # a crash loses nothing before it; None if unknown

    @property
    def needs_fingerprints(self) -> bool:
        """Whether the batch has entries, or the checkpoint a position that no fingerprint guards."""
        store_range = self.store_range
        return store_range.start < store_range.end or (store_range.newest is None and store_range.end > 0)

    @property
    def lacks_owner(self) -> bool:
        """Whether no known partition has the batch's last entry, though retention did not remove it."""
        last = self.store_range.last_entry
        return not self.has_owner and any(result.begin == last for result in self._results_at(last).values())

    @property
    def has_owner(self) -> bool:
        """Whether a known partition surely has the batch's last entry."""
        return bool(self._owners(self.store_range.last_entry))

    # Positions to probe

    def initial_probes(self) -> Iterator[PartitionPosition]:
        store_range = self.store_range
        if store_range.newest is not None:
            yield store_range.place(store_range.newest)
        if self.needs_fingerprints:
            yield from store_range.places(store_range.last_entry)
            if not self._continues_newest:
                yield from store_range.places(store_range.start)
            if store_range.newest is None:
                yield from store_range.places(self._flushed_position)

    def follow_up_probes(self) -> Iterator[PartitionPosition]:
        """Yield positions whose need shows in the first results.

        Probes behind an entry show which partition has it. It may be one that the master does not list yet.
        If the newest fingerprint turns out to be old, a fingerprint of the batch's first message is needed.
        """
        store_range = self.store_range
        if not self.needs_fingerprints:
            return
        yield from self._places_behind(store_range.last_entry)
        if (entry := self._flushed_entry) is not None:
            yield from store_range.places(entry + UNIT)
        if not self._continues_newest:
            yield from self._places_behind(store_range.start)
        elif self._is_unclear_since_newest:
            yield from store_range.places(store_range.start)
            yield from store_range.places(store_range.start + UNIT)

    def unclear_places(self) -> list[PartitionPosition]:
        """Return the places of the batch's last entry that may be their partitions', because no probe behind it says
        more: too many entries of others follow."""
        last = self.store_range.last_entry
        behind = self._results_at(last + UNIT)
        return [(partition, last) for partition in self._first_ids(last) if partition not in behind]

    def _places_behind(self, position: int) -> Iterator[PartitionPosition]:
        """Yield the positions that show which partition has the entry at `position`, if that is not clear."""
        if not self._owners(position):
            yield from ((partition, position + UNIT) for partition in self._first_ids(position))

    @property
    def _is_unclear_since_newest(self) -> bool:
        """Whether ids do not show which messages between the newest fingerprint and the batch's end are old."""
        assert self.store_range.newest is not None
        last = self.store_range.last_entry
        ends = (Fingerprint(last, owner.partition_id, i, self.now) for owner, i in self._first_ids(last).items())
        return any(span_between(self.store_range.newest, end) is None for end in ends)

    @property
    def _continues_newest(self) -> bool:
        """Whether the batch begins just behind a recent fingerprint, whose id most likely shows where its ids begin."""
        newest = self.store_range.newest
        if newest is None or newest.position != self.store_range.start - UNIT:
            return False
        return 0 <= self.now - newest.time <= _RECENT

    @property
    def _flushed_position(self) -> int:
        """A position surely in the files. It is not the last such one, as other partitions' entries may follow it."""
        flushed = self.store_range.start if self.flushed_end is None else min(self.store_range.start, self.flushed_end)
        return max(0, flushed - UNFLUSHED_AT_MOST)

    @property
    def _flushed_entry(self) -> int | None:
        """The store's first entry from `_flushed_position` on, if the batch begins behind it and has no fingerprint."""
        if self.store_range.newest is not None:
            return None
        begins = [result.begin for result in self._results_at(self._flushed_position).values()]
        return max(begins) if begins and max(begins) < self.store_range.start else None

    # What the results prove

    def _owners(self, position: int) -> dict[Partition, int]:
        """Return the partitions that surely have the entry at `position`, each with the id of its message."""
        results, behind = self._results_at(position), self._results_at(position + UNIT)
        return {
            partition: first_id
            for partition, first_id in self._first_ids(position).items()
            if results[partition].is_exact or (partition in behind and behind[partition].first_id != first_id)
        }

    def _first_ids(self, position: int) -> dict[Partition, int]:
        """Return the id of each partition's first message from `position` on, where the store still has `position` and
        the message may stand there.

        To compare with the first message behind `position` is not enough for the others: when a broker writes memory to
        files, a long message between both comes to light.
        """
        return {
            partition: result.first_id
            for partition, result in self._results_at(position).items()
            if result.begin == position and result.first_id is not None and not result.is_later
        }

    def _results_at(self, position: int) -> dict[Partition, ProbeResult]:
        places = self.store_range.places(position)
        return {place[0]: self.results[place] for place in places if place in self.results}

    @property
    def is_too_short(self) -> bool:
        """Whether the store ends at the batch's last entry or before it. One that begins behind it has lost it to
        retention, which the readers report."""
        last = self.store_range.last_entry
        return any(
            result.begin < last or (result.begin == last and result.is_behind_end)
            for result in self._results_at(last).values()
        )

    def new_fingerprints(self) -> Iterator[Fingerprint]:
        """Yield a fingerprint of the batch's last message; of its first one, where no fingerprint is near; and, if
        the store had none before, one that is surely flushed. If retention removed all, yield one of no message.
        """
        store_range, newest = self.store_range, self.store_range.newest
        last = self._results_at(store_range.last_entry)
        if newest is None and last and all(result.begin > store_range.last_entry for result in last.values()):
            yield Fingerprint(store_range.last_entry, min(last).partition_id, NO_MESSAGE, 0)
        owners = self._owners(store_range.last_entry)
        if len(owners) != 1:
            if newest is None:  # a later message is better than none, because a crash may take all there is
                for partition, first_id in list(self._first_ids(store_range.last_entry).items())[:1]:
                    yield Fingerprint(store_range.last_entry, partition.partition_id, first_id, 0)
                yield from self._flushed_message()
            return
        [(owner, last_id)] = owners.items()
        # Messages behind a fingerprint are new. The first fingerprint of all may belong to an old message.
        is_new = newest is not None and newest.position >= store_range.start - UNIT
        yield Fingerprint(store_range.last_entry, owner.partition_id, last_id, self.now if is_new else 0)
        yield from self._first_message()
        if newest is None:
            yield from self._flushed_message()

    def _first_message(self) -> Iterator[Fingerprint]:
        store_range, newest = self.store_range, self.store_range.newest
        owners = self._owners(store_range.start)
        if len(owners) == 1 and store_range.start < store_range.last_entry:
            [(owner, first_id)] = owners.items()
            time = newest.time if newest is not None and newest.position <= store_range.start else 0
            yield Fingerprint(store_range.start, owner.partition_id, first_id, time)

    def _flushed_message(self) -> Iterator[Fingerprint]:
        if (entry := self._flushed_entry) is None:
            return
        starts, behind = self._results_at(self.store_range.start), self._results_at(entry + UNIT)
        before_start = {
            partition: result.first_id
            for partition, result in self._results_at(self._flushed_position).items()
            if result.begin == entry
            and result.first_id is not None
            and partition in starts
            and result.first_id != starts[partition].first_id
        }
        owners = {
            partition: first_id
            for partition, first_id in before_start.items()
            if partition in behind and behind[partition].first_id != first_id
        }
        if self.flushed_end is not None and self.flushed_end >= self.store_range.start:
            owners = owners or before_start  # all before the start is flushed, so any message there will do
        for partition, first_id in list(owners.items())[:1]:
            yield Fingerprint(entry, partition.partition_id, first_id, 0)
