"""Finding the positions of messages among index entries that hold none.

In a store with one partition every entry is a message of that partition, so positions follow by counting, except for
entries that no fetch ever returns (wire: DataStoreUtils.getTransferMsg leaves out a payload whose attribute header does
not fit). `Located` finds those gaps by bisection: it says where to look for a message and is told which comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.pieces import StoredMessage, index_of


class Located:
    """Finds `positions`, one index position a message, of the messages of all entries in [begin, upto).

    Halves a stretch with gaps by asking for the first message at or behind its middle, until each stretch has either no
    message or no gap.
    """

    def __init__(self, messages: Sequence[StoredMessage], begin: int, upto: int) -> None:
        self.messages = messages
        self.begin = begin
        self.upto = upto
        self.positions = [-1] * len(messages)
        self._stretches = [(begin, upto, 0, len(messages))]

    def next_probe(self) -> int | None:
        """Where to look next, None when all positions are known."""
        while self._stretches:
            begin, upto, first, last = self._stretches[-1]
            if (last - first) * UNIT == upto - begin:
                self.positions[first:last] = range(begin, upto, UNIT)
            elif first < last:
                return self._middle(begin, upto)
            self._stretches.pop()
        return None

    def found(self, message: StoredMessage | None) -> bool:
        """`message` is the first one at or behind the probe, None when there is none before `upto`.

        False when that cannot be: more messages would stand on one side of the probe than there are entries.
        """
        begin, upto, first, last = self._stretches.pop()
        middle = self._middle(begin, upto)
        cut = last if message is None else first + index_of(message, self.messages[first:last])
        self._stretches += [(middle, upto, cut, last), (begin, middle, first, cut)]
        return (cut - first) * UNIT <= middle - begin and (last - cut) * UNIT <= upto - middle

    @staticmethod
    def _middle(begin: int, upto: int) -> int:
        return begin + (upto - begin) // UNIT // 2 * UNIT
