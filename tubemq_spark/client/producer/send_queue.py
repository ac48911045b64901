# SPDX-License-Identifier: Apache-2.0
"""Queues of records that wait to be sent: batching, back-pressure, and the order of records with one key.

Records wait in lanes. Those without key and explicit partition may go to any partition, and have one lane for each
topic. Others have one for each partition, which keeps their order:

- Of the records of one key, one is in flight at a time. With more, those behind one that fails would overtake it.
- Records with an explicit partition and no key have as many in flight as the connection takes.
- Records that failed are sent again before those that were accepted later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.producer.record_batch import OVERHEAD, Record, RecordBatch
from tubemq_spark.protocol.metadata import Partition

BATCH = 256  # records of a batch at most
_BATCH_BYTES = 1 << 20  # bytes of a batch at most, if it has more than one record
_STEP = 128  # new records that are worth a system call
_LEAST_FREED = 64  # a caller that waits goes on when a part of one in so many of the memory is free again
_SEARCHED = 4  # batches in which a lane looks for records whose keys have none in flight

PartitionForKey = Callable[[str, bytes], Partition]  # returns the partition of a topic and a key


class SendLimits(NamedTuple):
    """The limits of one producer.

    At most `in_flight` records are in flight on each connection. Attributes and bodies of its unacknowledged records
    have at most `size` bytes, plus `OVERHEAD` for each, except the last one.
    """

    in_flight: int = 1000
    size: int = 64 << 20


DEFAULT_LIMITS = SendLimits()


class KeyOrder:
    """The keys that have a record in flight or unresolved. Lanes whose partitions the keys choose share one."""

    def __init__(self) -> None:
        self.busy: set[bytes | None] = set()
        self.version = 0  # changes when a key becomes free

    def release(self, keys: Iterable[bytes | None]) -> None:
        self.busy.difference_update(keys)
        self.version += 1


class LaneId(NamedTuple):
    topic: str
    partition: Partition | None
    by_key: bool = False  # whether keys choose the partition, and choose again if the topic changes


class SendLane:
    """Records that wait for one partition, or for any of a topic."""

    def __init__(self, lane_id: LaneId, order: KeyOrder) -> None:
        self.id = lane_id
        self.partition = lane_id.partition
        self.order = order
        self.waiting: deque[RecordBatch] = deque()
        self._open: RecordBatch | None = None  # the last one, if it takes more
        self._open_bytes = 0
        self._tried = -1  # the version of `order` when no record could be sent

    def open(self, number: int, size: int) -> RecordBatch:
        """Return the batch that takes the next record, which has `size` bytes."""
        self._open_bytes += size
        if self._open is None or len(self._open) >= BATCH or self._open_bytes > _BATCH_BYTES:
            self._open = RecordBatch(number, self)
            self._open_bytes = size
            self.waiting.append(self._open)
            self._tried = -1
        return self._open

    def first(self) -> RecordBatch:
        """Return the batch that waits for longest. It takes no more records."""
        if self.waiting[0] is self._open:
            self._open = None
        return self.waiting[0]

    def take(self, most: int) -> RecordBatch | None:
        """Remove and return at most `most` records that may be sent now, or None."""
        if not self.waiting or self._tried == self.order.version:
            return None
        if self.partition is None:
            return self._cut(self.first(), range(len(self.waiting[0]))[:most])
        busy, seen = self.order.busy, set[bytes | None]()
        for batch in list(islice(self.waiting, _SEARCHED)):
            chosen: list[int] = []
            for at, key in enumerate(batch.keys):
                if key is None or not (key in busy or key in seen):
                    chosen.append(at)
                    seen.add(key)
            if chosen:
                return self._cut(batch, chosen[:most])
        self._tried = self.order.version
        return None

    def _cut(self, batch: RecordBatch, chosen: Sequence[int]) -> RecordBatch:
        taken = batch
        if batch is self._open:
            self._open = None
        if len(chosen) < len(batch):
            taken = batch.only(chosen)
            batch.remove(chosen)
        else:
            self.waiting.remove(batch)
        if self.partition is not None:
            self.order.busy.update(taken.keys)
            self.order.busy.discard(None)
        return taken

    def take_all(self) -> Sequence[RecordBatch]:
        batches, self.waiting, self._open = self.waiting, deque(), None
        return batches

    def put_back(self, batch: RecordBatch) -> None:
        """Put records before those that were accepted later."""
        at = len(self.waiting)
        while at and self.waiting[at - 1].number >= batch.number:
            at -= 1
        self.waiting.insert(at, batch)
        if self.waiting[-1] is not self._open:
            self._open = None
        self._tried = -1


class SendQueue:
    """All records of a producer that wait to be sent, and the memory of those that are not acknowledged yet."""

    def __init__(self, partition_for_key: PartitionForKey, limits: SendLimits = DEFAULT_LIMITS) -> None:
        self.accepted = 0  # records
        self.waiting = 0  # records
        self.bytes = 0  # of unacknowledged records
        self._partition_for_key = partition_for_key
        self._max_bytes = limits.size
        self._new = self._new_bytes = 0  # records, and their bytes, since the last `begin_step`
        self._lanes: dict[LaneId, SendLane] = {}  # the one that was served longest ago comes first
        self._orders: defaultdict[str, KeyOrder] = defaultdict(KeyOrder)  # by topic, of the keys that choose partitions

    def __iter__(self) -> Iterator[RecordBatch]:
        """Yield the batches that wait."""
        return chain.from_iterable(lane.waiting for lane in self._lanes.values())

    def lane(self, lane_id: LaneId) -> SendLane:
        lane = self._lanes.get(lane_id)
        if lane is None:
            order = self._orders[lane_id.topic] if lane_id.by_key else KeyOrder()
            lane = self._lanes[lane_id] = SendLane(lane_id, order)
        return lane

    def put(self, topic: str, target: Partition | None, record: Record) -> bool:
        """Add a record for partition `target`, else that of its key, else any. Return `is_due`."""
        by_key = False
        if target is None and record.key is not None:
            by_key, target = True, self._partition_for_key(topic, record.key)
        lane = self.lane(LaneId(topic, target, by_key))
        size = len(record.header) + len(record.body)
        lane.open(self.accepted, size).append(record)
        self._added(1, size)
        return self.is_due

    def put_together(self, topic: str, columns: Sequence[Sequence[Any]], start: int, *, by_key: bool) -> int:
        """Add records without a target from `start` on in `columns`, which are those of a `RecordBatch`, as many as a
        batch takes. Return where the others begin."""
        headers, bodies, *_ = columns
        most = slice(start, start + BATCH)
        sizes = list(accumulate(len(a) + len(b) + OVERHEAD for a, b in zip(headers[most], bodies[most], strict=True)))
        count = max(1, bisect_right(sizes, min(_BATCH_BYTES, self._max_bytes - self.bytes)))
        end = start + count
        lane = self.lane(LaneId(topic, None, by_key))
        batch = RecordBatch(self.accepted, lane, [list(column[start:end]) for column in columns])
        self._added(count, sizes[count - 1] - OVERHEAD * count)
        self._route(batch)
        return end

    def _added(self, count: int, size: int) -> None:
        self.accepted += count
        self.waiting += count
        self.bytes += size + OVERHEAD * count
        self._new += count
        self._new_bytes += size

    @property
    def is_due(self) -> bool:
        """Whether the new records are worth a system call, or the memory is used."""
        return self._new >= _STEP or self._new_bytes >= _BATCH_BYTES or self.bytes > self._max_bytes

    def begin_step(self) -> None:
        self._new = self._new_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the caller must wait before it adds more (back-pressure)."""
        return self.bytes > self._max_bytes

    def has_room(self, before: int) -> bool:
        """Whether a caller may go on that has waited since `before` bytes were used. Room for few small records would
        make a batch of each few."""
        return self.bytes <= min(self._max_bytes, before - self._max_bytes // _LEAST_FREED)

    def lanes(self) -> list[SendLane]:
        """Return the lanes with records that wait, the one that was served longest ago first."""
        return [lane for lane in self._lanes.values() if lane.waiting]

    def take(self, lane: SendLane, most: int) -> RecordBatch | None:
        """Remove and return at most `most` records of `lane` that may be sent now, or None."""
        batch = lane.take(most)
        if batch is not None:
            self.waiting -= len(batch)
            self._lanes[lane.id] = self._lanes.pop(lane.id)
        return batch

    def put_back(self, batch: RecordBatch) -> None:
        """Add records that failed before those that were accepted later."""
        COUNTERS().add(Count.RESENT, len(batch))
        self.waiting += len(batch)
        batch.lane.order.release(batch.keys)
        self._route(batch)

    def _route(self, batch: RecordBatch) -> None:
        topic, _, by_key = batch.lane.id
        if not by_key:
            batch.lane.put_back(batch)
            return
        places: defaultdict[Partition, list[int]] = defaultdict(list)
        for at, key in enumerate(batch.keys):
            assert key is not None
            places[self._partition_for_key(topic, key)].append(at)
        for partition, chosen in places.items():
            part = batch.only(chosen)
            part.lane = self.lane(LaneId(topic, partition, by_key))
            part.lane.put_back(part)

    def reroute(self) -> None:
        """Find the partitions of all keys again, because the topic has other partitions now."""
        for lane in list(self._lanes.values()):
            if lane.id.by_key:
                for batch in reversed(lane.take_all()):
                    self._route(batch)

    def release(self, batch: RecordBatch, start: int, end: int) -> None:
        """Release the memory of records that are stored, and let the next ones of their keys go."""
        self.bytes -= batch.memory(start, end)
        if batch.lane.partition is not None:
            batch.lane.order.release(batch.keys[start:end])
