# SPDX-License-Identifier: Apache-2.0
"""Clocks for tests, to be passed as `ClientSettings.clock`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary


class SkippingClock:
    """Real time in which nobody sleeps: a pause moves the clock forward and returns at once.

    `on_sleep` is called with the seconds of each pause, for example to advance the clock of an embedded server. In one
    process, a pickled copy is the same clock: settings travel from a test's driver to its tasks.
    """

    def __init__(self, on_sleep: Callable[[float], None] = lambda seconds: None) -> None:
        _SKIPPING_CLOCKS[id(self)] = self
        self._skipped = 0.0
        self._on_sleep = on_sleep
        self.pauses: list[float] = []

    def __reduce__(self) -> tuple[Callable[[int], SkippingClock], tuple[int]]:
        return _skipping_clock, (id(self),)

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped

    def time(self) -> float:
        return time.time() + self._skipped

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.advance(seconds)
        self._on_sleep(seconds)

    def advance(self, seconds: float) -> None:
        self._skipped += seconds


def _skipping_clock(number: int) -> SkippingClock:
    return _SKIPPING_CLOCKS[number]


_SKIPPING_CLOCKS: WeakValueDictionary[int, SkippingClock] = WeakValueDictionary()


class ManualClock:
    """Time that stands still until a test advances it, or somebody sleeps."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class UseTimings(Protocol):
    """Changes single values of `Timings` for all settings that the test makes from now on."""

    def __call__(self, **changes: Any) -> None: ...
