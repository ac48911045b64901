"""How often the brokers are asked where their stores end."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST = 1.0  # seconds between two questions of an idle query
_SHARE = 0.1  # of the time without news: the first message after it waits for so much of it at most


class PollInterval:
    """Tells when the next question is due. `least` is the shortest interval in seconds; 0 makes it due always.

    While nothing arrives, the interval grows to a tenth of the time without news, and to a second at most.
    """

    def __init__(self, least: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._clock = clock
        self._asked_at = float("-inf")
        self._news_at = clock()

    @property
    def interval(self) -> float:
        """Seconds from the last question to the next one."""
        if not self._least:
            return 0.0
        return max(self._least, min(_LONGEST, _SHARE * (self._asked_at - self._news_at)))

    @property
    def is_due(self) -> bool:
        return self._clock() - self._asked_at >= self.interval

    def asked(self, *, has_news: bool) -> None:
        """The brokers have answered just now. `has_news`: something is there to read, or something was committed."""
        self._asked_at = self._clock()
        if has_news:
            self._news_at = self._asked_at
