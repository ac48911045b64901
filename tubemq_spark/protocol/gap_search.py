# SPDX-License-Identifier: Apache-2.0
"""Finds the positions of messages among index entries that hold no message.

If one partition owns a store, every entry is a message of it, and positions follow by counting. The exceptions are
entries that no fetch ever returns (wire: DataStoreUtils.getTransferMsg skips a payload whose attribute header does not
fit). `GapSearch` finds these gaps by binary search: it says where to probe, and receives the first message found there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import StoredMessage, index_of, key_of


class GapSearch:
    """Finds `positions`, one index position for each message, of the messages of all entries in [begin, end).

    A stretch with gaps is halved by a probe in its middle, until each stretch has either no message or no gap. If a
    probe finds a message that is not one of the stretch, it must be the one that follows at `end`. The search then
    probes `end` for it; any other message would have been skipped when the stretch was read.

    The search goes from left to right, and ends behind more than `most_missing` entries without a message. Then the
    first `known` messages have a position, and all others are at `bound` or behind it. `missing` counts the entries
    without a message up to there.
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
        self._follower: tuple[int, int] | None = None  # key of the message that a probe found at `end`
        self._unexpected: tuple[int, int] | None = None  # key of a message that must be the one at `end`

    @property
    def first_missing(self) -> int:
        """The position of the first entry without a message, once the search is complete; `bound` without any."""
        expected = zip(range(self.begin, self.bound, UNIT), self.positions[: self.known], strict=False)
        counted = self.begin + self.known * UNIT
        return next((entry for entry, position in expected if entry != position), min(counted, self.bound))

    def next_probe(self) -> int | None:
        """Return the next position to probe, None when the search is complete."""
        if self._unexpected is not None:
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
        """Return True if a fetch from `begin` that found no message proves that there is none; else fetch once more."""
        return self._unexpected is None and begin >= self.end

    def found(self, message: StoredMessage | None) -> bool:
        """Process a probe: `message` is the first one at or behind it, None if there is none before `end`, or at all.

        Return False if that is impossible: one side of the probe would have more messages than entries, or a message
        was not among `messages`.
        """
        key = None if message is None else key_of(message)
        _, _, first, last = self._stretches[-1]
        if self._unexpected is not None:
            unexpected, self._unexpected, self._follower = self._unexpected, None, key
            return unexpected == key and self._split(last)
        cut = last if message is None else first + index_of(message, self.messages[first:last])
        if cut == last and key is not None and not self._is_known_behind(key, last):
            self._unexpected = key
            return True
        return self._split(cut)

    def _split(self, cut: int) -> bool:
        """Halve the last stretch; messages from `cut` on are in its second half. Return False if they do not fit."""
        begin, end, first, last = self._stretches.pop()
        middle = self._middle(begin, end)
        self._stretches += [(middle, end, cut, last), (begin, middle, first, cut)]
        return (cut - first) * UNIT <= middle - begin and (last - cut) * UNIT <= end - middle

    def _is_known_behind(self, key: tuple[int, int], last: int) -> bool:
        """Return True if the message is the next one behind the stretch whose messages end at `last`."""
        if last < len(self.messages):
            return key == key_of(self.messages[last])
        return key == self._follower

    @staticmethod
    def _middle(begin: int, end: int) -> int:
        return begin + (end - begin) // UNIT // 2 * UNIT
