# SPDX-License-Identifier: Apache-2.0
"""A simulated TubeMQ store with the broker's read cursor of one consumer, in memory.

It follows MessageStore, MsgFileStore, MsgMemStore and DefaultOffsetManager: one index for all partitions of the store,
flushed files and two memory blocks that are read differently, and a cursor of a confirmed position plus a part in
flight. Attributes count entries from 0; requests and replies have positions in bytes of the index, 28 for each entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tubemq_spark.protocol.errcode import NotFound

UNIT = 28


@dataclass(frozen=True)
class Message:
    messageId: int  # noqa: N815
    checkSum: int  # noqa: N815


class Entry(NamedTuple):
    partition: int
    message: Message | None  # None: unreadable, it takes a position and no fetch ever returns it
    matches: bool = True  # True if it passes the reader's filter
    too_long: bool = False  # for the broker's reader of memory


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
    """The entries that one fetch reads. The last two count messages; the real limits count bytes."""

    file_entries: int = 4000
    memory_entries: int = 6000
    first_messages: int = 327_680
    messages: int = 524_288


@dataclass
class SimulatedStore:
    """Entries before `flushed` are in files, those before `backup` in the block being flushed, others in the other."""

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
    moved: bool = False  # by another client, since the last seek

    stale: int = 0  # next fetches that read nothing: the index is flushed, the data is not
    busy: int = 0  # next fetches that get a 404 of kind WAIT
    racing: list[int] = field(
        default_factory=list
    )  # partitions of entries that arrive during the next fetch from memory

    numbers: dict[Message, int] = field(default_factory=dict)  # of all messages, also lost ones
    minima: list[int] = field(default_factory=list)  # all so far
    ends: list[int] = field(default_factory=list)  # that seeks returned
    _next_id: int = 1000

    # Producers, the flush thread, retention, administrators and crashes

    def append(self, *partitions: int, unreadable: bool = False, matches: bool = True, too_long: bool = False) -> None:
        for partition in partitions:
            self._next_id += 1
            message = None if unreadable else Message(self._next_id, self._next_id % 7)
            if message is not None:
                self.numbers[message] = len(self.entries)
            self.entries.append(Entry(partition, message, matches, too_long))

    def flush(self) -> None:
        self.flushed = self.backup

    def swap_blocks(self) -> None:
        """Begin to flush the block with new messages, and finish the flush of the other one."""
        self.flushed = self.backup
        self.backup = len(self.entries)

    def expire(self, position: int) -> None:
        """Remove entries as retention does: files only, and never the last file."""
        position = max(self.minimum, min(position, self.flushed - 1))
        if not self._undoes_a_move(self.confirmed, position):
            self.minimum = position
            self.minima.append(position)

    def crash(self, keep: int, confirmed: int | None) -> None:
        """Restart the store with `keep` entries, all in files, and the group at an older position or without one."""
        del self.entries[max(keep, self.minimum) :]
        self.flushed = self.backup = len(self.entries)
        self.confirmed, self.in_flight, self.sought_at, self.racing = confirmed, 0, None, []
        self._next_id -= 500  # a new process counts ids from another time

    def move_group(self, to: int | None) -> bool:
        """Set the group's position as an administrator does, or remove its record (None) as for an idle group.

        Return False and do nothing if that would undo an earlier move since the last seek.
        """
        if to is not None:
            to = max(self.minimum, min(to, len(self.entries)))
        if self._undoes_a_move(to, self.minimum):
            return False
        self.confirmed, self.in_flight, self.moved = to, 0, True
        return True

    def _undoes_a_move(self, to: int | None, minimum: int) -> bool:
        """Return True if the group would be again where the reader put it: no reply shows such a pair of moves."""
        return self.moved and max(to or 0, minimum) == self.sought_at

    # Requests of the reader

    def seek(self, position: int) -> Sought:
        self.confirmed = max(self.minimum, min(position // UNIT, len(self.entries)))
        self.in_flight, self.first_fetch, self.sought_at, self.moved = 0, True, self.confirmed, False
        self.ends.append(len(self.entries))
        return Sought(self.confirmed * UNIT, len(self.entries) * UNIT)

    def ask_files(self, position: int) -> FilesEnd:
        """Seek, and return where the files end."""
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
        """Return the position to read from, None at the end of the store (DefaultOffsetManager.getOffset)."""
        self.confirmed = self.confirmed or 0
        at = self.confirmed + self.in_flight
        if at >= len(self.entries):
            self.in_flight += min(0, len(self.entries) - at)
            return None
        if at < self.minimum:
            self.confirmed += self.minimum - at  # the part in flight is dropped, not moved
            self.in_flight = 0
            return self.confirmed
        return at

    def _fetch_files(self, partition: int, at: int) -> Fetched:
        # The broker's loop compares with the remaining bytes of a buffer that it empties, so it stops half way.
        available = min(self.flushed - at, 2 * self.limits.file_entries)
        count = -(-available // 2)
        if self.stale:
            self.stale -= 1
            count = 0
        messages, read = self._scan(partition, at, count)
        self.in_flight += read
        return Fetched(at * UNIT, len(self.entries) * UNIT, messages)

    def _fetch_memory(self, partition: int, at: int) -> Fetched | NotFound:
        max_offset = len(self.entries) * UNIT  # taken before the block is read
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
        """Return the messages of at most `count` entries, and the number of entries passed."""
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

    # Questions of tests

    def is_readable(self, entry: Entry, partition: int) -> bool:
        return entry.message is not None and entry.partition == partition and (entry.matches or not self.filtered)

    @property
    def messages(self) -> set[Message]:
        return {entry.message for entry in self.entries if entry.message is not None}

    def readable(self, partition: int, start: int, end: int) -> list[tuple[int, Message]]:
        """Return position (in bytes) and message of all that a read of [start, end) must return."""
        return [
            (number * UNIT, entry.message)
            for number, entry in enumerate(self.entries[: end // UNIT])
            if number * UNIT >= start and self.is_readable(entry, partition) and entry.message is not None
        ]
