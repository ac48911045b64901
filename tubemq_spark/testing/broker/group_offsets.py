# SPDX-License-Identifier: Apache-2.0
"""Offsets of the consumer groups on a broker: confirmed positions (commits), what is in flight beyond them, and what
remains of both after a crash.

wire: DefaultOffsetManager, OffsetStorageInfo, FileOffsetStorage, ZkOffsetStorage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, ReadStatus
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.clock import Clock, Period
from tubemq_spark.testing.config import Release, ServerConfig

_EXPIRY_CHECK_PERIOD = 600.0
_LONGEST_DELAY = 20.0  # seconds that a get may take: a claim lives longer


class Key(NamedTuple):
    """A group on a partition; `str()` gives the broker's name for it."""

    group: str
    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.group}:{self.topic}:{self.partition_id}"


@dataclass
class _Record:
    confirmed: int
    changed_at: float
    fresh: bool = True  # nothing was confirmed yet; the first commit counts as a change even if it moves nothing


@dataclass
class _DelayedAdvance:
    """The advance of a slow get: applied when `gets` more gets have begun, unless that happens after `until`."""

    advance: int
    gets: int
    until: float


class GroupOffsets:
    """The positions of all groups on one broker, in bytes, always multiples of 28."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._has_file = config.release is Release.V2_5
        self._clock = clock
        self._records: dict[Key, _Record] = {}
        self._in_flight: dict[Key, int] = {}
        self._delayed: dict[Key, list[_DelayedAdvance]] = {}
        self._delay_next_get: int | None = None
        self._table: dict[Key, _Record] = {}  # what the flush timer has copied from the records
        self._durable: dict[Key, _Record] = {}  # what a crash does not lose
        self._table_due = Period(clock, config.offset_flush_interval)
        self._file_due = Period(clock, config.offset_file_interval)
        self._expiry_due = Period(clock, _EXPIRY_CHECK_PERIOD)

    def load(self, key: Key, store: Store, read_status: int, asked: int) -> int:
        """Apply a register and return the confirmed position after it."""
        start = store.min_offset if read_status == ReadStatus.NORMAL else store.max_offset
        record = self._record(key, start)
        self._in_flight[key] = 0
        if read_status == ReadStatus.FROM_MAX_ALWAYS:
            self._set(record, store.max_offset)
        elif asked >= 0:
            self._set(record, max(store.min_offset, min(asked, store.max_offset)))
        return record.confirmed

    def next_read(self, key: Key, store: Store, manual: bool, last_consumed: bool) -> int | None:
        """Return where a get reads; None at the end of the store, except for an empty one, as on the broker.

        The broker skips deleted messages in its own way: the result, and the cursor, may stay below the minimum.
        """
        record = self._record(key, 0)
        position = record.confirmed
        if manual:
            position += self._in_flight.get(key, 0)
        elif last_consumed:
            position = self.commit(key, True)
        low, high = store.min_offset, store.max_offset
        if position >= high:
            if position > high:  # a crash took the tail
                self._in_flight[key] = high - position
                if not manual:
                    self.commit(key, True)
            return None if position > 0 else 0  # the broker returns the end as a negative number; there is no -0
        if position < low:
            # In manual mode this counts twice what was in flight, and the next gets repeat messages.
            self._in_flight[key] = low - position
            return self.commit(key, True)
        return position

    def advance(self, key: Key, advance: int, manual: bool, empty: bool) -> None:
        """Move the cursor by a read of `advance` bytes."""
        if advance == 0:
            return
        if manual:
            self._in_flight[key] = self._in_flight.get(key, 0) + advance
        else:
            self._in_flight[key] = advance
            if empty:
                self.commit(key, True)

    def advance_later(self, key: Key, advance: int, gets: int) -> None:
        """Move the cursor as `advance` in manual mode, but only when `gets` more gets have begun.

        This is a slow worker of the broker: nothing orders its update and the requests of others meanwhile.
        """
        delayed = _DelayedAdvance(advance, gets, self._clock.now() + _LONGEST_DELAY)
        self._delayed.setdefault(key, []).append(delayed)

    def delay_next_get(self, gets: int) -> None:
        """Let the next get of the broker move its cursor when `gets` more gets of the group have begun."""
        self._delay_next_get = gets

    @property
    def delays_next_get(self) -> bool:
        return self._delay_next_get is not None

    def begin_get(self, key: Key) -> int | None:
        """Apply the delayed advances that are due; return by how many gets the advance of this one is delayed."""
        for delayed in self._delayed.get(key, []):
            delayed.gets -= 1
            if delayed.gets == 0 and self._clock.now() < delayed.until:
                self.advance(key, delayed.advance, True, False)
        delay, self._delay_next_get = self._delay_next_get, None
        return delay

    def commit(self, key: Key, consumed: bool) -> int:
        """Confirm what is in flight, or drop it; return the confirmed position."""
        in_flight = self._in_flight.get(key, 0) if consumed else 0
        self._in_flight[key] = 0
        record = self._record(key, 0)
        if in_flight or record.fresh:
            self._set(record, record.confirmed + in_flight)
        return record.confirmed

    def confirmed(self, key: Key) -> int | None:
        """Return the confirmed position; None without a record."""
        record = self._records.get(key) or self._table.get(key)
        return None if record is None else record.confirmed

    def recorded(self) -> list[Key]:
        """Return the partitions of all groups that have a record."""
        return list({**self._records, **self._table})

    def in_flight(self, key: Key) -> int:
        """Return how many bytes of the index were read and not confirmed."""
        return self._in_flight.get(key, 0)

    def move(self, key: Key, position: int) -> None:
        """Set the confirmed position and drop what is in flight, as `admin_set_offset` does."""
        self._in_flight[key] = 0
        self._set(self._record(key, 0), position)

    def remove(self, group: str) -> None:
        """Delete all records of a group, as `admin_rmv_offset` does."""
        for records in (self._records, self._table, self._durable):
            for key in [key for key in records if key.group == group]:
                del records[key]
        for key in [key for key in self._in_flight if key.group == group]:
            del self._in_flight[key]

    def tick(self) -> None:
        """Run the broker's timers: write positions, and expire groups that were unused for long.

        Release 1.2 keeps positions in ZooKeeper only and never expires them; 2.5 has a file as well.
        """
        if self._table_due.is_due():
            self._write_table()
            if not self._has_file:
                self._durable = dict(self._table)
        if self._has_file and self._file_due.is_due():
            self._durable = dict(self._table)
        if self._has_file and self._expiry_due.is_due():
            self._expire()

    def stop(self) -> None:
        """Confirm all that is in flight and write everything, as an orderly stop does."""
        if any(key.partition_id < 0 for key in self._in_flight):
            return  # such a key raises an exception in the broker, which then writes nothing
        for key, in_flight in list(self._in_flight.items()):
            if in_flight:
                self.commit(key, True)
        self._write_table()
        self._durable = dict(self._table)

    def lose_file(self) -> None:
        """Restart without the file; release 1.2 has none, and finds its positions in ZooKeeper."""
        if self._has_file:
            self._durable = {}
        self.restart()

    def restart(self) -> None:
        """Start with the positions that were written."""
        self._records = {}
        self._in_flight = {}
        self._delayed = {}
        self._table = dict(self._durable)

    def _record(self, key: Key, start: int) -> _Record:
        record = self._records.get(key)
        if record is None:
            kept = self._table.get(key)
            record = _Record(_round(start), self._clock.now()) if kept is None else replace(kept, fresh=False)
            self._records[key] = record
        return record

    def _set(self, record: _Record, position: int) -> None:
        record.confirmed = _round(position)
        record.changed_at = self._clock.now()
        record.fresh = False

    def _write_table(self) -> None:
        self._table.update((key, replace(record)) for key, record in self._records.items())

    def _expire(self) -> None:
        oldest = self._clock.now() - self._config.group_offset_expiry
        groups: dict[str, float] = {}
        for key, record in self._table.items():
            groups[key.group] = max(groups.get(key.group, 0.0), record.changed_at)
        for group, changed_at in groups.items():
            if changed_at < oldest:
                self.remove(group)


def _round(position: int) -> int:
    return position - position % INDEX_MSG_UNIT_SIZE
