"""Messages that were sent and not answered: stored or not, only a look at their partition can tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.client.producer.delivery_timeout import DeliveryTimeout
from tubemq_spark.client.producer.pending_record import PendingRecord, RecordId, RecordMetadata
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SendEvent, SendState

_log = logging.getLogger(__name__)

SETTLING = 1.0
"""Seconds after a sign of life from a broker within which it has handled what came over connections that are closed. It
handles the requests of a connection one by one as it reads them (wire: NettyRpcServer), but may have been stuck."""

_STUCK = 10
"""How many times as long it takes where the broker was silent: each message may wait for a flush, a few times two
seconds (wire: MessageStore.appendMsg)."""

_INDEX_ENTRY = 28


class Finder(Protocol):
    """The part of `client.producer.producer.RecordLookup` that is needed here."""

    def ping(self, partitions: Sequence[Partition]) -> None: ...

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[RecordId]
    ) -> Mapping[RecordId, RecordMetadata]: ...


Settled = tuple[list[tuple[PendingRecord, RecordMetadata]], list[PendingRecord]]


@dataclass
class _Place:
    """A partition's messages in doubt, and when to do something about them next, on the monotonic clock."""

    messages: list[PendingRecord] = field(default_factory=list)
    due: float = 0.0
    greeted: bool = False  # whether its broker gave a sign of life since the last of them came in doubt


class UnresolvedSends:
    """The messages of one producer that are in doubt."""

    def __init__(self, finder: Finder, patience: DeliveryTimeout | None = None) -> None:
        """`patience` tells in warnings how long is left for what cannot be settled."""
        self._finder = finder
        self._patience = patience
        self._places: dict[Partition, _Place] = {}
        self._ends: dict[Partition, int] = {}

    def __repr__(self) -> str:
        return f"<Doubts {len(self)}>"

    def __len__(self) -> int:
        return sum(len(place.messages) for place in self._places.values())

    def floor(self, partition: Partition) -> int | None:
        """Where, at the earliest, a message will stand that is sent now: behind those that were acknowledged."""
        return self._ends.get(partition)

    def stored_at(self, partition: Partition, offset: int) -> None:
        self._ends[partition] = max(offset + _INDEX_ENTRY, self._ends.get(partition, 0))

    def forget_ends(self, broker_id: int) -> None:
        """The broker may have crashed, and lost messages that it had acknowledged: others will stand in their place."""
        self._ends = {partition: end for partition, end in self._ends.items() if partition.broker_id != broker_id}

    def concern(self, message: PendingRecord) -> bool:
        """Whether the message is in doubt, and looked after here from now on."""
        if message.state is not SendState.IN_DOUBT:
            return False
        if message.lane is not None:
            message.lane.hold_back(message)
        place = self._places.setdefault(message.partition, _Place())
        place.messages.append(message)
        place.due, place.greeted = time.monotonic(), False
        return True

    def settle(self, may_ask: Callable[[Partition], bool]) -> Settled:
        """Does what is due where `may_ask` says that the broker may be asked, for one partition at most, lest others
        wait: its messages that stand, and those that do not, in the order of their numbers."""
        now = time.monotonic()
        due = [partition for partition, place in self._places.items() if place.due <= now and may_ask(partition)]
        for partition in due:
            if self._places[partition].greeted:
                return self._look_at(partition)
        for broker_id in {partition.broker_id for partition in due}:
            self._greet([partition for partition in due if partition.broker_id == broker_id])
        return [], []

    def _greet(self, partitions: Sequence[Partition]) -> None:
        try:
            self._finder.ping(partitions)
        except TransportError as error:
            self._put_off(partitions[0].broker_id, error)
            return
        for place in (self._places[partition] for partition in partitions):
            place.greeted = True
            stuck = any(message.was_silent for message in place.messages)
            place.due = time.monotonic() + SETTLING * (_STUCK if stuck else 1)

    def _look_at(self, partition: Partition) -> Settled:
        messages = sorted(self._places[partition].messages, key=lambda one: one.number)
        floors = [message.floor for message in messages]
        floor = None if None in floors else min(one for one in floors if one is not None)
        try:
            standing = self._finder.find_stored(
                partition, floor, [one.record_id for one in messages if one.record_id is not None]
            )
        except TransportError as error:
            self._put_off(partition.broker_id, error)
            return [], []
        OUTAGES.worked(_log, _look(partition.broker_id))
        del self._places[partition]
        found: list[tuple[PendingRecord, RecordMetadata]] = []
        missed: list[PendingRecord] = []
        for message in messages:
            stored = None if message.record_id is None else standing.get(message.record_id)
            if stored is None:
                message.on(SendEvent.MISSED)
                missed.append(message)
            else:
                message.on(SendEvent.FOUND)
                found.append((message, stored))
        return found, missed

    def _put_off(self, broker_id: int, error: TransportError) -> None:
        """The broker does not answer: nothing is asked of it for a moment."""
        count = sum(len(place.messages) for one, place in self._places.items() if one.broker_id == broker_id)
        OUTAGES.failed(
            _log,
            _look(broker_id),
            lambda: f"whether {count} messages are stored on broker {broker_id} cannot be told: {error}",
            self._patience.left if self._patience is not None else None,
        )
        for partition, place in self._places.items():
            if partition.broker_id == broker_id:
                place.due, place.greeted = time.monotonic() + SETTLING, False
                for message in place.messages:
                    message.problem = error


def _look(broker_id: int) -> str:
    return f"the look for messages on broker {broker_id}"
