"""Retries: how long to wait between attempts, and when to stop."""

from __future__ import annotations

from collections.abc import Iterator

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock


def delays(first: float = 0.05, ceiling: float = 1.0) -> Iterator[float]:
    """Yield the seconds to wait before each next attempt, doubling up to `ceiling`. The caller sleeps."""
    delay = first
    while True:
        yield delay
        delay = min(2 * delay, ceiling)


class Deadline:
    """A point in time, `seconds` from now."""

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._end - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        return self._clock.monotonic() >= self._end

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the deadline if that comes first."""
        self._clock.sleep(min(seconds, max(self.left, 0.001)))


class RetryBackoff:
    """Pauses between attempts that grow, until `seconds` have passed without progress."""

    def __init__(self, seconds: float, first: float = 0.05, clock: Clock = SYSTEM_CLOCK) -> None:
        self._seconds, self._first, self._clock = seconds, first, clock
        self._since = clock.monotonic()  # the last progress
        self._delays = delays(first)

    @property
    def left(self) -> float:
        """Seconds until the retries end, never negative."""
        return max(0.0, self._since + self._seconds - self._clock.monotonic())

    def progress(self) -> None:
        """Start the time and the pauses again, because an attempt got further than the ones before."""
        self._since = self._clock.monotonic()
        self._delays = delays(self._first)

    def pause(self, at_least: float = 0.0) -> bool:
        """Sleep before the next attempt and return True, or return False at once if the time is over."""
        if left := self.left:
            self._clock.sleep(min(max(next(self._delays), at_least), max(left, 0.001)))
        return left > 0
