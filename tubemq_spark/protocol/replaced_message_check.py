"""Keeps messages out of a range that took the place of lost ones.

A broker that crashes between the plan of a range and its reading may have lost a part and use the positions for other
messages by then. Those have other ids (see `protocol.marks`), and belong to a later range.

A crash loses the end of a store. So if a message of the range was replaced, the last one of the range was replaced too,
and the last one is all that is looked at. It proves the loss where its id is known. Elsewhere only a span of ids is
known, and may be wrong: times of marks may be unknown, clocks are set anew, and a wave of ids has the same ids twice.
Messages in the middle of a range would often be suspected then. The last one stands near the last mark.
"""

from __future__ import annotations

from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.log_fingerprint import KnownIds
from tubemq_spark.protocol.metadata import Partition


class ReplacedMessageCheck:
    """For one reading of [start, end), of all whose batches it is told."""

    def __init__(self, partition: Partition, start: int, end: int, ids: KnownIds) -> None:
        self._partition = partition
        self._start, self._end = start, end
        self._ids = ids
        self._last: int | None = None  # the newest message's id

    def add(self, batch: FetchedBatch) -> None:
        if batch.messages:
            self._last = batch.messages[-1].messageId

    @property
    def finds_replacement(self) -> bool:
        """Whether the last message is another one than before. Where its id is known, the mark at the last entry is to
        be looked at once more: the entry may be one that no fetch returns, and the mark names the next message then.
        """
        if self._ids.last is not None:
            return self._last != self._ids.last
        span = self._ids.span
        return span is not None and self._last is not None and not span.has(self._last)

    def error(self) -> PositionMovedError:
        return PositionMovedError(
            f"{self._partition}: messages in [{self._start}, {self._end}) have other ids than those that stood there "
            "when the batch was planned: its broker seems to have lost some in a crash, and to use the positions "
            "again. Start the query again: it looks what was lost"
        )
