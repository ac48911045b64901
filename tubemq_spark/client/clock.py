# SPDX-License-Identifier: Apache-2.0
"""The clock that the client waits by. Tests pass another one, so that they need not wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Time in seconds. All waits, timeouts and ages in client, source and sink are measured by the clock that
    `ClientSettings.clock` holds. Exceptions: the operating system measures waits for a socket and the pauses of
    heartbeats.
    """

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; the value never decreases."""

    def time(self) -> float:
        """Return seconds since the epoch, as the computer's clock shows them."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


@dataclass(frozen=True)
class SystemClock:
    """The operating system's clock. It has no state, so it travels to executors with the settings."""

    monotonic = staticmethod(time.monotonic)  # no method of its own, because producers take the time for each record

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def time_of_day(seconds: float) -> str:
    """Return the local time `seconds` after the epoch, such as 13:05:00."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))
