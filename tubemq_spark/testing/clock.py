# SPDX-License-Identifier: Apache-2.0
"""The servers' time in an embedded cluster, which a test can advance: `EmbeddedTubeMQ.clock`.

The client has a clock of its own, `tubemq_spark.client.clock.Clock` in `ClientSettings.clock`, for its timeouts and
pauses. The two are independent, as on two machines: advancing this one skips no pause of a client.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from tubemq_spark.errors import ConfigError


class SystemTime:
    """Time as it passes without a test's help: that of this machine, unless a subclass has its own."""

    def now(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class Clock:
    """Real time plus the seconds that a test has skipped.

    All timeouts of the servers use it: claims, group members, flushes, offsets, rebalances, delays of faults. So a test
    can see each of them without waiting.
    """

    def __init__(self, on_advance: Callable[[], None] = lambda: None, real: SystemTime | None = None) -> None:
        self._skipped = 0.0
        self._on_advance = on_advance
        self._real = real or SystemTime()

    def now(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return self._real.now() + self._skipped

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._real.wall_ms() + int(self._skipped * 1000)

    def advance(self, seconds: float) -> None:
        """Skip `seconds` and run all timers that become due; `ConfigError` for a negative number."""
        if seconds < 0:
            raise ConfigError(f"time does not go back: cannot advance by {seconds} s")
        self._skipped += seconds
        self._on_advance()


class Period:
    """A timer that is due every `seconds`, for the first time `delay` seconds later than that."""

    def __init__(self, clock: Clock, seconds: float, delay: float = 0.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._next = clock.now() + delay + seconds

    def is_due(self) -> bool:
        """Return True if a period has ended, and start the next one; several ended periods count as one."""
        now = self._clock.now()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Timers:
    """Functions that wait for the clock: for real time to pass, or for a test to advance it."""

    def __init__(self, clock: Clock, after: Callable[[float, Callable[[], None]], None]) -> None:
        """`after` runs a function once when so many seconds of real time have passed."""
        self._clock = clock
        self._after = after
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` when `seconds` have passed on the clock."""
        due = self._clock.now() + seconds
        heapq.heappush(self._waiting, (due, next(self._numbers), function))
        # The host's sum of times may be rounded down: this timer runs then, whatever the clock says.
        self._after(seconds, lambda: self.run_due(due))

    def run_due(self, until: float = float("-inf")) -> None:
        """Run the timers that are due by the clock, or by `until` if that is later; the earliest first."""
        while self._waiting and self._waiting[0][0] <= max(until, self._clock.now()):
            heapq.heappop(self._waiting)[2]()
