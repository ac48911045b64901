"""Keeps messages out of a range that took the place of lost ones.

A broker that crashes between the plan of a range and its reading may have lost a part and use the positions for other
messages by then. Those have other ids (see `protocol.marks`), and belong to a later range.
"""

from __future__ import annotations

from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.marks import Span
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pieces import Piece


class Sieve:
    """For one reading of [start, end), of which `ids` are known or None. `loss` tells what was found to be lost."""

    def __init__(self, partition: Partition, start: int, end: int, ids: Span | None) -> None:
        self.loss: DataLossError | None = None
        self._partition = partition
        self._start, self._end = start, end
        self._ids = ids

    def sift(self, piece: Piece) -> Piece:
        """The part of the next piece that stands before the first message with another id."""
        if self.loss is not None:
            return piece.before(0)
        if self._ids is None or all(map(self._ids.has, (message.messageId for message in piece.messages))):
            return piece
        index = next(i for i, message in enumerate(piece.messages) if not self._ids.has(message.messageId))
        position = piece.begin if piece.positions is None else piece.positions[index]
        self.loss = DataLossError(
            f"{self._partition}: the broker lost messages of [{self._start}, {self._end}) before they were read and "
            f"has other ones at or behind {position}",
            topic=self._partition.topic,
            broker_id=self._partition.broker_id,
            partition=self._partition.partition_id,
            asked=self._end,
            offered=position,
        )
        return piece.before(index)
