"""Messages that were sent and not answered: stored or not, only a look at their partition can tell."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from tubemq_spark.client.outgoing import Outgoing, Stored
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.produce import SendEvent, SendState

_log = logging.getLogger(__name__)

SETTLING = 1.0
"""Seconds after a sign of life from a broker within which it has handled what came over connections that are closed. It
handles the requests of a connection one by one as it reads them (wire: NettyRpcServer), but may have been stuck."""

_INDEX_ENTRY = 28


class Finder(Protocol):
    """The part of `client.producer.Ledger` that is needed here."""

    def greet(self, partition: Partition) -> None: ...

    def find(self, partition: Partition, floor: int | None, marks: Collection[int]) -> Mapping[int, Stored]: ...


class Doubts:
    """The messages of one producer that are in doubt."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._messages: dict[Partition, list[Outgoing]] = defaultdict(list)
        self._due: dict[Partition, float] = {}
        self._alive: set[Partition] = set()  # whose brokers gave a sign of life since the last message came in doubt
        self._ends: dict[Partition, int] = {}

    def __repr__(self) -> str:
        return f"<Doubts {len(self)}>"

    def __len__(self) -> int:
        return sum(len(messages) for messages in self._messages.values())

    def floor(self, partition: Partition) -> int | None:
        """Where, at the earliest, a message will stand that is sent now: behind those that were acknowledged."""
        return self._ends.get(partition)

    def stored_at(self, partition: Partition, offset: int) -> None:
        self._ends[partition] = max(offset + _INDEX_ENTRY, self._ends.get(partition, 0))

    def forget_ends(self, broker_id: int) -> None:
        """The broker may have crashed, and lost messages that it had acknowledged: others will stand in their place."""
        self._ends = {partition: end for partition, end in self._ends.items() if partition.broker_id != broker_id}

    def concern(self, message: Outgoing) -> bool:
        """Whether the message is in doubt, and looked after here from now on."""
        if message.state is not SendState.IN_DOUBT:
            return False
        if message.lane is not None:
            message.lane.hold_back(message)
        self._messages[message.partition].append(message)
        self._due[message.partition] = time.monotonic()
        self._alive.discard(message.partition)
        return True

    def settle(self, may_ask: Callable[[Partition], bool]) -> tuple[list[tuple[Outgoing, Stored]], list[Outgoing]]:
        """Looks for messages where `may_ask` says that the broker may be asked: those that stand, and those that do
        not, in the order of their numbers."""
        found: list[tuple[Outgoing, Stored]] = []
        missed: list[Outgoing] = []
        now = time.monotonic()
        for partition in [one for one, due in self._due.items() if due <= now and may_ask(one)]:
            messages = self._messages[partition]
            floors = [message.floor for message in messages]
            floor = None if None in floors else min(one for one in floors if one is not None)
            marks = [message.mark for message in messages if message.mark is not None]
            try:
                if partition not in self._alive:
                    self._finder.greet(partition)
                    self._alive.add(partition)
                    self._due[partition] = time.monotonic() + SETTLING
                    continue
                standing = self._finder.find(partition, floor, marks)
            except TransportError as error:
                _log.info("%s: whether %d messages are stored cannot be told yet: %s", partition, len(messages), error)
                for message in messages:
                    message.problem = error
                self._alive.discard(partition)
                self._due[partition] = time.monotonic() + SETTLING
                continue
            del self._messages[partition], self._due[partition]
            for message in sorted(messages, key=lambda one: one.number):
                stored = None if message.mark is None else standing.get(message.mark)
                if stored is None:
                    message.on(SendEvent.MISSED)
                    missed.append(message)
                else:
                    message.on(SendEvent.FOUND)
                    found.append((message, stored))
        return found, missed
