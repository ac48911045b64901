"""How long to go on and how long to wait in between."""

from __future__ import annotations

import time
from collections.abc import Iterator


def delays(first: float = 0.05, ceiling: float = 1.0) -> Iterator[float]:
    """Seconds to wait before each next try, doubling up to `ceiling`; sleeping is the caller's."""
    delay = first
    while True:
        yield delay
        delay = min(2 * delay, ceiling)


class Deadline:
    """A moment on the monotonic clock, `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._moment = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, never below 0."""
        return max(0.0, self._moment - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._moment

    def pause(self, seconds: float) -> None:
        """Sleeps for so long, but not beyond the moment by more than a trifle."""
        time.sleep(min(seconds, max(self.left, 0.001)))


class Stamina:
    """Waits longer and longer between tries, until `seconds` went by without progress."""

    def __init__(self, seconds: float, first: float = 0.05, ceiling: float = 1.0) -> None:
        self._seconds, self._first, self._ceiling = seconds, first, ceiling
        self.progress()

    @property
    def left(self) -> float:
        """Seconds until the time is up, never below 0."""
        return self._deadline.left

    def progress(self) -> None:
        """Something worked: the time and the delays begin anew."""
        self._deadline = Deadline(self._seconds)
        self._delays = delays(self._first, self._ceiling)

    def pause(self, at_least: float = 0.0) -> bool:
        """Sleeps before the next try; False, at once, when the time is up."""
        if self._deadline.passed:
            return False
        time.sleep(min(max(next(self._delays), at_least), max(self._deadline.left, 0.001)))
        return True
