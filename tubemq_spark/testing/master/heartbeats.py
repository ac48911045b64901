# SPDX-License-Identifier: Apache-2.0
"""Liveness of clients by the time of their last heartbeat (wire: HeartbeatManager)."""

from __future__ import annotations

from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing.clock import Clock, Period
from tubemq_spark.testing.dispatch import DeclinedError

_SCAN_PERIOD = 1.0


class Heartbeats:
    """Keys that need a heartbeat every `timeout` seconds. An expired key stays known until the next scan."""

    def __init__(self, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._deadlines: dict[str, float] = {}
        self._scan = Period(clock, _SCAN_PERIOD)

    def __contains__(self, key: str) -> bool:
        return key in self._deadlines

    def start(self, key: str) -> None:
        self._deadlines[key] = self._clock.now() + self._timeout

    def beat(self, key: str, problem: str = "") -> None:
        """Record a heartbeat; for an unknown key raise `DeclinedError` with 411, whose text begins with `problem`."""
        if key not in self._deadlines:
            raise DeclinedError(ErrCode.HB_NO_NODE, f"{problem}Invalid node id:{key}, you have to append node first!")
        self.start(key)

    def stop(self, key: str) -> None:
        self._deadlines.pop(key, None)

    def clear(self) -> None:
        self._deadlines.clear()

    def scan(self) -> list[str]:
        """Remove the expired keys and return them; none while no scan is due."""
        if not self._scan.is_due():
            return []
        now = self._clock.now()
        silent = [key for key, deadline in self._deadlines.items() if now >= deadline]
        for key in silent:
            del self._deadlines[key]
        return silent
