"""Keeps messages out of a range that took the place of lost ones.

A broker that crashes between the plan of a range and its reading may have lost a part and use the positions for other
messages by then. Those have other ids (see `protocol.marks`), and belong to a later range. Ids are no proof, though:
who finds a strange one must not go on, and whoever plans the batch again looks at the marks.
"""

from __future__ import annotations

from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.marks import Span
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pieces import Piece


class Sieve:
    """For one reading of [start, end), of which `ids` are known or None."""

    def __init__(self, partition: Partition, start: int, end: int, ids: Span | None) -> None:
        self._partition = partition
        self._start, self._end = start, end
        self._ids = ids

    def check(self, piece: Piece) -> None:
        """`PositionMovedError` when a message has an id that none of the range can have."""
        if self._ids is None or all(map(self._ids.has, (message.messageId for message in piece.messages))):
            return
        raise PositionMovedError(
            f"{self._partition}: messages in [{self._start}, {self._end}) have other ids than those that stood there "
            "when the batch was planned: its broker seems to have lost some in a crash, and to use the positions "
            "again. Start the query again: it looks what was lost"
        )
