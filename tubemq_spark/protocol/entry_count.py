"""Counts the index entries that gave no message, which decides whether messages get positions."""

from __future__ import annotations

MAX_EMPTY_ENTRIES = 16
"""Entries without a message in a range. Messages behind more of them have no position."""


class EntryCount:
    """The empty entries of one reading of a range, up to where it has come.

    `has_positions` is True while positions follow by counting: the partition owns its store, and few entries are
    empty. Entries before `flushed_end` were read from files. `unflushed` are the entries [begin, end) that must be in
    files before the reading continues.
    """

    def __init__(self, owns_store: bool) -> None:
        self.owns_store = owns_store
        self.unflushed = (-1, -1)
        self.restart()

    def restart(self) -> None:
        """A new reading begins at the start of the range."""
        self.has_positions = self.owns_store
        self.flushed_end = -1
        self._empty = 0

    def add_empty(self, entries: int) -> None:
        self._empty += entries
        self.has_positions = self.has_positions and self._empty <= MAX_EMPTY_ENTRIES

    @property
    def most_empty(self) -> int:
        """How many more entries may be empty before messages lose their positions."""
        return MAX_EMPTY_ENTRIES - self._empty
