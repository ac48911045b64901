# SPDX-License-Identifier: Apache-2.0
"""The ledger: all stored messages, their losses, the losses that the query reported, and the final check."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

CRASH, RETENTION, ITSELF = "crash", "retention", "itself"


class Store(NamedTuple):
    """One store of a broker. Its partitions share its positions."""

    broker_id: int
    topic: str
    store_id: int


class Extent(NamedTuple):
    """The positions that a store has now: from `first` to before `end`."""

    first: int
    end: int


class Row(NamedTuple):
    """One row of the query."""

    offset: int | None
    message_id: int
    body: bytes
    msg_type: str | None = None


@dataclass
class Entry:
    """A stored message, even if its producer got no answer."""

    partition: Partition
    position: int
    row: Row
    lost: str | None = None  # `CRASH`, `RETENTION` or `ITSELF`
    is_noticeable: bool = True  # whether the query can notice that it is lost
    epoch: int = 0  # how many tails the store had lost before

    def __str__(self) -> str:
        lost = f", lost by {self.lost}" if self.lost else ""
        return f"{self.row.body[:16]!r} at {self.position} of {self.partition}{lost}"


class Span(NamedTuple):
    """Lost positions of a partition, or of a whole store if `partition` is None."""

    store: Store
    partition: Partition | None
    first: int
    end: int
    text: str = ""

    def __str__(self) -> str:
        return f"[{self.first}, {self.end}) of {self.partition or self.store}"


class BrokenError(AssertionError):
    """The query broke a promise."""


Positions = Mapping[Partition, int]
Output = Mapping[Partition, list[Row]]
Filters = Mapping[str, frozenset[str]]


def store_of(partition: Partition) -> Store:
    return Store(partition.broker_id, partition.topic, partition.store_id)


@dataclass
class Ledger:
    entries: dict[Store, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    extents: dict[Store, Extent] = field(default_factory=dict)
    acknowledged: list[tuple[Partition | None, bytes]] = field(default_factory=list)
    losses: list[Span] = field(default_factory=list)
    tails: list[Span] = field(default_factory=list)  # the parts of `losses` that the query had read, by partition
    lost_at: list[float] = field(default_factory=list)  # the times of the losses, in seconds since the epoch
    reports: list[Span] = field(default_factory=list)
    begun: dict[Partition, int] = field(default_factory=dict)  # the store's epoch when the query began to read
    _epochs: Counter[Store] = field(default_factory=Counter)

    def add(self, entry: Entry) -> None:
        store = store_of(entry.partition)
        entry.epoch = self._epochs[store]
        self.entries[store].append(entry)

    def begins(self, partition: Partition) -> None:
        """Record that the query begins to read `partition` now."""
        self.begun[partition] = self._epochs[store_of(partition)]

    def set_extent(self, store: Store, extent: Extent, how: str, seen: Positions) -> bool:
        """Record the extent of a store. `seen` has the ends of the query's last logged micro-batch. Return True if
        messages are lost."""
        before = self.extents.get(store, Extent(extent.first, extent.end))
        self.extents[store] = extent
        spans = []
        if extent.end < before.end:
            spans.append(Span(store, None, extent.end, before.end, how))
            self._epochs[store] += 1
            self.tails += [
                Span(store, partition, extent.end, at)
                for partition, at in seen.items()
                if store_of(partition) == store and at > extent.end
            ]
        if extent.first > before.first:
            spans.append(Span(store, None, before.first, extent.first, how))
        self.losses += spans
        self.lost_at += [time.time()] * len(spans)
        for entry in self.entries[store]:
            if entry.lost is None and not extent.first <= entry.position < extent.end:
                entry.lost = how
                # The query cannot miss the tail of a store if it has not read that tail.
                entry.is_noticeable = entry.position < extent.first or entry.position < seen.get(entry.partition, 0)
        return bool(spans)

    def forgets(self, seen: Positions) -> None:
        """Record that the query's offset log ends at `seen` again, because its last entry was removed."""
        for entries in self.entries.values():
            for entry in entries:
                if entry.lost == CRASH and entry.position >= seen.get(entry.partition, 0):
                    entry.is_noticeable = False
        self.tails = [tail for tail in self.tails if tail.first < _seen_of(tail, seen)]

    def report(self, partition: Partition, asked: int, offered: int, text: str) -> None:
        first, end = sorted((asked, offered))
        self.reports.append(Span(store_of(partition), partition, first, end, text))

    def explains(self, partition: Partition, asked: int, offered: int) -> bool:
        """Return True if the server lost all of these positions."""
        first, end = sorted((asked, offered))
        spans = sorted((s.first, s.end) for s in self.losses if s.store == store_of(partition))
        for lost_first, lost_end in spans:
            if lost_first <= first < lost_end:
                first = lost_end
        return first >= end

    def check(self, output: Output, starts: Positions, msg_types: Filters | None = None) -> None:
        """Raise `BrokenError` if the rows break a promise. `output` are the committed rows, `starts` the first position
        of each partition. `msg_types` are the query's filters."""
        for partition in {*output, *starts}:
            entries = [entry for entry in self.entries[store_of(partition)] if entry.partition == partition]
            types = (msg_types or {}).get(partition.topic)
            self._check_partition(partition, entries, output.get(partition, []), starts.get(partition), types)
        for tail in self.tails:
            if not any(
                r.partition == tail.partition and r.first < tail.end and r.end > tail.first for r in self.reports
            ):
                raise BrokenError(
                    f"the query had read {tail}, which is lost, and did not report that; reported: {self.reported()}"
                )
        for report in self.reports:
            assert report.partition is not None
            if not self.explains(report.partition, report.first, report.end):
                raise BrokenError(
                    f"the query reported the loss of {report}, which the server did not lose: {report.text}"
                )

    def _check_partition(
        self,
        partition: Partition,
        entries: list[Entry],
        rows: list[Row],
        start: int | None,
        msg_types: frozenset[str] | None,
    ) -> None:
        if start is None:
            raise BrokenError(f"{partition} has rows, but the checkpoint does not name it")
        places = {(entry.row.message_id, entry.row.body): place for place, entry in enumerate(entries)}
        last = -1
        given = set()
        for row in rows:
            place = places.get((row.message_id, row.body))
            if place is None:
                raise BrokenError(f"{partition}: {row} was never stored")
            entry = entries[place]
            if place in given:
                raise BrokenError(f"{partition}: {entry} came twice")
            if place < last:
                raise BrokenError(f"{partition}: {entry} came after {entries[last]}")
            if row.offset is not None and row.offset != entry.position:
                raise BrokenError(f"{partition}: {entry} came with offset {row.offset}")
            if self._is_before(entry, start) and entry.lost is None:
                raise BrokenError(f"{partition}: {entry} came, which lies before the start {start}")
            if msg_types is not None and entry.row.msg_type not in msg_types:
                raise BrokenError(f"{partition}: {entry} came, of type {entry.row.msg_type}")
            given.add(place)
            last = place
        for place, entry in enumerate(entries):
            if place in given or self._is_before(entry, start):
                continue
            if msg_types is not None and entry.row.msg_type not in msg_types:
                continue
            if entry.lost is None:
                raise BrokenError(f"{partition}: {entry} is missing")
            if entry.is_noticeable and not self._is_reported(entry):
                raise BrokenError(
                    f"{partition}: {entry} is missing, and its loss was not reported; reported: {self.reported()}"
                )

    def _is_before(self, entry: Entry, start: int) -> bool:
        """Return True if the message is older than the query. A store that lost its tail uses positions below the start
        again."""
        return entry.position < start and entry.epoch <= self.begun.get(entry.partition, 0)

    def reported(self) -> str:
        return ", ".join(map(str, self.reports)) or "nothing"

    def _is_reported(self, entry: Entry) -> bool:
        return any(
            report.partition == entry.partition and report.first <= entry.position < report.end
            for report in self.reports
        )


def _seen_of(tail: Span, seen: Positions) -> int:
    assert tail.partition is not None
    return seen.get(tail.partition, 0)


def same_rows(one: Output, other: Output) -> bool:
    return all(
        len(one.get(p, [])) == len(other.get(p, [])) and is_start_of(one.get(p, []), other.get(p, []))
        for p in {*one, *other}
    )


def is_start_of(part: Sequence[Row], whole: Sequence[Row]) -> bool:
    return len(part) <= len(whole) and all(map(are_alike, part, whole))


def are_alike(one: Row, other: Row) -> bool:
    """Return True if two rows of a repeated micro-batch are equal, apart from one allowed difference.

    A row has an `offset` while its partition is the only one of its store. If the store gets another partition between
    the two attempts, the second row has no `offset`.
    """
    return one[1:] == other[1:] and (one.offset == other.offset or other.offset is None)


__all__ = [
    "UNIT",
    "BrokenError",
    "Entry",
    "Extent",
    "Ledger",
    "Output",
    "Positions",
    "Row",
    "Span",
    "Store",
    "store_of",
]
