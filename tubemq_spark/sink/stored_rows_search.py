"""Finds the messages of a batch in a partition, also where the bookmark is too late.

All messages of a batch stand behind its bookmark, and those of the query's earlier batches before it. If a message of
the batch stands before the bookmark, the bookmark is too late: servers dropped the query's groups and they began anew
at the end, somebody moved them, or a broker lost messages in a crash and gave their positions to others. The search
then goes back until a message of an earlier batch, or the beginning of the store, proves that nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tubemq_spark.client.consumer.partition_scan import MARGIN, ScannedMessage
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import Stamp, parse

Look = Callable[[int, int, int], Iterator[ScannedMessage]]
"""Gives what stands from so many entries (third) before a position (first) up to another one (second)."""


class StoredRowsSearch:
    """Of one batch of a query in one partition."""

    def __init__(self, partition: Partition, query: str, batch: int, look: Look, max_offsets: int) -> None:
        """Not more than `max_offsets` index entries before the bookmark are read."""
        self._partition = partition
        self._query = query
        self._batch = batch
        self._look = look
        self._max_offsets = max_offsets
        self._is_preceded = False  # by a message of an earlier batch
        self._first: ScannedMessage | None = None

    def messages(self, since: int, end: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        """The messages of the batch behind its bookmark `since`, and all that stand before it, up to `end`. One may
        come twice. Raises as `client.look.look`; `ConfigError` when there is too much to read before the bookmark."""
        yield from self._read(since, end, MARGIN)
        stop = min(since, end)
        start = max(0, stop - MARGIN * UNIT)
        if self._first is None or self._is_preceded or start == 0 or not self._stands_before(stop, start):
            return
        entries = MARGIN
        while start > 0 and not self._is_preceded:
            entries *= 2
            if entries > max(self._max_offsets, MARGIN):
                raise ConfigError(
                    f"{self._partition}: messages of the batch stand before the query's bookmark at {since}, which is "
                    "too late: the servers dropped the query's groups, or somebody moved them. Option "
                    f"'effectivelyOnceMaxOffsets' lets a task read {self._max_offsets} messages to find the first "
                    "one; raise it"
                )
            begin = max(0, start - entries * UNIT)
            yield from self._further(begin, start, since)
            start = begin

    def _further(self, begin: int, end: int, since: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        try:
            yield from self._read(begin, end, 0)
        except DataLossError as loss:
            if loss.offered < end:
                yield from self._read(loss.offered, end, 0)
            if not self._is_preceded:
                raise DataLossError(
                    f"{self._partition}: messages of the batch stand before the query's bookmark at {since}, which is "
                    "too late: the servers dropped the query's groups, or somebody moved them. What an earlier try "
                    f"has stored cannot be told, for retention has removed messages in [{begin}, {loss.offered})",
                    topic=self._partition.topic,
                    broker_id=self._partition.broker_id,
                    partition=self._partition.partition_id,
                    asked=begin,
                    offered=loss.offered,
                ) from None

    def _read(self, since: int, end: int, behind: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        has_met = False
        for seen in self._look(since, end, behind):
            stamp = parse(seen.attributes)
            if stamp is None or stamp.origin.id != self._query:
                continue
            if stamp.origin.batch < self._batch:
                self._is_preceded = self._is_preceded or not has_met
            elif stamp.origin.batch == self._batch and stamp.digest is not None:
                has_met = True
                self._first = self._first or seen
                yield stamp, seen

    def _stands_before(self, stop: int, start: int) -> bool:
        """Whether a message of the batch stands before the bookmark."""
        assert self._first is not None
        if self._first.position is not None:
            return self._first.position < stop
        return any(True for _ in self._read(start, stop, 0))
