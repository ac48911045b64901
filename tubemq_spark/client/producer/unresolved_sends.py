# SPDX-License-Identifier: Apache-2.0
"""Unresolved sends: records that were sent and not answered, and that must not be stored late or twice.

Before they are sent again, the broker has time to handle the requests of the closed connection. Then a look-up shows
which of them are stored; those with a key and no look-up are sent again, and their copies come before their successors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.producer.record_batch import RecordBatch, RecordId, RecordMetadata
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

# After an answer, a broker needs `closed_connection_settling` to handle the requests of connections that are closed: it
# handles those of a connection one by one as it reads them (wire: NettyRpcServer). A broker that was silent may be
# stuck and needs so many times as long: each record may wait for a flush, a few times two seconds
# (wire: MessageStore.appendMsg).
_SETTLING_IF_SILENT = 10


class RecordLookup(Protocol):
    """Finds out whether records are stored. `sink.deduplicator.Deduplicator` implements it."""

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        """Return those of `partitions` in which records can be looked up; the producer sends to no other. The producer
        asks before it sends the first record there. Raise `TransportError` if all are `needed` and one is missing."""

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[RecordId]
    ) -> Mapping[RecordId, RecordMetadata]:
        """Return those of `record_ids` that the partition stores at or behind offset `start`. None means anywhere the
        task may have written. None of the records is in flight. Raise `TransportError` if that is not known now."""


Resolved = tuple[RecordBatch, Sequence[RecordMetadata | None]]
"""A batch and the place of each record; None for one that is not stored."""


@dataclass
class _Unresolved:
    """The unresolved records of one partition."""

    batches: list[RecordBatch] = field(default_factory=list)
    due: float = 0.0  # when to do something about them, on the monotonic clock
    pinged: bool = False  # whether the broker has answered since the last batch was added


class UnresolvedSends:
    """The unresolved records of one producer. Without a `lookup`, they only wait until no copy can arrive any more."""

    def __init__(
        self,
        lookup: RecordLookup | None,
        settings: ClientSettings,
        ping: Callable[[int], None],
        left: Callable[[Iterable[RecordBatch]], float],
    ) -> None:
        """`ping` asks the broker with this id for an answer, and raises `TransportError` if it gives none. `left`
        returns the seconds until the first of some batches is given up."""
        self._left = left
        self._lookup = lookup
        self._settings = settings
        self._ping_broker = ping
        self._unresolved: dict[Partition, _Unresolved] = {}

    def __len__(self) -> int:
        return len(self._unresolved)

    def __iter__(self) -> Iterator[RecordBatch]:
        return chain.from_iterable(unresolved.batches for unresolved in self._unresolved.values())

    def add(self, batch: RecordBatch) -> None:
        """Take over records whose sends have an unknown outcome."""
        COUNTERS().add(Count.UNRESOLVED, len(batch))
        unresolved = self._unresolved.setdefault(batch.partition, _Unresolved())
        unresolved.batches.append(batch)
        unresolved.due, unresolved.pinged = self._settings.clock.monotonic(), False

    def resolve(self, may_ask: Callable[[Partition], bool], is_gone: Callable[[Partition], bool]) -> list[Resolved]:
        """Ping brokers, or look up the records of one partition, where that is due and `may_ask` allows it. Only one,
        because a look-up takes time and other records wait. Where a partition `is_gone`, its records go to another one,
        and need no order with late copies."""
        now = self._settings.clock.monotonic()
        if self._lookup is None:
            for partition, unresolved in self._unresolved.items():
                if all(batch.lane.id.by_key for batch in unresolved.batches) and is_gone(partition):
                    return self._settled(partition, {})
        due = [one for one, unresolved in self._unresolved.items() if unresolved.due <= now and may_ask(one)]
        for partition in due:
            if self._unresolved[partition].pinged:
                return self._look_up(partition)
        for broker_id in {partition.broker_id for partition in due}:
            self._ping(broker_id, [partition for partition in due if partition.broker_id == broker_id])
        return []

    def _ping(self, broker_id: int, partitions: Sequence[Partition]) -> None:
        try:
            self._ping_broker(broker_id)
        except TransportError as error:
            self._postpone(broker_id, error)
            return
        for unresolved in (self._unresolved[partition] for partition in partitions):
            unresolved.pinged = True
            was_silent = any(batch.was_silent for batch in unresolved.batches)
            unresolved.due = self._settled_at(_SETTLING_IF_SILENT if was_silent else 1)

    def _look_up(self, partition: Partition) -> list[Resolved]:
        batches = self._unresolved[partition].batches
        record_ids = [one for batch in batches for one in batch.ids if one is not None]
        stored: Mapping[RecordId, RecordMetadata] = {}
        if self._lookup is not None and record_ids:
            offsets = [batch.earliest_offset for batch in batches]
            start = None if None in offsets else min(one for one in offsets if one is not None)
            try:
                stored = self._lookup.find_stored(partition, start, record_ids)
            except TransportError as error:
                self._postpone(partition.broker_id, error)
                return []
        OUTAGES().worked(_log, f"the look-up of messages on broker {partition.broker_id}")
        return self._settled(partition, stored)

    def _settled(self, partition: Partition, stored: Mapping[RecordId, RecordMetadata]) -> list[Resolved]:
        batches = sorted(self._unresolved.pop(partition).batches, key=lambda batch: batch.number)
        return [(batch, [stored.get(one) for one in batch.ids]) for batch in batches]

    def _postpone(self, broker_id: int, error: TransportError) -> None:
        """Ask a broker that does not answer again later."""
        waiting = [one for partition, one in self._unresolved.items() if partition.broker_id == broker_id]
        batches = [batch for unresolved in waiting for batch in unresolved.batches]
        text = f"whether {sum(map(len, batches))} messages are stored on broker {broker_id} is not known: {error}"
        subject = f"the look-up of messages on broker {broker_id}"
        OUTAGES().failed(_log, subject, lambda: text, self._left(batches), clock=self._settings.clock)
        for unresolved in waiting:
            unresolved.due, unresolved.pinged = self._settled_at(), False
        for batch in batches:
            assert batch.failure is not None
            batch.failure.problem = error

    def _settled_at(self, times: int = 1) -> float:
        return self._settings.clock.monotonic() + self._settings.timings.closed_connection_settling * times
