"""The embedded servers' time: it passes by itself, and a test may advance it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds and milliseconds as the servers see them.

    Every timeout of the servers (claims, members, flushes, offsets, rounds of balance, delays of faults) is measured by
    one of these, so that a test that waits for none of them can still see all of them.
    """

    def __init__(self, on_advance: Callable[[], None] = lambda: None) -> None:
        self._skipped = 0.0
        self._on_advance = on_advance

    def now(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        return time.monotonic() + self._skipped

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int((time.time() + self._skipped) * 1000)

    def advance(self, seconds: float) -> None:
        """Skips `seconds`, and has all done that falls due by it; `ValueError` for less than none."""
        if seconds < 0:
            raise ValueError(f"time does not go back: cannot advance by {seconds} s")
        self._skipped += seconds
        self._on_advance()


class Period:
    """Says when something that is done every `seconds` is due."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._next = clock.now() + seconds

    def is_due(self) -> bool:
        """Whether a period ended; if so, the next one begins. However many have ended, they count as one."""
        now = self._clock.now()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
