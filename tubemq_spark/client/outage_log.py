"""Rate-limited warnings about outages: a few for each outage, however many tasks and threads retry meanwhile.

The first warning comes when an outage has lasted 5 s, then one comes each minute. All threads of a process share them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tubemq_spark.client.backoff import RetryBackoff
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings


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
        self.forget()

    def forget(self) -> None:
        self._outages: dict[Hashable, _Outage] = {}
        self._lock = threading.Lock()

    def failed(
        self,
        log: logging.Logger,
        subject: Hashable,
        describe: Callable[[], str],
        left: float | None = None,
        since: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Record that one more attempt at `subject` failed, and log a warning if one is due.

        `describe` returns the warning's text; it is called only for a warning. The caller retries for `left` more
        seconds, None if without a limit. An attempt that took long began at `since`, on the monotonic clock.
        """
        now = clock.monotonic()
        with self._lock:
            outage = self._outages.get(subject)
            if outage is None or now - outage.last > self.timings.outage_forgotten:
                outage = self._outages[subject] = _Outage(clock, now if since is None else since, now)
            outage.last = now
            if outage.warned_at is None:
                due = outage.since + self.timings.first_outage_warning
            else:
                due = outage.warned_at + self.timings.next_outage_warning
            if now < due:
                return
            outage.warned_at = now
        retrying = "retrying"
        if left is not None:
            until = time.strftime("%H:%M:%S", time.localtime(clock.time() + left))
            retrying = f"retrying for {max(left, 0.0):.0f} s more, until {until}"
        log.warning("%s; failing for %.0f s, %s", describe(), now - outage.since, retrying)

    def worked(self, log: logging.Logger, subject: Hashable) -> None:
        """Record that an attempt at `subject` succeeded. If a warning was logged, log that the outage is over."""
        if subject not in self._outages:  # without the lock, because each success comes here
            return
        with self._lock:
            outage = self._outages.pop(subject, None)
        if outage is not None and outage.warned_at is not None:
            log.warning("%s works again, after %.0f s", subject, outage.clock.monotonic() - outage.since)


OUTAGES = OutageLog()  # of this process


class Retries(RetryBackoff):
    """A `RetryBackoff` that logs long outages. `what` is a part of a sentence, such as `reading 1:demo:0`."""

    def __init__(self, log: logging.Logger, what: str, seconds: float, clock: Clock) -> None:
        super().__init__(seconds, clock=clock)
        self._log = log
        self._what = what

    def progress(self) -> None:
        """Record a success: the time and the pauses start again, and an outage is over."""
        super().progress()
        OUTAGES.worked(self._log, self._what)

    def failed(self, problem: object, at_least: float = 0.0) -> bool:
        """Record that an attempt failed with `problem`, and pause as `pause` does."""
        what = self._what
        OUTAGES.failed(self._log, what, lambda: f"{what} fails: {problem}", self.left, self._since, self._clock)
        return self.pause(at_least)


empty_after_fork(OUTAGES.forget)
close_with_servers(OUTAGES.forget)  # another server may get the port
