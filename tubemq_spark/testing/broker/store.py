# SPDX-License-Identifier: Apache-2.0
"""A store: the log and index that all partitions of one store of a topic share on a broker.

    min ........... committed ... file end ........ max
    |  flushed files            |  memory block    |

Positions are bytes of the index, 28 an entry. A message is acknowledged when it is in the memory block; a crash loses
that block. One read returns messages from the files or from the block, never from both, and each has its own limits.
Data files and index files go each by the time of their own last message. A read of files passes over an entry whose
data has gone: the cursor moves on, the minimum stays, and no reply tells it.
wire: MessageStore, MsgFileStore (getMessages, runClearupPolicy), MsgMemStore.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.clock import Clock, Period
from tubemq_spark.testing.config import ServerConfig

UNIT = INDEX_MSG_UNIT_SIZE
ENTRY_BYTES = 150  # memory of this process that a message takes besides its bytes, measured
NO_CODE = -1  # the filter code of a message without a type

_SEGMENTS_KEPT = 8  # in a full store
_MEMORY_FLUSH_PERIOD = 10.0  # seconds between two checks whether the block is old enough for a flush
_DISK_FLUSH_PERIOD = 20.0
_UNFLUSH_INTERVAL = 10.0
_UNFLUSH_THRESHOLD = 1000


class Entry(NamedTuple):
    """One message in the log."""

    partition_id: int
    code: int
    size: int  # bytes in the data file
    data_end: int  # its end in the data file
    wire: bytes | None  # encoded as a field of GetMessageResponseB2C; None when the broker never returns it


class ReadResult(NamedTuple):
    """The result of a read. The cursor moves by `advance` bytes, whether the read succeeds or not."""

    code: int
    text: str
    advance: int = 0
    chunks: Sequence[bytes] = ()
    size: int = 0  # bytes, for the flow rules
    data_position: int = 0  # where in the data file the read ended
    max_offset: int = -1
    slow: bool = False


@dataclass
class _Part:
    """Consecutive messages: those of an index segment, which retention deletes together, or of the memory block."""

    first: int  # number of its first entry
    begun: float
    entries: list[Entry] = field(default_factory=list)
    size: int = 0  # bytes of its data

    @property
    def end(self) -> int:
        return self.first + len(self.entries)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, approximately."""
        return self.size + len(self.entries) * ENTRY_BYTES


class Store:
    """One store of a topic.

    It deletes its oldest segments when it takes more than its share of `topic_max_bytes`. A block or a segment is full
    with an eighth of that at the latest.
    """

    def __init__(self, layout: TopicLayout, config: ServerConfig, clock: Clock) -> None:
        self._stored_bytes = 0
        self._config = config
        self._clock = clock
        self._segments = [_Part(0, clock.now())]
        self._block = _Part(0, clock.now())  # messages that are not in the files yet
        self._first_data = 0  # the number of the first entry whose data file is there
        self.max_data_offset = 0  # the end of the data file and the block
        self._committed = 0
        self._last_commit = clock.now()
        self._memory_due = Period(clock, _MEMORY_FLUSH_PERIOD)
        self._disk_due = Period(clock, _DISK_FLUSH_PERIOD)
        self.set_layout(layout)

    def set_layout(self, layout: TopicLayout) -> None:
        """Behave from now on as a store that was created with this layout."""
        entries = 1000 * layout.partitions
        self._memory_scan = min(max(entries, 6000), 10_000)
        self._file_scan = min(max(entries, 8000), 13_500)
        self._max_bytes = self._config.topic_max_bytes // layout.stores
        if self._block.held_bytes > self._part_bytes:
            self._flush_block()
        self._drop_surplus()

    @property
    def min_offset(self) -> int:
        return self._segments[0].first * UNIT

    @property
    def data_offset(self) -> int:
        """Where the entries begin whose messages are there; the index may begin before."""
        return max(self._first_data, self._segments[0].first) * UNIT

    @property
    def committed_offset(self) -> int:
        """The end of the log for a reader that reads flushed files only."""
        return self._committed * UNIT

    @property
    def max_offset(self) -> int:
        return self._block.end * UNIT

    @property
    def segments(self) -> list[int]:
        """Where the index segments begin, in bytes."""
        return [segment.first * UNIT for segment in self._segments]

    @property
    def _part_bytes(self) -> int:
        """Memory of a full block or segment."""
        return self._max_bytes // _SEGMENTS_KEPT

    def append(self, partition_id: int, code: int, message_id: int, check_sum: int, flag: int, payload: bytes) -> int:
        """Append a message and return its position."""
        size = STORE_DATA_HEADER_LEN + len(payload)
        config = self._config
        if (
            self._block.size + size > config.mem_cache_msg_size
            or len(self._block.entries) >= config.mem_cache_msg_count
            or self._block.held_bytes + size + ENTRY_BYTES > self._part_bytes
        ):
            self._flush_block()
        position = self.max_offset
        wire = None
        if _is_readable(payload, flag):
            message = pb.TransferedMessage(messageId=message_id, checkSum=check_sum, flag=flag, payLoadData=payload)
            wire = pb.GetMessageResponseB2C(messages=[message]).SerializePartialToString()
        self.max_data_offset += size
        self._block.entries.append(Entry(partition_id, code, size, self.max_data_offset, wire))
        self._block.size += size
        self._stored_bytes += size + ENTRY_BYTES
        self._drop_surplus()
        return position

    def read(
        self, position: int, partition_id: int, codes: frozenset[int] | None, policy: int, size_limit: int, read_to: int
    ) -> ReadResult:
        """Read for a cursor at `position`; a position below the minimum starts at the minimum.

        `codes` are the reader's filter codes. `policy` limits what it sees: 1 files, 2 what is being flushed, 3 all.
        `size_limit` is in bytes; `read_to` is the end of the reader's last read in the data file.
        """
        number = max(position // UNIT, self._segments[0].first)
        if policy > 1 and number >= self._block.first:
            if policy == 2:
                return ReadResult(ErrCode.NOT_FOUND, "Can't found Message by index in cache")
            return self._read_block(number, partition_id, codes)
        if policy <= 1 and number >= self._committed:
            return ReadResult(ErrCode.NOT_FOUND, "current offset is exceed max file offset")
        return self._read_files(number, partition_id, codes, policy, size_limit, read_to)

    def _read_block(self, number: int, partition_id: int, codes: frozenset[int] | None) -> ReadResult:
        rest = self._block.entries[number - self._block.first :]
        if not rest:
            return ReadResult(ErrCode.NOT_FOUND, "Request offset reached cache maxOffset")
        if codes is None:
            has_any = any(entry.partition_id == partition_id for entry in rest)
        else:
            # The broker does not check the partition: a filtered reader may find its type and get no message.
            has_any = any(entry.code in codes for entry in rest)
        if not has_any:
            return ReadResult(ErrCode.NOT_FOUND, "Can't found Message by index!", len(rest) * UNIT)
        # The broker compares the size of the whole record with the limit for the payload.
        too_long = self._config.max_msg_size + MESSAGE_SIZE_SLACK
        chunks: list[bytes] = []
        scanned = size = 0
        read_to = self.max_data_offset
        for entry in rest[: self._memory_scan]:
            scanned += 1
            if entry.partition_id != partition_id or entry.size > too_long:
                continue
            if codes is not None and entry.code not in codes:
                continue
            if entry.wire is not None:
                chunks.append(entry.wire)
            read_to = entry.data_end
            size += entry.size
            if size >= self._config.transfer_size:
                break
        return ReadResult(ErrCode.SUCCESS, "OK!", scanned * UNIT, chunks, size, read_to, self.max_offset)

    def _read_files(
        self, number: int, partition_id: int, codes: frozenset[int] | None, policy: int, size_limit: int, read_to: int
    ) -> ReadResult:
        segment = self._segments[bisect_right(self._segments, number, key=lambda s: s.first) - 1]
        start = number - segment.first
        limit = self._file_scan * (1 if codes is None else 3)
        # The broker's loop compares the entries it has read with those left, so it ends half way.
        half = (min(limit, len(segment.entries) - start) + 1) // 2
        chunks: list[bytes] = []
        scanned = size = ended = 0
        for entry in segment.entries[start : start + half]:
            scanned += 1
            if number + scanned <= self._first_data:
                continue
            ended = entry.data_end
            if entry.partition_id != partition_id or (codes is not None and entry.code not in codes):
                continue
            if entry.wire is None:
                continue
            chunks.append(entry.wire)
            size += entry.size
            if size >= size_limit:
                break
        slow = codes is not None and scanned > 0 and self._committed - number - scanned < self._file_scan * 30
        return ReadResult(
            ErrCode.SUCCESS,
            "OK!",
            scanned * UNIT,
            chunks,
            size,
            ended or read_to,
            self.committed_offset if policy <= 1 else self.max_offset,
            slow,
        )

    def tick(self) -> None:
        """Run the broker's timers: flush a block that is old enough, and make the files' content visible to all."""
        now = self._clock.now()
        if (
            self._memory_due.is_due()
            and self._block.entries
            and now - self._block.begun >= self._config.mem_cache_flush_interval
        ):
            self._flush_block()
        if self._disk_due.is_due() and now - self._last_commit >= _UNFLUSH_INTERVAL:
            self._commit()

    def flush(self) -> None:
        """Write all messages into the files."""
        self._flush_block()
        self._commit()

    def crash(self) -> None:
        """Lose the memory block."""
        self._stored_bytes -= self._block.held_bytes
        self.max_data_offset -= self._block.size
        self._begin_block()
        self._commit()

    def keep(self, entries: int, *, data_only: bool = False) -> None:
        """Delete all but the last `entries` entries, or only the data of those before.

        What is deleted was in closed files, and so in flushed ones. The other messages of the store may be in memory.
        """
        if data_only:
            self._keep_data(entries)
            return
        self.flush()
        first = max(self._block.first - entries, self._segments[0].first)
        while self._segments[0].end <= first and self._drop_segment():
            pass
        oldest = self._segments[0]
        gone = oldest.entries[: first - oldest.first]
        oldest.entries = oldest.entries[len(gone) :]
        oldest.first += len(gone)
        size = sum(entry.size for entry in gone)
        oldest.size -= size
        self._stored_bytes -= size + len(gone) * ENTRY_BYTES

    def _keep_data(self, entries: int) -> None:
        first = self._block.end - entries
        if first > self._committed:
            self.flush()
        self._first_data = max(first, self._first_data)
        for segment in self._segments:
            count = max(0, self._first_data - segment.first)
            segment.entries[:count] = [entry._replace(wire=None) for entry in segment.entries[:count]]

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield position and entry of all that the index has, oldest first."""
        for part in (*self._segments, self._block):
            for number, entry in enumerate(part.entries, part.first):
                yield number * UNIT, entry

    def _drop_surplus(self) -> None:
        while self._stored_bytes > self._max_bytes and self._drop_segment():
            pass

    def _drop_segment(self) -> bool:
        """Delete the oldest segment, as retention does; return False if only the one in use is left."""
        if len(self._segments) == 1:
            return False
        self._stored_bytes -= self._segments.pop(0).held_bytes
        return True

    def _begin_block(self) -> None:
        self._block = _Part(self._segments[-1].end, self._clock.now())

    def _flush_block(self) -> None:
        block, segment = self._block, self._segments[-1]
        segment.entries += block.entries
        segment.size += block.size
        full = segment.held_bytes >= self._part_bytes or segment.size >= self._config.max_segment_size
        rolls = full or len(segment.entries) >= self._config.max_index_segment_entries
        self._begin_block()
        if rolls:
            self._segments.append(_Part(segment.end, self._clock.now()))
        if (
            rolls
            or len(block.entries) >= _UNFLUSH_THRESHOLD
            or self._clock.now() - self._last_commit >= _UNFLUSH_INTERVAL
        ):
            self._commit()

    def _commit(self) -> None:
        self._committed = self._block.first
        self._last_commit = self._clock.now()


def _is_readable(payload: bytes, flag: int) -> bool:
    """Return True if a get can return it: announced attributes must fit (wire: DataStoreUtils.getTransferMsg)."""
    if not flag & ATTRIBUTES_FLAG:
        return True
    return len(payload) >= 4 and int.from_bytes(payload[:4], "big", signed=True) <= len(payload) - 4
