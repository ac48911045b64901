"""A message on its way, and the queues in which messages wait until they may go.

Messages of one lane keep their order. A lane with a key has one message on its way at a time: with more, one that fails
would be overtaken by those behind it. A lane of rows with an explicit partition and no key has as many on their way as
the connection takes; when one fails, those behind it that have not left wait until it is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.lifecycle import Lifecycle
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SEND, SendEvent, SendState


class QueueId(NamedTuple):
    """What the messages of a lane have in common: a key, or a partition that their rows name, or both."""

    topic: str
    key: bytes | None
    target: Partition | None


RecordId = Hashable
"""What tells a message from all others of its producer when it is looked for."""


class RecordMetadata(NamedTuple):
    """Where a message stands. `offset` is its position in the store's index, in bytes, and `append_time` milliseconds
    since the epoch on the broker's clock; None where only a look told that it stands."""

    partition: Partition
    message_id: int
    offset: int | None
    append_time: int | None


class PendingRecord(Lifecycle[SendState, SendEvent]):
    """A message from its row to its broker. `content` is `protocol.send.encode_content`'s, `row` its number if it has
    one, `number` counts the messages of a producer.

    What a message that never fails does not need stands in the class.
    """

    _what, _table, state = "a message", SEND, SendState.WAITING
    partition: Partition  # where it went last, or was to go
    sent_at: float
    ends_at: int  # in the bytes of its connection
    tries = 0  # that failed
    failing_since: float | None = None
    problem: TubeMQError | None = None  # why the last try failed
    authorized_anew = False
    lane: OrderedQueue | None = None
    # What tells it from all others at a look, None where nothing does; and where it stands at the earliest.
    record_id: RecordId | None = None
    was_silent = False  # whether its broker gave no answer for too long
    floor: int | None = None

    def __init__(self, topic: str, content: bytes, row: int | None, number: int = 0) -> None:
        self.topic = topic
        self.content = content
        self.row = row
        self.number = number

    def failed(self, problem: TubeMQError, now: float) -> None:
        """Notes another try that came to nothing; `now` is in seconds, by the clock of `failing_since`."""
        self.tries += 1
        self.problem = problem
        if self.failing_since is None:
            self.failing_since = now


class OrderedQueue:
    """Messages that go one after another. `partition` is where they go, as far as that is known."""

    __slots__ = ("_holding", "id", "listed", "partition", "under_way", "waiting")  # many come and go

    def __init__(self, lane_id: QueueId) -> None:
        self.id = lane_id
        self.partition: Partition | None = lane_id.target
        self.waiting: deque[PendingRecord] = deque()
        self.under_way = 0
        self.listed = False
        self._holding: set[PendingRecord] = set()  # messages that failed and are on their way again, or are looked for

    def __repr__(self) -> str:
        return f"<Lane {self.id}: {len(self.waiting)} waiting, {self.under_way} under way>"

    @property
    def is_ready(self) -> bool:
        """Whether its next message may leave."""
        if not self.waiting or self._holding:
            return False
        return not self.under_way or self.id.key is None

    def leave(self) -> PendingRecord:
        """Its next message, which goes out now."""
        message = self.waiting.popleft()
        self.under_way += 1
        if message.tries:
            self._holding.add(message)
        return message

    def hold_back(self, message: PendingRecord) -> None:
        """Nothing more leaves before `message`, which is under way, has arrived or come back."""
        self._holding.add(message)

    def arrived(self, message: PendingRecord) -> None:
        self.under_way -= 1
        self._holding.discard(message)

    def come_back(self, message: PendingRecord) -> None:
        """A message that failed takes its place in the line again."""
        self.arrived(message)
        place = 0
        if self.id.key is None:  # behind those that came back before, never far
            behind = (n for n, other in enumerate(self.waiting) if other.number > message.number)
            place = next(behind, len(self.waiting))
        self.waiting.insert(place, message)


class OrderedQueues:
    """All lanes in which something waits or is under way, and which of them may send to each partition."""

    def __init__(self) -> None:
        self._lanes: dict[QueueId, OrderedQueue] = {}
        self._ready: dict[Partition, deque[OrderedQueue]] = {}  # the partition that was served longest ago is the first

    def __repr__(self) -> str:
        return f"<Lanes {len(self._lanes)}>"

    def get(self, lane_id: QueueId) -> OrderedQueue:
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = OrderedQueue(lane_id)
        return lane

    def changed(self, lane: OrderedQueue) -> None:
        """To be called when something in the lane's state changed; its `partition` must be known."""
        if lane.is_ready:
            if not lane.listed:
                assert lane.partition is not None
                lane.listed = True
                self._ready.setdefault(lane.partition, deque()).append(lane)
        elif not lane.waiting and not lane.under_way:
            self._lanes.pop(lane.id, None)

    def partitions(self) -> list[Partition]:
        """Those to which something could go, in the order in which they should have their turn."""
        return list(self._ready)

    def brokers(self) -> set[int]:
        return {partition.broker_id for partition in self._ready}

    def first(self, partition: Partition) -> PendingRecord:
        """The message that is the first to go to the partition."""
        return self._ready[partition][0].waiting[0]

    def leave(self, partition: Partition) -> PendingRecord | None:
        """The next message for the partition, which goes out now; None when there is none."""
        lanes = self._ready.pop(partition, None)
        while lanes:
            lane = lanes.popleft()
            lane.listed = False
            if lane.is_ready:  # else something of it came to be in doubt meanwhile
                message = lane.leave()
                if lanes:
                    self._ready[partition] = lanes  # behind the others
                self.changed(lane)
                return message
        return None

    def relist(self) -> list[OrderedQueue]:
        """Takes all lanes out of `ready`: where they go is to be found anew, then `changed` called for each."""
        for lanes in self._ready.values():
            for lane in lanes:
                lane.listed = False
        self._ready.clear()
        return list(self._lanes.values())
