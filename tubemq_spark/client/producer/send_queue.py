# SPDX-License-Identifier: Apache-2.0
"""Queues of records that wait to be sent: batching, back-pressure, and the order of records with one key.

A record without key and explicit partition may go to any partition of its topic. Others wait in an `OrderedQueue`:

- Of the records of one key, one is in flight at a time. With more, those behind one that fails would overtake it.
- Records with an explicit partition and no key have as many in flight as the connection takes. When one fails, those
  behind it that are not in flight yet wait until it is stored.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN
from tubemq_spark.protocol.lifecycle import SEND, Lifecycle, SendEvent, SendState
from tubemq_spark.protocol.metadata import Partition

MAX_BYTES = 64 << 20  # default for the memory of records that are not acknowledged
OVERHEAD = 1400  # bytes that a record takes besides its content if it has a key of its own; measured

# Attributes may make a payload longer than the limit by so many bytes. The broker accepts more, but delivers such a
# message only from a file: while it is in memory, consumers are led past it (wire: MsgMemStore.getMessages compares
# the whole record with the limit of the payload).
MAX_AROUND_BODY = MESSAGE_SIZE_SLACK - STORE_DATA_HEADER_LEN

# Records are sent in batches of this many, or this many bytes: a system call for each would cost more than the record.
_BATCH = 128
_BATCH_BYTES = 1 << 20

_WAITING, _IN_FLIGHT, _STORED = SendState.WAITING, SendState.IN_FLIGHT, SendState.STORED  # looked up for each record

RecordId = Hashable  # distinguishes a record from all others of its producer when it is looked up


class RecordMetadata(NamedTuple):
    """Where a record is stored. `offset` is its position in the store's index, in bytes; `append_time` is in
    milliseconds since the epoch on the broker's clock. Both are None if only a look-up found the record."""

    partition: Partition
    message_id: int
    offset: int | None
    append_time: int | None


class PendingRecord(Lifecycle[SendState, SendEvent]):
    """A record from `Producer.send` until a broker has stored it. Only its own methods change its state.

    `content` is the result of `message.encode_content`; `row` is the row's number, if it has one; `number` counts the
    records of the producer. Attributes that only a failure sets have defaults in the class, which saves time and memory
    per record. The class has more than twelve attributes, because one object per record is faster than two.
    """

    _what, _table, state = "a record", SEND, SendState.WAITING
    partition: Partition  # of the last send, or of the one that was not possible
    sent_at: float  # on the producer's monotonic clock
    ends_at: int  # the end of its bytes, counted from the start of its connection
    queue: OrderedQueue | None = None  # None for a record that may go to any partition
    earliest_offset: int | None = None  # the partition's offset at or behind which it is stored, if it is stored
    failures = 0
    failing_since: float | None = None  # on the clock of the delivery timeout
    problem: TubeMQError | None = None  # the last failure
    broker_was_silent = False  # whether the last send failed because the broker did not answer in time
    token_renewed = False  # whether the visit token was renewed since its first failure

    def __init__(
        self, topic: str, content: bytes, row: int | None, number: int = 0, record_id: RecordId | None = None
    ) -> None:
        self.topic = topic
        self.content = content
        self.size = len(content)  # bytes that count as its memory and as in flight
        self.row = row
        self.number = number
        self.record_id = record_id  # None for a record that may be stored twice

    def sent(self, partition: Partition, now: float, ends_at: int) -> None:
        if self.state is not _WAITING:
            self.on(SendEvent.SENT)  # which raises; `on` takes too long for each record
        self.state = _IN_FLIGHT
        self.partition = partition
        self.sent_at = now
        self.ends_at = ends_at

    def acknowledged(self) -> None:
        if self.state is not _IN_FLIGHT:
            self.on(SendEvent.ACKNOWLEDGED)  # which raises
        self.state = _STORED

    def failed(self, event: SendEvent, problem: TubeMQError, now: float, *, broker_was_silent: bool) -> None:
        """Note that a send failed. `now` is on the clock of the delivery timeout."""
        self.on(event)
        self.broker_was_silent = broker_was_silent
        self.count_failure(problem, now)

    def count_failure(self, problem: TubeMQError, now: float) -> None:
        self.failures += 1
        self.problem = problem
        if self.failing_since is None:
            self.failing_since = now


PartitionForKey = Callable[[str, bytes], Partition]  # returns the partition of a topic and a key


class QueueId(NamedTuple):
    """What the records of a queue have in common: a key, an explicit partition, or both."""

    topic: str
    key: bytes | None
    target: Partition | None


class OrderedQueue:
    """Records that keep their order. `partition` is where they go, or None while that is not known."""

    __slots__ = ("blocking", "id", "in_flight", "is_listed", "partition", "waiting")  # many are created

    def __init__(self, queue_id: QueueId) -> None:
        self.id = queue_id
        self.partition: Partition | None = queue_id.target
        self.waiting: deque[PendingRecord] = deque()
        self.in_flight = 0
        self.is_listed = False  # as one whose next record may be sent
        self.blocking: set[PendingRecord] = set()  # those that failed, and are in flight again or unresolved

    def route(self, partition_for_key: PartitionForKey) -> None:
        """Find the partition, if the key decides about it."""
        if self.id.target is None and self.id.key is not None:
            self.partition = partition_for_key(self.id.topic, self.id.key)

    @property
    def is_ready(self) -> bool:
        """Whether its next record may be sent."""
        if not self.waiting or self.blocking:
            return False
        return not self.in_flight or self.id.key is None

    def pop(self) -> PendingRecord:
        """Remove and return the next record, which is sent now."""
        record = self.waiting.popleft()
        self.in_flight += 1
        if record.failures:
            self.blocking.add(record)
        return record

    def finish(self, record: PendingRecord) -> None:
        """Note that `record` is no longer in flight."""
        self.in_flight -= 1
        self.blocking.discard(record)

    def requeue(self, record: PendingRecord) -> None:
        """Put a record that failed back in its place."""
        self.finish(record)
        place = 0
        if self.id.key is None:  # behind those that were requeued before it; the search is never long
            behind = (n for n, other in enumerate(self.waiting) if other.number > record.number)
            place = next(behind, len(self.waiting))
        self.waiting.insert(place, record)


class SendQueue:
    """All records of a producer that wait to be sent, and the memory of those that are not acknowledged yet."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes` bounds the content of all unacknowledged records, plus `OVERHEAD` for each."""
        self.accepted = 0  # records
        self.waiting = 0  # records
        self.bytes = 0  # of unacknowledged records
        self._max_bytes = max_bytes
        self._new = self._new_bytes = 0  # records, and their bytes, that the current batch has
        self._unordered: defaultdict[str, deque[PendingRecord]] = defaultdict(deque)
        self._ordered: dict[QueueId, OrderedQueue] = {}
        self._ready: dict[Partition, deque[OrderedQueue]] = {}  # the partition that was served longest ago comes first

    def ordered(
        self, topic: str, key: bytes | None, target: Partition | None, partition_for_key: PartitionForKey
    ) -> OrderedQueue:
        queue_id = QueueId(topic, key, target)
        queue = self._ordered.get(queue_id)
        if queue is None:
            queue = OrderedQueue(queue_id)
            queue.route(partition_for_key)
            self._ordered[queue_id] = queue
        return queue

    def put(self, record: PendingRecord, queue: OrderedQueue | None) -> bool:
        """Add a record, to `queue` if it keeps an order. Return True if a batch is full now or the memory is used."""
        if queue is None:
            self._unordered[record.topic].append(record)
        else:
            record.queue = queue
            queue.waiting.append(record)
            self.update(queue)
        size = record.size
        self.accepted += 1
        self.waiting += 1
        self.bytes += size + OVERHEAD
        self._new += 1
        self._new_bytes += size
        return self._new >= _BATCH or self._new_bytes >= _BATCH_BYTES or self.bytes > self._max_bytes

    def fits(self, size: int, count: int) -> bool:
        """Whether there is memory for `count` more records with `size` bytes together."""
        return self.bytes + size + OVERHEAD * count <= self._max_bytes

    def numbers(self, count: int) -> range:
        """Return the numbers of the next `count` records."""
        return range(self.accepted, self.accepted + count)

    def add_run(self, size: int, count: int) -> None:
        """Count the memory of `count` records with `size` bytes that do not wait, until `release_run`."""
        self.accepted += count
        self.bytes += size + OVERHEAD * count

    def release_run(self, size: int, count: int) -> None:
        self.bytes -= size + OVERHEAD * count

    def begin_batch(self) -> None:
        self._new = self._new_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the caller must wait before it adds more (back-pressure)."""
        return self.bytes > self._max_bytes

    def unordered(self) -> Iterator[tuple[str, deque[PendingRecord]]]:
        """Yield each topic that has records for any partition, and these records; `pop_unordered` removes them."""
        return ((topic, records) for topic, records in self._unordered.items() if records)

    def pop_unordered(self, topic: str) -> PendingRecord:
        self.waiting -= 1
        return self._unordered[topic].popleft()

    def partitions(self) -> list[Partition]:
        """Return the partitions to which ordered records may be sent, the one that was served longest ago first."""
        return list(self._ready)

    def first(self, partition: Partition) -> PendingRecord:
        """Return the next ordered record for one of `partitions`."""
        return self._ready[partition][0].waiting[0]

    def pop(self, partition: Partition) -> PendingRecord | None:
        """Remove and return the next ordered record for `partition`, or None."""
        queues = self._ready.pop(partition, None)
        while queues:
            queue = queues.popleft()
            queue.is_listed = False
            if queue.is_ready:  # else one of its records became unresolved since it was listed
                record = queue.pop()
                self.waiting -= 1
                if queues:
                    self._ready[partition] = queues  # behind all other partitions
                self.update(queue)
                return record
        return None

    def requeue(self, record: PendingRecord, partition_for_key: PartitionForKey) -> None:
        """Add a record that failed before those that were accepted later."""
        self.waiting += 1
        if (queue := record.queue) is None:
            self._unordered[record.topic].appendleft(record)
        else:
            if not queue.is_listed:
                queue.route(partition_for_key)  # its partition may be gone
            queue.requeue(record)
            self.update(queue)

    def release(self, record: PendingRecord) -> None:
        """Release the memory of a record that is stored, and let the next one of its queue go."""
        self.bytes -= record.size + OVERHEAD
        if (queue := record.queue) is not None:
            queue.finish(record)
            self.update(queue)

    def update(self, queue: OrderedQueue) -> None:
        """List `queue` if its next record may be sent now; its `partition` must be known. Forget an empty one."""
        if queue.is_ready:
            if not queue.is_listed:
                assert queue.partition is not None
                queue.is_listed = True
                self._ready.setdefault(queue.partition, deque()).append(queue)
        elif not queue.waiting and not queue.in_flight:
            self._ordered.pop(queue.id, None)

    def reroute(self, partition_for_key: PartitionForKey) -> None:
        """Find the partitions of all keys again, because the topic has other partitions now."""
        for queues in self._ready.values():
            for queue in queues:
                queue.is_listed = False
        self._ready.clear()
        for queue in list(self._ordered.values()):
            queue.route(partition_for_key)
            self.update(queue)
