# SPDX-License-Identifier: Apache-2.0
"""Message ids as a broker creates them (wire: IdWorker): nanoseconds of its monotonic clock, shifted left by 22 bits in
a signed 64-bit number, without the sign. So ids rise for 36.6 minutes and then fall for as long.
"""

from __future__ import annotations

from tubemq_spark.testing.clock import Clock

_SECOND = 1_000_000_000
_WAVE = 1 << 42  # nanoseconds
_RESTART = _SECOND * 6 // 5  # nanoseconds, the least that a process needs to start


class MessageIds:
    """A generator of ids. No id comes twice from one process."""

    def __init__(self, clock: Clock, phase: float) -> None:
        """`phase` is the number of seconds of the wave that have passed."""
        self._clock = clock
        self._offset = int((phase - clock.now()) * _SECOND)
        self._last = -1

    def next(self) -> int:
        self._last = max(self._last + 1, int(self._clock.now() * _SECOND) + self._offset)
        nanoseconds = self._last % _WAVE
        return min(nanoseconds, _WAVE - nanoseconds) << 22

    def restart(self) -> None:
        """Continue as a new process on the same machine does."""
        self._offset += _RESTART
