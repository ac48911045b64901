"""Poll interval: how often the driver asks the brokers for the log ends."""

from __future__ import annotations

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock

_IDLE_SHARE = 0.1  # of the time without news: a message that arrives then waits at most that long


class PollInterval:
    """Tells when the next request is due. `least` and `most` bound the interval in seconds; with a `least` of 0 it is
    always due, and a `least` above `most` wins.

    While nothing arrives, the interval grows to a tenth of the time without news.
    """

    def __init__(self, least: float, most: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self._least = least
        self._most = most
        self._clock = clock
        self._polled_at = float("-inf")
        self._news_at = clock.monotonic()

    @property
    def interval(self) -> float:
        """Seconds from the last request to the next one."""
        if not self._least:
            return 0.0
        return max(self._least, min(self._most, _IDLE_SHARE * (self._polled_at - self._news_at)))

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() - self._polled_at >= self.interval

    def polled(self, *, has_news: bool) -> None:
        """Note that the brokers answered now. `has_news`: there is something to read, or something was committed."""
        self._polled_at = self._clock.monotonic()
        if has_news:
            self._news_at = self._polled_at
