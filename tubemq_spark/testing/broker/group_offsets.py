"""Where groups stand on a broker: confirmed positions, what is in flight beyond them, and what a crash leaves of both.

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
_SLOWEST = 20.0  # seconds


class Key(NamedTuple):
    """A group on a partition; `str()` is how the broker names it."""

    group: str
    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.group}:{self.topic}:{self.partition_id}"


@dataclass
class _Record:
    confirmed: int
    changed_at: float
    fresh: bool = True  # nothing was confirmed yet: the first commit counts as a change even when it moves nothing


@dataclass
class _Late:
    """What a get advances the cursor by when so many more gets have begun, if they do until then."""

    advance: int
    gets: int
    until: float


class GroupOffsets:
    """The positions of all groups on one broker, in bytes, always multiples of 28."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._records: dict[Key, _Record] = {}
        self._in_flight: dict[Key, int] = {}
        self._late: dict[Key, list[_Late]] = {}
        self._table: dict[Key, _Record] = {}
        self._durable: dict[Key, _Record] = {}
        self._table_due = Period(clock, config.offset_flush_interval)
        self._file_due = Period(clock, config.offset_file_interval)
        self._expiry_due = Period(clock, _EXPIRY_CHECK_PERIOD)

    def load(self, key: Key, store: Store, read_status: int, asked: int) -> int:
        """What a register does; gives the confirmed position after it."""
        start = store.min_offset if read_status == ReadStatus.NORMAL else store.max_offset
        record = self._record(key, start)
        self._in_flight[key] = 0
        if read_status == ReadStatus.FROM_MAX_ALWAYS:
            self._set(record, store.max_offset)
        elif asked >= 0:
            self._set(record, max(store.min_offset, min(asked, store.max_offset)))
        return record.confirmed

    def next_read(self, key: Key, store: Store, manual: bool, last_consumed: bool) -> int | None:
        """Where a get reads; None at the end of the store, which the broker does not notice in an empty one.

        What is gone is stepped over as the broker does it: the answer may be below the minimum then, and so may the
        cursor stay.
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
            return None if position > 0 else 0  # told as a negative number, and there is no -0
        if position < low:
            # In manual mode this counts what was in flight twice, and the next gets repeat themselves.
            self._in_flight[key] = low - position
            return self.commit(key, True)
        return position

    def book(self, key: Key, advance: int, manual: bool, empty: bool) -> None:
        """Takes a read of `advance` bytes into the cursor."""
        if advance == 0:
            return
        if manual:
            self._in_flight[key] = self._in_flight.get(key, 0) + advance
        else:
            self._in_flight[key] = advance
            if empty:
                self.commit(key, True)

    def book_late(self, key: Key, advance: int, gets: int) -> None:
        """As `book` in manual mode, but when so many more gets have begun: a worker of the broker is slow, and nothing
        orders its booking and what others do meanwhile. None is slow for as long as a claim lives."""
        self._late.setdefault(key, []).append(_Late(advance, gets, self._clock.now() + _SLOWEST))

    def begin_get(self, key: Key) -> None:
        """Books what is due by now."""
        for late in self._late.get(key, []):
            late.gets -= 1
            if late.gets == 0 and self._clock.now() < late.until:
                self.book(key, late.advance, True, False)

    def commit(self, key: Key, consumed: bool) -> int:
        """Confirms what is in flight, or drops it; gives the confirmed position."""
        in_flight = self._in_flight.get(key, 0) if consumed else 0
        self._in_flight[key] = 0
        record = self._record(key, 0)
        if in_flight or record.fresh:
            self._set(record, record.confirmed + in_flight)
        return record.confirmed

    def confirmed(self, key: Key) -> int | None:
        """None without a record."""
        record = self._records.get(key) or self._table.get(key)
        return None if record is None else record.confirmed

    def move(self, key: Key, position: int) -> None:
        """Sets the confirmed position, as `admin_set_offset` does; what was in flight is forgotten."""
        self._in_flight[key] = 0
        self._set(self._record(key, 0), position)

    def remove(self, group: str) -> None:
        """Forgets a group altogether, as `admin_rmv_offset` does."""
        for records in (self._records, self._table, self._durable):
            for key in [key for key in records if key.group == group]:
                del records[key]
        for key in [key for key in self._in_flight if key.group == group]:
            del self._in_flight[key]

    def tick(self) -> None:
        """What the broker's timers do: write positions down, and drop groups that nobody has used for long."""
        has_file = self._config.release is Release.V2_5  # 1.2 keeps them in ZooKeeper alone, and for ever
        if self._table_due.is_due():
            self._write_table()
            if not has_file:
                self._durable = dict(self._table)
        if has_file and self._file_due.is_due():
            self._durable = dict(self._table)
        if has_file and self._expiry_due.is_due():
            self._expire()

    def stop(self) -> None:
        """An orderly stop confirms all that is in flight, and writes everything down."""
        if any(key.partition_id < 0 for key in self._in_flight):
            return  # the broker meets an exception at such a key and writes nothing
        for key, in_flight in list(self._in_flight.items()):
            if in_flight:
                self.commit(key, True)
        self._write_table()
        self._durable = dict(self._table)

    def restart(self) -> None:
        """What a start finds: the positions that were written down."""
        self._records = {}
        self._in_flight = {}
        self._late = {}
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
