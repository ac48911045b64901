# SPDX-License-Identifier: Apache-2.0
"""Timers of a cluster: functions that run when their time has come on its clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.host import Host


class Timers:
    """Functions that wait for the clock: for real time to pass, or for a test to advance it."""

    def __init__(self, clock: Clock, host: Host) -> None:
        self._clock = clock
        self._host = host
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` when `seconds` have passed on the clock."""
        due = self._clock.now() + seconds
        heapq.heappush(self._waiting, (due, next(self._numbers), function))
        # The host's sum of times may be rounded down: this timer runs then, whatever the clock says.
        self._host.after(seconds, lambda: self.run_due(due))

    def run_due(self, until: float = float("-inf")) -> None:
        """Run the timers that are due by the clock, or by `until` if that is later; the earliest first."""
        while self._waiting and self._waiting[0][0] <= max(until, self._clock.now()):
            heapq.heappop(self._waiting)[2]()
