# SPDX-License-Identifier: Apache-2.0
"""Records that are sent together, without an object for each, while nothing unusual happens to them.

Such records differ only in their bodies: they have no key, no explicit partition and no id, and may be stored twice.
A `RecordRun` holds those that one connection sends at a time. A broker acknowledges the sends of a connection in their
order, so a number says which are stored. When anything else happens, `records` makes the `PendingRecord` of each that
is left, with the state that it would have had, and the plain path goes on with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress
from typing import NamedTuple

from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send_frames import SendFrames


class Acknowledged(NamedTuple):
    """Records of a run that are stored: the partition of each, and their bytes together."""

    partitions: Sequence[Partition]
    size: int


class RecordRun:
    """Records in the order in which one connection sends them; `acknowledged` counts those that are stored.

    `rows` and `numbers` are those of `PendingRecord`, one for each of the `bodies`.
    """

    def __init__(
        self,
        frames: SendFrames,
        partitions: Sequence[Partition],
        bodies: Sequence[bytes],
        rows: Sequence[int | None],
        numbers: Sequence[int],
    ) -> None:
        self.frames = frames
        self.partitions = partitions
        self.bodies = bodies
        self.acknowledged = 0
        self.sent_at = 0.0  # on the producer's monotonic clock
        self.sizes: Sequence[int] = ()  # bytes of each frame
        self._rows = rows
        self._numbers = numbers
        self._ends: Sequence[int] = ()  # of the frames, counted from the start of the connection

    def __len__(self) -> int:
        """Return how many records are not acknowledged."""
        return len(self.bodies) - self.acknowledged

    def only(self, chosen: Sequence[bool]) -> RecordRun:
        """Return a run of the records that are `chosen`."""
        partitions, bodies = list(compress(self.partitions, chosen)), list(compress(self.bodies, chosen))
        rows, numbers = list(compress(self._rows, chosen)), list(compress(self._numbers, chosen))
        return RecordRun(self.frames, partitions, bodies, rows, numbers)

    def encode(self, first: int, targets: Sequence[bytes]) -> bytes:
        """Return the frames; parameters as for `SendFrames.encode`."""
        parts, self.sizes = self.frames.encode(first, targets, self.bodies)
        return b"".join(parts)

    def sent(self, now: float, ends_at: int) -> None:
        """Note that the frames were queued; the last one ends at this byte of the connection."""
        self.sent_at = now
        self._ends = list(accumulate(self.sizes, initial=ends_at - sum(self.sizes)))[1:]

    @property
    def ends_at(self) -> int:
        """The end of the oldest record that is not acknowledged."""
        return self._ends[self.acknowledged]

    @property
    def size(self) -> int:
        """The bytes of the oldest record that is not acknowledged."""
        return self.sizes[self.acknowledged]

    @property
    def left_size(self) -> int:
        """The bytes of all records that are not acknowledged."""
        return sum(self.sizes[self.acknowledged :])

    def acknowledge(self, count: int) -> Acknowledged:
        """Note that the next `count` records are stored."""
        start = self.acknowledged
        self.acknowledged = end = start + count
        return Acknowledged(self.partitions[start:end], sum(self.sizes[start:end]))

    def records(self) -> list[PendingRecord]:
        """Return the records that are not acknowledged, in flight."""
        return [self._record(at) for at in range(self.acknowledged, len(self.bodies))]

    def _record(self, at: int) -> PendingRecord:
        partition = self.partitions[at]
        record = PendingRecord(partition.topic, self.frames.content(self.bodies[at]), self._rows[at], self._numbers[at])
        record.size = self.sizes[at]
        record.sent(partition, self.sent_at, self._ends[at])
        return record
