"""Data loss in a partition: the error that reports it, and the range that is left to read after it."""

from __future__ import annotations

from tubemq_spark.errors import DataLossError, ProtocolError
from tubemq_spark.protocol.fetched_batch import DeliveredLog
from tubemq_spark.protocol.metadata import Partition


def loss_of(partition: Partition, text: str, *, asked: int, offered: int) -> DataLossError:
    """Return the error for a loss in `partition`. Positions are bytes of the index, see `DataLossError`."""
    return DataLossError(
        text,
        topic=partition.topic,
        broker_id=partition.broker_id,
        partition=partition.partition_id,
        asked=asked,
        offered=offered,
    )


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
