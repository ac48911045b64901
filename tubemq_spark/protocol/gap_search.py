"""Finding the positions of messages among index entries that hold none.

In a store with one partition every entry is a message of that partition, so positions follow by counting, except for
entries that no fetch ever returns (wire: DataStoreUtils.getTransferMsg leaves out a payload whose attribute header does
not fit). `GapSearch` finds those gaps by bisection: it says where to look for a message and is told which comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import StoredMessage, index_of, key_of


class GapSearch:
    """Finds `positions`, one index position a message, of the messages of all entries in [begin, end).

    Halves a stretch with gaps by asking for the first message at or behind its middle, until each stretch has either no
    message or no gap. A message that is found and is none of the stretch's must be the one that follows at `end`. That
    one is asked for when this comes up: any other was left out when the stretch was read.

    The search goes from the left to the right, and ends behind more than `most_missing` entries without a message.
    `known` messages have a position in the end, and all others stand at `bound` or behind it. `missing` counts the
    entries without a message up to there.
    """

    def __init__(self, messages: Sequence[StoredMessage], begin: int, end: int, most_missing: int) -> None:
        self.messages = messages
        self.begin = begin
        self.end = self.bound = end
        self.known = len(messages)
        self.missing = 0
        self.positions = [-1] * len(messages)
        self._most_missing = most_missing
        self._stretches = [(begin, end, 0, len(messages))]
        self._follower: tuple[int, int] | None = None  # key of the message that was found at `end`
        self._stranger: tuple[int, int] | None = None  # key of a message that must prove to be the one at `end`

    def next_probe(self) -> int | None:
        """Where to look next, None when all positions are known."""
        if self._stranger is not None:
            return self.end
        while self._stretches:
            begin, end, first, last = self._stretches[-1]
            if (last - first) * UNIT == end - begin:
                self.positions[first:last] = range(begin, end, UNIT)
            elif first < last:
                return self._middle(begin, end)
            else:
                self.missing += (end - begin) // UNIT
            self._stretches.pop()
            if self.missing > self._most_missing:
                self.known, self.bound = last, end
                self._stretches.clear()
        return None

    def is_answered_by(self, begin: int) -> bool:
        """Whether a fetch without messages that began at `begin` tells that none is there; else one more is needed."""
        return self._stranger is None and begin >= self.end

    def found(self, message: StoredMessage | None) -> bool:
        """`message` is the first one at or behind the probe, None when there is none before `end`, or at all.

        False when that cannot be: more messages would stand on one side of the probe than there are entries, or one of
        them was not among `messages`.
        """
        key = None if message is None else key_of(message)
        _, _, first, last = self._stretches[-1]
        if self._stranger is not None:
            stranger, self._stranger, self._follower = self._stranger, None, key
            return stranger == key and self._split(last)
        cut = last if message is None else first + index_of(message, self.messages[first:last])
        if cut == last and key is not None and not self._is_known_behind(key, last):
            self._stranger = key
            return True
        return self._split(cut)

    def _split(self, cut: int) -> bool:
        """Halves the last stretch, whose messages from `cut` on are in its second half; False when they do not fit."""
        begin, end, first, last = self._stretches.pop()
        middle = self._middle(begin, end)
        self._stretches += [(middle, end, cut, last), (begin, middle, first, cut)]
        return (cut - first) * UNIT <= middle - begin and (last - cut) * UNIT <= end - middle

    def _is_known_behind(self, key: tuple[int, int], last: int) -> bool:
        """Whether the message is the next one behind the stretch whose messages end at `last`."""
        if last < len(self.messages):
            return key == key_of(self.messages[last])
        return key == self._follower

    @staticmethod
    def _middle(begin: int, end: int) -> int:
        return begin + (end - begin) // UNIT // 2 * UNIT
