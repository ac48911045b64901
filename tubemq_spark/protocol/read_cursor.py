"""The broker's read cursor since the last seek, as far as replies to fetches tell."""

from __future__ import annotations

from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT

# A store has two memory blocks. A cursor that passed the rest of a block twice has passed all that the store had at the
# seek, which reaches at least to the end of the range. The third time allows for a reset to the same position between
# them. While other partitions fill the store, the broker never reports its end.
_PASSES_TO_END = 3
_FULL_REPLY = 30  # messages; the size of the reply most likely ended a first reply with so many, so more follow it


class ReadCursor:
    """Positions are bytes of the index. `sought` is where the last seek went, which is the group's confirmed position.
    The next fetch begins at `least_begin` or later.
    """

    def __init__(self, owns_store: bool, position: int) -> None:
        self._owns_store = owns_store
        self._span = ENTRIES_PER_READ * UNIT  # how far the last fetch moved the cursor
        self.seek(position)

    def seek(self, position: int) -> None:
        self.sought = self.least_begin = position
        self._last_begin: int | None = None  # of the last reply since the seek
        self._is_exact = True  # nothing moved the cursor since the seek: the next fetch begins exactly there
        self._passes = 0  # replies with a 404 that moved the cursor

    def can_begin_at(self, begin: int) -> bool:
        """Return whether the next fetch can begin at `begin` if no other client moved the cursor."""
        return begin == self.least_begin or (begin > self.least_begin and not self._is_exact)

    def fetched(self, begin: int, messages: int) -> None:
        """A fetch that began at `begin` returned this number of messages."""
        self._is_exact = False
        if self._owns_store or (self._last_begin is None and messages >= _FULL_REPLY):
            self._span = max(UNIT, begin - self.least_begin + UNIT * messages)
        elif self._last_begin is not None:  # other partitions share the store: this begin is the end of the last fetch
            self._span = max(UNIT, begin - self._last_begin)
        self._last_begin = begin
        self.least_begin = begin + UNIT * messages  # each message has at least one entry

    def passed(self) -> None:
        """A 404 moved the cursor over the rest of a memory block."""
        self._passes += 1
        self._is_exact = False

    @property
    def passed_the_end(self) -> bool:
        return self._passes == _PASSES_TO_END

    def fetches_to(self, end: int) -> int:
        """Return how many fetches it takes to reach `end`, by the length of the last one; 1 at least."""
        return max(1, -(-(end - self.least_begin) // self._span))
