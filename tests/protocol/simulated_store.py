# SPDX-License-Identifier: Apache-2.0
"""A store of the embedded broker and the read cursor of one consumer, with a record of all messages that it ever had.

`Limits` count entries, and not bytes as the broker does. Positions in requests and replies are bytes of the index, 28
for each entry; arguments of other methods count entries from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN, ReadStatus
from tubemq_spark.protocol.errcode import ErrCode, NotFound, not_found_kind
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig

UNIT = INDEX_MSG_UNIT_SIZE
_KEY = Key("g", "demo", 7)
_TOO_LONG = 100 + MESSAGE_SIZE_SLACK  # bytes of a payload that the broker does not return from memory
_CONFIG = ServerConfig(
    max_msg_size=100,
    mem_cache_msg_count=1 << 40,
    mem_cache_msg_size=1 << 40,
    max_index_segment_entries=1 << 40,
    topic_max_bytes=1 << 50,
)


class Message(NamedTuple):
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
    """The entries that one fetch reads, and the messages that it returns."""

    file_entries: int = 4000
    memory_entries: int = 6000
    first_messages: int = 327_680
    messages: int = 524_288


class _StoppedClock(Clock):
    def now(self) -> float:
        return 0.0


class SimulatedStore:
    """The entries, `filtered` or not for the reader, and faults: `stale` fetches find an index without its data, `busy`
    ones get a 404, and entries of partitions `racing` arrive during the next fetch from memory."""

    def __init__(self, limits: Limits | None = None, filtered: bool = False) -> None:
        self.filtered = filtered
        self.entries: list[Entry] = []
        self.stale = self.busy = 0
        self.racing: list[int] = []
        self.sought_at: int | None = None
        self.numbers: dict[Message, int] = {}  # of all messages, also lost ones
        self.minima: list[int] = []  # all so far
        self.ends: list[int] = []  # that seeks returned
        self._next_id = 1000
        self._first_fetch = True
        self._moved = False  # by another client, since the last seek
        self._clock = _StoppedClock()
        self._offsets = GroupOffsets(_CONFIG, self._clock)
        self._store = self._new_store()
        self.limits = limits or Limits()

    def _new_store(self) -> Store:
        return Store(TopicLayout(1, 1), replace(_CONFIG), self._clock)

    @property
    def minimum(self) -> int:
        return self._store.min_offset // UNIT

    # Producers, the flush thread, retention, administrators and crashes

    def append(self, *partitions: int, unreadable: bool = False, matches: bool = True, too_long: bool = False) -> None:
        for partition in partitions:
            self._next_id += 1
            message = None if unreadable else Message(self._next_id, self._next_id % 7)
            if message is not None:
                self.numbers[message] = len(self.entries)
            self.entries.append(Entry(partition, message, matches, too_long))
            self._append(self.entries[-1])

    def _append(self, entry: Entry) -> None:
        partition, message, matches, too_long = entry
        flag = ATTRIBUTES_FLAG if message is None else 0
        payload = b"." * _TOO_LONG if too_long else b""
        self._store.append(partition, int(matches), *(message or (0, 0)), flag, payload)

    def swap_blocks(self) -> None:
        """Write the block in memory into files that readers of files do not see yet."""
        self._store._flush_block()

    def flush(self) -> None:
        self._store.flush()

    def expire(self, position: int) -> None:
        """Remove entries as retention does: files only, and never the last entry."""
        self.flush()
        position = max(self.minimum, min(position, len(self.entries) - 1))
        if not self._undoes_a_move(self._confirmed, position):
            self._store.keep(len(self.entries) - position)
            self.minima.append(position)

    def crash(self, keep: int, confirmed: int | None) -> None:
        """Restart the store with `keep` entries, all in files, and the group at an older position or without one."""
        minimum = self.minimum
        del self.entries[max(keep, minimum) :]
        limits, self._store = self.limits, self._new_store()
        self.limits = limits
        for entry in self.entries:
            self._append(entry)
        self.flush()
        if minimum:
            self._store.keep(len(self.entries) - minimum)
        self._offsets.remove(_KEY.group)
        if confirmed is not None:
            self._offsets.move(_KEY, confirmed * UNIT)
        self.sought_at, self.racing = None, []
        self._next_id -= 500  # a new process counts ids from another time

    def move_group(self, to: int | None) -> bool:
        """Set the group's position as an administrator does, or remove its record (None) as for an idle group.

        Return False and do nothing if that would undo an earlier move since the last seek.
        """
        if to is not None:
            to = max(self.minimum, min(to, len(self.entries)))
        if self._undoes_a_move(to, self.minimum):
            return False
        if to is None:
            self._offsets.remove(_KEY.group)
        else:
            self._offsets.move(_KEY, to * UNIT)
        self._moved = True
        return True

    @property
    def _confirmed(self) -> int | None:
        position = self._offsets.confirmed(_KEY)
        return None if position is None else position // UNIT

    def _undoes_a_move(self, to: int | None, minimum: int) -> bool:
        """Return True if the group would be again where the reader put it: no reply shows such a pair of moves."""
        return self._moved and max(to or 0, minimum) == self.sought_at

    # Requests of the reader

    def seek(self, position: int) -> Sought:
        found = self._offsets.load(_KEY, self._store, ReadStatus.NORMAL, position)
        self.sought_at, self._first_fetch, self._moved = found // UNIT, True, False
        self.ends.append(len(self.entries))
        return Sought(found, self._store.max_offset)

    def ask_files(self, position: int) -> FilesEnd:
        """Seek, and return where the files end."""
        self.seek(position)
        return FilesEnd(self._store.committed_offset)

    def roll_back(self) -> int:
        return self._offsets.commit(_KEY, False)

    def fetch(self, partition: int) -> Fetched | NotFound:
        store, limits = self._store, self.limits
        position = self._offsets.next_read(_KEY, store, True, False)
        if position is None:
            return NotFound.END
        if self.busy:
            self.busy -= 1
            return NotFound.WAIT
        known_end, in_files = store.max_offset, max(position, store.min_offset) < store._block.first * UNIT
        if in_files and self.stale:
            self.stale -= 1
            return Fetched(max(position, store.min_offset), known_end, ())
        if not in_files:
            self.append(*self.racing)
            self.racing = []
        store._file_scan, store._memory_scan = 2 * limits.file_entries, limits.memory_entries
        most = limits.first_messages if self._first_fetch else limits.messages
        self._first_fetch = False
        store._config = replace(_CONFIG, transfer_size=most * STORE_DATA_HEADER_LEN)
        codes = frozenset([1]) if self.filtered else None
        read = store.read(position, partition, codes, 3, most * STORE_DATA_HEADER_LEN, 0)
        self._offsets.advance(_KEY, read.advance, True, False)
        if read.code != ErrCode.SUCCESS:
            return not_found_kind(read.text)
        reply = pb.GetMessageResponseB2C.FromString(b"".join(read.chunks))
        messages = tuple(Message(one.messageId, one.checkSum) for one in reply.messages)
        return Fetched(max(position, store.min_offset), known_end, messages)

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
