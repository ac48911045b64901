"""A TubeMQ store and the broker-side cursor of one consumer, in memory, as far as reading goes.

The rules are those of MessageStore, MsgFileStore, MsgMemStore and DefaultOffsetManager: one index for all partitions of
the store, flushed files and two memory blocks that are read differently, a cursor made of a confirmed position and a
part in flight. Entries are counted from 0 inside; positions on the outside are bytes of the index, 28 an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tubemq_spark.protocol.not_found import NotFound

UNIT = 28


@dataclass(frozen=True)
class Message:
    messageId: int  # noqa: N815
    checkSum: int  # noqa: N815


class Entry(NamedTuple):
    partition: int
    message: Message | None  # None: poisoned, takes a position, and no fetch ever returns it
    matches: bool = True  # whether it passes the reader's filter, if that has one
    too_long: bool = False  # to be read from memory


class Sought(NamedTuple):
    curr_offset: int
    max_offset: int


class FilesEnd(NamedTuple):
    position: int


class Fetched(NamedTuple):
    begin: int
    max_offset: int
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Limits:
    """How much one fetch reads, in entries; the last two count messages, as the real limits count bytes."""

    file_entries: int = 4000
    memory_entries: int = 6000
    first_messages: int = 327_680
    messages: int = 524_288


@dataclass
class SimulatedStore:
    """Entries below `flushed` are in files, those below `backup` in the block being flushed, the rest in the other."""

    limits: Limits = field(default_factory=Limits)
    filtered: bool = False
    entries: list[Entry] = field(default_factory=list)
    minimum: int = 0
    flushed: int = 0
    backup: int = 0

    confirmed: int | None = None  # in entries, like `in_flight`; None: the group has no record
    in_flight: int = 0
    first_fetch: bool = True
    sought_at: int | None = None
    moved: bool = False  # by somebody else, since the last seek

    stale: int = 0  # fetches to come that read nothing: index flushed, data not yet
    busy: int = 0  # fetches to come that are refused for now
    racing: list[int] = field(
        default_factory=list
    )  # partitions of entries that come in while the next fetch from memory is under way

    numbers: dict[Message, int] = field(default_factory=dict)  # of all messages there ever were
    minima: list[int] = field(default_factory=list)  # there ever were
    ends: list[int] = field(default_factory=list)  # as seeks told them
    _next_id: int = 1000

    # What producers, the flush thread, retention, administrators and crashes do

    def append(self, *partitions: int, poisoned: bool = False, matches: bool = True, too_long: bool = False) -> None:
        for partition in partitions:
            self._next_id += 1
            message = None if poisoned else Message(self._next_id, self._next_id % 7)
            if message is not None:
                self.numbers[message] = len(self.entries)
            self.entries.append(Entry(partition, message, matches, too_long))

    def flush(self) -> None:
        self.flushed = self.backup

    def swap_blocks(self) -> None:
        """The block that takes messages becomes the one that is flushed; the other must have been flushed before."""
        self.flushed = self.backup
        self.backup = len(self.entries)

    def expire(self, position: int) -> None:
        """Retention removes files, never memory, and never the file that is written to."""
        position = max(self.minimum, min(position, self.flushed - 1))
        if not self._undoes_a_move(self.confirmed, position):
            self.minimum = position
            self.minima.append(position)

    def crash(self, keep: int, confirmed: int | None) -> None:
        """The store comes back with `keep` entries, all in files, and the group at an older position or without any."""
        del self.entries[max(keep, self.minimum) :]
        self.flushed = self.backup = len(self.entries)
        self.confirmed, self.in_flight, self.sought_at, self.racing = confirmed, 0, None, []
        self._next_id -= 500  # a new process counts from another clock

    def move_group(self, to: int | None) -> bool:
        """An administrator sets the position, or (None) its record is removed, as that of an expired group is.

        Refused, and False, when that would undo an earlier move before the reader sought again.
        """
        if to is not None:
            to = max(self.minimum, min(to, len(self.entries)))
        if self._undoes_a_move(to, self.minimum):
            return False
        self.confirmed, self.in_flight, self.moved = to, 0, True
        return True

    def _undoes_a_move(self, to: int | None, minimum: int) -> bool:
        """Whether the group would stand again where the reader put it: no answer of a broker tells of such a pair."""
        return self.moved and max(to or 0, minimum) == self.sought_at

    # What the reader's requests do

    def seek(self, position: int) -> Sought:
        self.confirmed = max(self.minimum, min(position // UNIT, len(self.entries)))
        self.in_flight, self.first_fetch, self.sought_at, self.moved = 0, True, self.confirmed, False
        self.ends.append(len(self.entries))
        return Sought(self.confirmed * UNIT, len(self.entries) * UNIT)

    def ask_files(self, position: int) -> FilesEnd:
        """A seek whose answer tells where the files end."""
        self.seek(position)
        return FilesEnd(self.flushed * UNIT)

    def roll_back(self) -> int:
        self.in_flight = 0
        self.confirmed = self.confirmed or 0
        return self.confirmed * UNIT

    def fetch(self, partition: int) -> Fetched | NotFound:
        at = self._cursor()
        if at is None:
            return NotFound.END
        if self.busy:
            self.busy -= 1
            return NotFound.WAIT
        if at < self.flushed:
            return self._fetch_files(partition, max(at, self.minimum))
        return self._fetch_memory(partition, at)

    def _cursor(self) -> int | None:
        """The position to read from, None at the end of the store (DefaultOffsetManager.getOffset)."""
        self.confirmed = self.confirmed or 0
        at = self.confirmed + self.in_flight
        if at >= len(self.entries):
            self.in_flight += min(0, len(self.entries) - at)
            return None
        if at < self.minimum:
            self.confirmed += self.minimum - at  # the part in flight is forgotten, not moved
            self.in_flight = 0
            return self.confirmed
        return at

    def _fetch_files(self, partition: int, at: int) -> Fetched:
        # The loop runs over the remaining bytes of a buffer that it is emptying: it stops half way.
        available = min(self.flushed - at, 2 * self.limits.file_entries)
        count = -(-available // 2)
        if self.stale:
            self.stale -= 1
            count = 0
        messages, read = self._scan(partition, at, count)
        self.in_flight += read
        return Fetched(at * UNIT, len(self.entries) * UNIT, messages)

    def _fetch_memory(self, partition: int, at: int) -> Fetched | NotFound:
        max_offset = len(self.entries) * UNIT  # taken before the block is looked at
        in_backup = at < self.backup
        self.append(*self.racing)
        self.racing = []
        block_end = self.backup if in_backup else len(self.entries)
        block = self.entries[at:block_end]
        if not any((e.matches if self.filtered else e.partition == partition) for e in block):
            self.in_flight += block_end - at
            if in_backup and not self.filtered:
                return Fetched(at * UNIT, max_offset, ())
            return NotFound.PASSED
        messages, read = self._scan(partition, at, min(block_end - at, self.limits.memory_entries))
        self.in_flight += read
        return Fetched(at * UNIT, max_offset, messages)

    def _scan(self, partition: int, at: int, count: int) -> tuple[tuple[Message, ...], int]:
        """The messages of at most `count` entries, and how many entries were passed."""
        wanted = self.limits.first_messages if self.first_fetch else self.limits.messages
        self.first_fetch = False
        messages: list[Message] = []
        for number in range(at, at + count):
            in_memory = number >= self.flushed
            if self.is_readable(self.entries[number], partition) and not (in_memory and self.entries[number].too_long):
                message = self.entries[number].message
                assert message is not None
                messages.append(message)
                if len(messages) == wanted:
                    return tuple(messages), number + 1 - at
        return tuple(messages), count

    # What a test may ask

    def is_readable(self, entry: Entry, partition: int) -> bool:
        return entry.message is not None and entry.partition == partition and (entry.matches or not self.filtered)

    @property
    def messages(self) -> set[Message]:
        return {entry.message for entry in self.entries if entry.message is not None}

    def readable(self, partition: int, start: int, end: int) -> list[tuple[int, Message]]:
        """Position and message of all that a read of [start, end) must give, positions in bytes."""
        return [
            (number * UNIT, entry.message)
            for number, entry in enumerate(self.entries[: end // UNIT])
            if number * UNIT >= start and self.is_readable(entry, partition) and entry.message is not None
        ]
