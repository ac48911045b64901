"""Decides which positions of a store to probe for log truncation, and what the results prove. No I/O.

`protocol.log_fingerprint` explains what a fingerprint proves. All positions are bytes of the index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tubemq_spark.client.consumer.probe import PartitionPosition, ProbeResult
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import Fingerprint, Fingerprints, KnownIds, Store, span_between
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions

# More than a broker keeps unflushed of a store with the default settings: two memory blocks of 5 120 messages. Topics
# may have larger blocks, so where more than this lies behind a position, the broker is asked what its files contain.
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
    """What a batch reads of one store: from the least start to the greatest end of its partitions."""

    store: Store
    partitions: Sequence[Partition]
    start: int
    end: int
    log_end: int
    fingerprints: tuple[Fingerprint, ...]

    @property
    def newest(self) -> Fingerprint | None:
        return self.fingerprints[-1] if self.fingerprints else None

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end

    @property
    def last_entry(self) -> int:
        return self.end - UNIT

    @property
    def is_far_behind(self) -> bool:
        return self.log_end - self.end > UNFLUSHED_AT_MOST

    @property
    def needs_flushed_end(self) -> bool:
        """Whether the usual size of a broker's memory does not show which messages are safe from a crash."""
        return not self.is_empty and (self.is_far_behind or (self.newest is None and self.start > 0))

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

    def is_truncated(self, results: Results) -> bool:
        """Return True if the newest fingerprint proves that the store lost its tail."""
        return self.newest is not None and self.state(self.newest, results) is FingerprintState.REPLACED

    def place(self, fingerprint: Fingerprint) -> PartitionPosition:
        return Partition(self.store[0], self.store[1], fingerprint.partition_id), fingerprint.position

    def places(self, position: int) -> list[PartitionPosition]:
        return [(partition, position) for partition in self.partitions]


def store_ranges(
    begin: Positions, ends: Positions, log_ends: Positions, fingerprints: Fingerprints
) -> list[StoreRange]:
    """Return the ranges of all stores, made of the partitions that both `begin` and `ends` have."""
    stores: defaultdict[Store, list[Partition]] = defaultdict(list)
    for partition in begin:
        if partition in ends:
            stores[partition.store].append(partition)
    return [
        StoreRange(
            store,
            partitions,
            min(begin[partition] for partition in partitions),
            max(ends[partition] for partition in partitions),
            max(log_ends[partition] for partition in partitions),
            _usable(fingerprints.get(store, ()), partitions),
        )
        for store, partitions in stores.items()
    ]


def _usable(fingerprints: Iterable[Fingerprint], partitions: Sequence[Partition]) -> tuple[Fingerprint, ...]:
    known = {partition.partition_id for partition in partitions}
    return tuple(one for one in fingerprints if one.partition_id in known)


def ids_between(begin: Positions, ends: Positions, fingerprints: Fingerprints) -> dict[Partition, KnownIds]:
    """Return what is known of the message ids that were in [begin, ends) when `fingerprints`, those of `ends`, were
    taken.
    """
    found: dict[Partition, KnownIds] = {}
    for batch in store_ranges(begin, ends, ends, fingerprints):
        at = {one.position: one for one in batch.fingerprints}
        first, last = at.get(batch.start, at.get(batch.start - UNIT)), at.get(batch.last_entry)
        if last is None:
            continue
        span = None if first is None else span_between(first, last)
        found |= dict.fromkeys(batch.partitions, KnownIds(span))
        owner, _ = batch.place(last)
        if begin[owner] < ends[owner] == batch.end:
            found[owner] = KnownIds(span, last.message_id)
    return found


class StoreCheck:
    """Checks one store before a batch reads it, and takes the fingerprints of the batch's end.

    `results` has all probe results that arrived so far. `is_complete` says that the query reads all partitions of the
    store. `now` is in seconds since the epoch. A crash loses nothing before `flushed_end`; None if unknown.
    """

    def __init__(
        self,
        batch: StoreRange,
        results: Results,
        now: int,
        *,
        is_complete: bool,
        flushed_end: int | None,
    ) -> None:
        self.batch = batch
        self._results = results
        self._now = now
        self._is_complete = is_complete
        self._flushed_end = flushed_end

    @property
    def needs_fingerprints(self) -> bool:
        """Whether a crash may lose a message of the batch."""
        batch = self.batch
        is_safe = batch.is_far_behind and self._flushed_end is not None and batch.end <= self._flushed_end
        return not batch.is_empty and not is_safe

    # Positions to probe

    def first_places(self) -> Iterator[PartitionPosition]:
        batch = self.batch
        if batch.newest is not None:
            yield batch.place(batch.newest)
        if self.needs_fingerprints:
            yield from batch.places(batch.last_entry)
            if not self._continues_newest:
                yield from batch.places(batch.start)
            if batch.newest is None:
                yield from batch.places(self._flushed_position)

    def exact_places(self) -> Iterable[PartitionPosition]:
        """Return those of `first_places` where it suffices to know which partition has the entry.

        Where the batch's first message is wanted too, the probes must read on: they show which first messages belong to
        the batch.
        """
        batch = self.batch
        return batch.places(batch.last_entry) if self.needs_fingerprints and self._continues_newest else ()

    def second_places(self) -> Iterator[PartitionPosition]:
        """Yield positions whose need shows in the first results.

        If other clients sent messages meanwhile, a probe at the end shows which partition has the batch's last message.
        If the newest fingerprint turns out to be old, a fingerprint of the batch's first message is needed.
        """
        batch = self.batch
        if not self.needs_fingerprints:
            return
        at_end = self._first_ids(batch.last_entry)
        if not self._has_one_owner:
            yield from ((partition, batch.end) for partition in at_end)
        if self._continues_newest:
            assert batch.newest is not None
            lasts = [
                Fingerprint(batch.last_entry, owner.partition_id, last, self._now) for owner, last in at_end.items()
            ]
            if any(span_between(batch.newest, last) is None for last in lasts):
                yield from batch.places(batch.start)
                yield from batch.places(batch.last_entry)

    @property
    def _continues_newest(self) -> bool:
        """Whether the batch begins just behind a recent fingerprint, whose id most likely tells where its ids begin."""
        newest = self.batch.newest
        return (
            newest is not None
            and newest.position == self.batch.start - UNIT
            and 0 <= self._now - newest.time <= _RECENT
        )

    @property
    def _flushed_position(self) -> int:
        """A position surely in the files. It is not the last such one, as other partitions' entries may follow it."""
        flushed = self.batch.start if self._flushed_end is None else min(self.batch.start, self._flushed_end)
        return max(0, flushed - UNFLUSHED_AT_MOST)

    # What the results prove

    @property
    def _has_one_owner(self) -> bool:
        """Whether the probes prove which partition has the batch's last message."""
        places = self.batch.places(self.batch.last_entry)
        are_answered = all(place in self._results for place in places)
        return are_answered and self._is_complete and len(self._first_ids(self.batch.last_entry)) == 1

    def _first_ids(self, position: int) -> dict[Partition, int]:
        """Return the id of each partition's first message from `position` on, where the store still has `position`."""
        found = {partition: self._results.get((partition, position)) for partition in self.batch.partitions}
        return {
            partition: result.first_id
            for partition, result in found.items()
            if result is not None and result.begin == position and result.first_id is not None
        }

    def new_fingerprints(self) -> Iterator[Fingerprint]:
        """Yield a fingerprint of the batch's last message; of its first one, where no fingerprint is near; and, if
        the store had none before, one that is surely flushed.
        """
        batch, newest = self.batch, self.batch.newest
        owners = self._last_owners()
        if len(owners) != 1:
            return
        [(owner, last_id)] = owners.items()
        # Messages behind a fingerprint are new. The first fingerprint of all may belong to an old message.
        is_new = newest is not None and newest.position >= batch.start - UNIT
        yield Fingerprint(batch.last_entry, owner.partition_id, last_id, self._now if is_new else 0)
        yield from self._first_message(owner, last_id)
        if newest is None:
            yield from self._flushed_message()

    def _last_owners(self) -> dict[Partition, int]:
        """Return the partitions that may have the batch's last entry, each with the message id."""
        at_end = self._first_ids(self.batch.last_entry)
        if self._has_one_owner:
            return at_end
        behind = {partition: self._results.get((partition, self.batch.end)) for partition in at_end}
        return {
            partition: first_id
            for partition, first_id in at_end.items()
            if (result := behind[partition]) is not None and result.first_id != first_id
        }

    def _first_message(self, owner: Partition, last_id: int) -> Iterator[Fingerprint]:
        batch, newest = self.batch, self.batch.newest
        starts = {p: result for p in batch.partitions if (result := self._results.get((p, batch.start))) is not None}
        begin = max((result.begin for result in starts.values()), default=batch.start)  # retention may have moved it
        firsts = {
            partition: result.first_id
            for partition, result in starts.items()
            if result.begin == begin
            and result.first_id is not None
            and (partition == owner or self._is_before_end(partition, result.first_id))
        }
        if firsts and begin < batch.last_entry:
            # The earliest of them has the id that is farthest from the last one.
            partition, first_id = max(firsts.items(), key=lambda one: abs(one[1] - last_id))
            time = newest.time if newest is not None and newest.position <= begin else 0
            yield Fingerprint(begin, partition.partition_id, first_id, time)

    def _is_before_end(self, partition: Partition, first_id: int) -> bool:
        at_end = self._results.get((partition, self.batch.last_entry))
        return at_end is not None and at_end.is_conclusive and at_end.first_id != first_id

    def _flushed_message(self) -> Iterator[Fingerprint]:
        batch = self.batch
        for partition in batch.partitions:
            result = self._results.get((partition, self._flushed_position))
            start = self._results.get((partition, batch.start))
            if result is None or start is None or result.first_id is None:
                continue
            if result.begin < batch.start and result.first_id != start.first_id:
                yield Fingerprint(result.begin, partition.partition_id, result.first_id, 0)
                return
