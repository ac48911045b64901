"""Data loss in a partition: its error, the range that is left to read, and messages that replaced lost ones."""

from __future__ import annotations

from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch
from tubemq_spark.protocol.log_fingerprint import KnownIds
from tubemq_spark.protocol.metadata import Partition


def loss_of(partition: Partition, text: str, *, asked: int, offered: int) -> DataLossError:
    """Return the error for a loss in `partition`. Positions are bytes of the index, see `DataLossError`."""
    broker_id, topic, number = partition
    return DataLossError(text, topic=topic, broker_id=broker_id, partition=number, asked=asked, offered=offered)


def remaining_range(start: int, end: int, loss: DataLossError, delivered: DeliveredLog) -> tuple[int, int]:
    """Return the part of [start, end) to read after `loss`: a smaller range, maybe an empty one. Positions are bytes of
    the index.

    A store that lost its tail uses the positions again for messages that came after the range was planned. These do not
    belong to the range. Raise `ProtocolError` if nothing of this range is lost: a reader must not retry then.
    """
    delivered_end = delivered.last.end if delivered.last else start
    if loss.offered > loss.asked:  # retention removed the beginning
        remaining = max(loss.offered, delivered_end), end
    else:
        remaining = delivered_end, min(loss.offered, end)
    if remaining[0] >= remaining[1]:
        return end, end
    if remaining == (start, end):
        raise ProtocolError(f"[{start}, {end}) is whole although it was reported as lost: {loss}")
    return remaining


class ReplacedMessageCheck:
    """Detects messages that replaced lost ones, in one reading of [start, end). All its batches are added.

    If a broker crashes between the plan of a range and its reading, it may lose a part of the range and use the
    positions again for other messages. These have other ids (see `log_fingerprint`) and belong to a later range.

    A crash loses the end of a store, so only the last message is checked: if any was replaced, it was. It proves the
    loss if its id is known. Otherwise only a span of ids is known, which may be wrong: times of fingerprints may be
    unknown, clocks change, and ids wrap. The last message is near the last fingerprint, so it is rarely suspected.
    """

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
