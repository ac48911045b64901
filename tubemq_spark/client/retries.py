# SPDX-License-Identifier: Apache-2.0
"""Retries: how long to wait between attempts, when to stop, and warnings about outages.

Warnings are few for each outage, however many tasks and threads retry meanwhile: the first comes when it has lasted
5 s, then one comes each minute. All threads of a process share them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

from tubemq_spark.client import system
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock, time_of_day
from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings

# Seconds without a failure, after which a failure begins another outage. A producer tries a lost broker every 120 s.
_OUTAGE_FORGOTTEN = 300.0


def delays(first: float, ceiling: float) -> Iterator[float]:
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


@dataclass
class _Outage:
    """One outage. Its times are on the monotonic `clock`."""

    clock: Clock
    since: float
    last: float
    warned_at: float | None = None


class OutageLog:
    """The outages of this process, by subject. Safe to use from several threads."""

    def __init__(self, timings: Timings = DEFAULT_TIMINGS) -> None:
        self.timings = timings
        self._outages: dict[Hashable, _Outage] = {}
        self._lock = system.Lock()  # of the outages; no text is made and no line is logged under it

    def forget(self) -> None:
        with self._lock:
            self._outages.clear()

    def failed(
        self,
        log: logging.Logger,
        subject: Hashable,
        describe: Callable[[], str],
        left: float | None = None,
        since: float | None = None,
        *,
        clock: Clock,
        at_once: bool = False,
    ) -> None:
        """Record that one more attempt at `subject` failed, and log a warning if one is due: the first one when the
        outage has lasted for a while, or `at_once`.

        `describe` returns the warning's text; it is called only for a warning. The caller retries for `left` more
        seconds, None if without a limit. An attempt that took long began at `since`, on the monotonic `clock`, which is
        that of the caller's settings.
        """
        now = clock.monotonic()
        with self._lock:
            outage = self._outages.get(subject)
            if outage is None or now - outage.last > _OUTAGE_FORGOTTEN:
                outage = self._outages[subject] = _Outage(clock, now if since is None else since, now)
            outage.last = now
            if outage.warned_at is None:
                due = now if at_once else outage.since + self.timings.first_outage_warning
            else:
                due = outage.warned_at + self.timings.next_outage_warning
            if now < due or (left is not None and left <= 0):  # the last one: its error says more
                return
            outage.warned_at = now
        retrying = "retrying"
        if left is not None:
            time = f"{left:.0f} s" if left >= 1 else "less than 1 s"
            retrying = f"retrying for {time} more, until {time_of_day(clock.time() + left)}"
        log.warning("[outage] %s; failing for %.0f s, %s", describe(), now - outage.since, retrying)

    def worked(self, log: logging.Logger, subject: Hashable) -> None:
        """Record that an attempt at `subject` succeeded. If a warning was logged, log that the outage is over."""
        if subject not in self._outages:  # without the lock, because each success comes here
            return
        with self._lock:
            outage = self._outages.pop(subject, None)
        if outage is not None and outage.warned_at is not None:
            log.warning("[outage-over] %s works again, after %.0f s", subject, outage.clock.monotonic() - outage.since)


OUTAGES = PerProcess(OutageLog, OutageLog.forget)  # closed, because another server may get the port


class Retries:
    """When to repeat an attempt, until when, and what the log says meanwhile:

        retries = Retries(settings.retry_for, settings.clock, "reading 1:demo:0", _log)
        while problem := attempt():
            if not retries.failed(problem):
                raise TransportError(problem)
        retries.progress()

    The pauses double, from `first` up to `ceiling` seconds, until `seconds` have passed without progress. With a `log`,
    a long outage of `what` is a warning there.
    """

    def __init__(
        self,
        seconds: float,
        clock: Clock,
        what: str = "",
        log: logging.Logger | None = None,
        *,
        first: float = 0.05,
        ceiling: float = 1.0,
    ) -> None:
        self._seconds, self._clock, self._what, self._log = seconds, clock, what, log
        self._pauses = first, ceiling
        self._begin()

    def _begin(self) -> None:
        self._since = self._clock.monotonic()  # the last progress
        self._delays = delays(*self._pauses)

    @property
    def left(self) -> float:
        """Seconds until the retries end, never negative."""
        return max(0.0, self._since + self._seconds - self._clock.monotonic())

    def progress(self) -> None:
        """Record a success: the time and the pauses start again, and an outage is over."""
        self._begin()
        if self._log is not None:
            OUTAGES().worked(self._log, self._what)

    def failed(self, problem: object, at_least: float = 0.0) -> bool:
        """Record that an attempt failed with `problem`, whose text is made only for a warning. Pause as `pause`."""
        if self._log is not None:
            describe = partial("{} fails: {}".format, self._what, problem)
            OUTAGES().failed(self._log, self._what, describe, self.left, self._since, clock=self._clock)
        return self.pause(at_least)

    def pause(self, at_least: float = 0.0, at_most: float = inf) -> bool:
        """Sleep before the next attempt and return True, or return False at once if the time is over."""
        left = min(self.left, at_most)
        if left > 0:
            COUNTERS().add(Count.RETRIES)
            self._clock.sleep(min(max(next(self._delays), at_least), max(left, 0.001)))
        return left > 0
