"""Message ids as a broker makes them (wire: IdWorker): nanoseconds of its monotonic clock, shifted left by 22 bits in a
signed number of 64, of which the sign is dropped. So they rise for 36.6 minutes and fall for as long.
"""

from __future__ import annotations

from tubemq_spark.testing.clock import Clock

_SECOND = 1_000_000_000
_WAVE = 1 << 42  # nanoseconds
_RESTART = _SECOND * 6 // 5  # nanoseconds, what a process needs at the least to begin


class MessageIds:
    """Each one is used once in a process."""

    def __init__(self, clock: Clock, phase: float) -> None:
        """`phase` is how many seconds of the wave have gone by."""
        self._clock = clock
        self._offset = int((phase - clock.now()) * _SECOND)
        self._last = -1

    def next(self) -> int:
        self._last = max(self._last + 1, int(self._clock.now() * _SECOND) + self._offset)
        nanoseconds = self._last % _WAVE
        return min(nanoseconds, _WAVE - nanoseconds) << 22

    def restart(self) -> None:
        """A new process goes on, on the same machine."""
        self._offset += _RESTART
