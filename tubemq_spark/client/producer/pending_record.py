"""A record on its way to a broker: its state, and what is known about its sends."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.lifecycle import Lifecycle
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SEND, SendEvent, SendState

if TYPE_CHECKING:
    from tubemq_spark.client.producer.send_queue import OrderedQueue

_SENT = SendEvent.SENT  # looked up for each record, which takes time

RecordId = Hashable
"""What distinguishes a record from all others of its producer when it is looked up."""


class RecordMetadata(NamedTuple):
    """Where a record is stored. `offset` is its position in the store's index, in bytes; `append_time` is in
    milliseconds since the epoch on the broker's clock. Both are None if only a look-up found the record."""

    partition: Partition
    message_id: int
    offset: int | None
    append_time: int | None


class PendingRecord(Lifecycle[SendState, SendEvent]):
    """A record from `Producer.send` until a broker has stored it. Its methods make all changes to it.

    `content` is `send_request.encode_content`'s; `row` is the row's number, if it has one; `number` counts the records
    of the producer. Attributes that only a failure sets have their defaults in the class, which saves time and memory
    for each record; therefore they are more than twelve.
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
        self.row = row
        self.number = number
        self.record_id = record_id  # None for a record that may be stored twice

    def sent(self, partition: Partition, now: float, ends_at: int) -> None:
        self.on(_SENT)
        self.partition = partition
        self.sent_at = now
        self.ends_at = ends_at

    def failed(self, event: SendEvent, problem: TubeMQError, now: float, *, broker_was_silent: bool) -> None:
        """Note that a send failed. `now` is on the clock of the delivery timeout."""
        self.on(event)
        self.broker_was_silent = broker_was_silent
        self._count_failure(problem, now)

    def not_sendable(self, partition: Partition, problem: TubeMQError, now: float) -> None:
        """Note that no connection for a send could be opened."""
        self.partition = partition
        self._count_failure(problem, now)

    def not_resolvable(self, problem: TubeMQError) -> None:
        """Note that it could not be looked up."""
        self.problem = problem

    def _count_failure(self, problem: TubeMQError, now: float) -> None:
        self.failures += 1
        self.problem = problem
        if self.failing_since is None:
            self.failing_since = now
