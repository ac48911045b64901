"""Keeps messages out of a range that took the place of lost ones.

A broker that crashes between the plan of a range and its reading may have lost a part and use the positions for other
messages by then. Those have other ids (see `protocol.marks`), and belong to a later range. Most are found out at once.
Where the wave of ids turns only the last message of a store proves it, and so only the reader that meets it; that is
enough for a batch, which fails as a whole. Whoever plans it again looks at the marks.
"""

from __future__ import annotations

from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.marks import Ids
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pieces import Piece


class Sieve:
    """For one reading of [start, end), of all whose pieces it is told."""

    def __init__(self, partition: Partition, start: int, end: int, ids: Ids) -> None:
        self._partition = partition
        self._start, self._end = start, end
        self._ids = ids
        self._last: int | None = None  # the newest message's id

    def heard(self, piece: Piece) -> None:
        if piece.messages:
            self._last = piece.messages[-1].messageId

    def check(self, piece: Piece) -> None:
        """`PositionMovedError` when a message has an id that none of the range can have."""
        span = self._ids.span
        if span is not None and not all(map(span.has, (message.messageId for message in piece.messages))):
            raise self._suspicion()

    def check_end(self) -> None:
        """`PositionMovedError` when the last message was not the one that stood there."""
        if self._ids.last is not None and self._last != self._ids.last:
            raise self._suspicion()

    def _suspicion(self) -> PositionMovedError:
        return PositionMovedError(
            f"{self._partition}: messages in [{self._start}, {self._end}) have other ids than those that stood there "
            "when the batch was planned: its broker seems to have lost some in a crash, and to use the positions "
            "again. Start the query again: it looks what was lost"
        )
