"""Detects messages that replaced lost ones in a range (log truncation between planning and reading).

If a broker crashes between the plan of a range and its reading, it may lose a part of the range and use the positions
again for other messages. These have other ids (see `protocol.log_fingerprint`) and belong to a later range.

A crash loses the end of a store. So if any message of the range was replaced, the last one was replaced, too, and only
the last one is checked. It proves the loss if its id is known. Otherwise only a span of ids is known, which may be
wrong: times of fingerprints may be unknown, clocks change, and ids repeat after they wrap. Messages in the middle of a
range would then often be suspected; the last one is near the last fingerprint.
"""

from __future__ import annotations

from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.log_fingerprint import KnownIds
from tubemq_spark.protocol.metadata import Partition


class ReplacedMessageCheck:
    """The check of one reading of [start, end). Every batch of the reading is added to it."""

    def __init__(self, partition: Partition, start: int, end: int, ids: KnownIds) -> None:
        self._partition = partition
        self._start, self._end = start, end
        self._ids = ids
        self._last: int | None = None  # the id of the last message

    def add(self, batch: FetchedBatch) -> None:
        if batch.messages:
            self._last = batch.messages[-1].messageId

    @property
    def finds_replacement(self) -> bool:
        """Return True if the last message differs from the planned one.

        If its id is known, the caller must probe the fingerprint at the last entry once more: perhaps no fetch returns
        that entry, and the fingerprint names the message behind it.
        """
        if self._ids.last is not None:
            return self._last != self._ids.last
        span = self._ids.span
        return span is not None and self._last is not None and not span.has(self._last)

    def error(self) -> PositionMovedError:
        return PositionMovedError(
            f"{self._partition}: messages in [{self._start}, {self._end}) have other ids than those that stood there "
            "when the batch was planned: the broker probably lost some in a crash and uses their positions again. "
            "Start the query again: it then finds out what was lost"
        )
