# SPDX-License-Identifier: Apache-2.0
"""Record batch: the one unit in which a producer queues, sends, acknowledges and repeats records.

The records of a batch belong to one topic. While they are sent they have one partition, one connection, and serial
numbers that follow each other. A broker answers in that order, so a number says how many are stored. The columns are
lists of equal length, which cost far less than an object for each record.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send_frames import Kind

if TYPE_CHECKING:
    from tubemq_spark.client.producer.send_queue import SendLane

OVERHEAD = 500  # bytes that a record takes besides attributes and body, also if it has a key of its own; measured

RecordId = Hashable  # distinguishes a record from all others of its producer when it is looked up


class Record(NamedTuple):
    header: bytes  # attributes with their length in front, or empty
    body: bytes
    kind: Kind
    row: int | None = None
    record_id: RecordId | None = None  # None for one that may be stored twice
    key: bytes | None = None


class RecordMetadata(NamedTuple):
    """Where a look-up has found a record. `offset` is its position in the store's index, in bytes, None if unknown."""

    partition: Partition
    message_id: int
    offset: int | None

    @property
    def places(self) -> RecordPlaces:
        return RecordPlaces(self.partition, [self.message_id], [self.offset], [None])


class RecordPlaces(NamedTuple):
    """Where records of one partition are stored, in columns. `offsets` are as in `RecordMetadata`; `append_times` are
    in milliseconds since the epoch on the broker's clock, None for records that only a look-up found."""

    partition: Partition
    message_ids: Sequence[int]
    offsets: Sequence[int | None]
    append_times: Sequence[int | None]


@dataclass
class SendFailure:
    """What records have in common that failed together."""

    since: float  # on the clock of the delivery timeout
    problem: TubeMQError  # the last one
    partition: Partition  # of the last try
    tries: int = 0
    token_renewed: bool = False  # whether the visit token was renewed since the first failure


@dataclass(slots=True, eq=False, repr=False)
class RecordBatch:
    """Records in the order in which they were accepted; `number` tells the batch's place among others."""

    number: int
    lane: SendLane
    columns: Sequence[list[Any]] = field(default_factory=lambda: [[] for _ in Record._fields])
    headers: list[bytes] = field(init=False)  # these are the columns
    bodies: list[bytes] = field(init=False)
    kinds: list[Kind] = field(init=False)
    rows: list[int | None] = field(init=False)
    ids: list[RecordId | None] = field(init=False)
    keys: list[bytes | None] = field(init=False)
    failure: SendFailure | None = None
    was_silent: bool = False  # whether the last send failed because the broker did not answer in time
    # Of the last send, if there was one; the partition also of a send for which its broker could not be reached:
    partition: Partition = field(init=False)
    earliest_offset: int | None = None  # the partition's offset at or behind which the records are stored
    answered: int = 0  # records, the first ones
    sizes: Sequence[int] = ()  # bytes of the frames
    sent_at: float = 0.0  # on the producer's monotonic clock
    began_at: int = 0  # the first byte of the oldest record without an answer, counted on its connection

    def __post_init__(self) -> None:
        self.headers, self.bodies, self.kinds, self.rows, self.ids, self.keys = self.columns

    def __len__(self) -> int:
        return len(self.bodies)

    def __repr__(self) -> str:
        return f"<RecordBatch of {len(self)} for {self.lane.partition or self.topic}, {self.answered} answered>"

    @property
    def topic(self) -> str:
        return self.lane.id.topic

    def append(self, record: Record) -> None:
        for column, cell in zip(self.columns, record, strict=True):
            column.append(cell)

    def cut(self, part: slice) -> RecordBatch:
        """Return a batch of some of the records, with their failure."""
        return self._with([column[part] for column in self.columns])

    def only(self, chosen: Sequence[int]) -> RecordBatch:
        """Return a batch of the `chosen` records, with their failure."""
        if len(chosen) == 1:
            return self.cut(slice(chosen[0], chosen[0] + 1))
        take = itemgetter(*chosen)
        return self._with([list(take(column)) for column in self.columns])

    def _with(self, columns: list[list[Any]]) -> RecordBatch:
        made = RecordBatch(self.number, self.lane, columns)
        made.failure, made.was_silent = self.failure, self.was_silent
        return made

    def remove(self, chosen: Sequence[int]) -> None:
        """Remove the `chosen` records."""
        left = sorted(set(range(len(self))).difference(chosen))
        for column in self.columns:
            column[:] = [column[at] for at in left]

    def memory(self, start: int, end: int) -> int:
        """Return the bytes that count as the memory of records from `start` to `end`."""
        bodies, headers = self.bodies[start:end], self.headers[start:end]
        return sum(map(len, bodies)) + sum(map(len, headers)) + OVERHEAD * len(bodies)

    # While it is in flight

    def sent(self, part: slice) -> RecordBatch:
        """Return a batch of some of the records, and where they were sent."""
        made = self.cut(part)
        made.partition, made.earliest_offset = self.partition, self.earliest_offset
        return made

    @property
    def unanswered(self) -> int:
        return len(self.bodies) - self.answered

    @property
    def ends_at(self) -> int:
        """The end of the oldest record without an answer, counted from the start of its connection."""
        return self.began_at + self.sizes[self.answered]

    def answer(self, count: int) -> int:
        """Note that the next `count` records were answered, and return the bytes of their frames."""
        size = sum(self.sizes[self.answered : self.answered + count])
        self.answered += count
        self.began_at += size
        return size
