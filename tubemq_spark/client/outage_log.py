"""Warnings about what is down, a few for each outage, however many tasks and threads meet it.

The first warning comes when an outage has lasted 5 s, then one comes each minute. All users of a process share them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tubemq_spark.client.backoff import RetryBackoff

FIRST_AFTER = 5.0  # seconds; shorter outages are the business of nobody
AGAIN_AFTER = 60.0  # seconds between two warnings about one outage
_FORGOTTEN_AFTER = 120.0  # seconds without a failure; a later failure begins another outage


@dataclass
class _Outage:
    """Moments on the monotonic clock."""

    since: float
    last: float
    warned_at: float | None = None


class OutageLog:
    """The outages of this process, by what is down. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<OutageLog {self._outages}>"

    def forget(self) -> None:
        """Begins empty."""
        self._outages: dict[Hashable, _Outage] = {}
        self._lock = threading.Lock()

    def failed(
        self,
        log: logging.Logger,
        what: Hashable,
        say: Callable[[], str],
        left: float | None = None,
        since: float | None = None,
    ) -> None:
        """One more try at `what` has failed. `say` gives the warning's text; it is called only when a warning is due.
        The caller goes on trying for `left` seconds, None when nothing limits that. A try that took long began at
        `since` on the monotonic clock."""
        now = time.monotonic()
        with self._lock:
            outage = self._outages.get(what)
            if outage is None or now - outage.last > _FORGOTTEN_AFTER:
                outage = self._outages[what] = _Outage(now if since is None else since, now)
            outage.last = now
            due = outage.since + FIRST_AFTER if outage.warned_at is None else outage.warned_at + AGAIN_AFTER
            if now < due:
                return
            outage.warned_at = now
        log.warning("%s; for %.0f s now%s", say(), now - outage.since, _until(left))

    def worked(self, log: logging.Logger, what: Hashable) -> None:
        """`what` answers. Whoever was warned is told that the outage is over."""
        if what not in self._outages:  # for each success: without the lock
            return
        with self._lock:
            outage = self._outages.pop(what, None)
        if outage is not None and outage.warned_at is not None:
            log.warning("%s works again, after %.0f s", what, time.monotonic() - outage.since)


def _until(left: float | None) -> str:
    if left is None:
        return "; it is tried again"
    moment = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
    return f"; it is tried again until {moment}, in {max(left, 0.0):.0f} s"


OUTAGES = OutageLog()
"""The outages of this process."""


class Retries:
    """Tries at `what`, a part of a sentence such as `reading 1:demo:0`, as `RetryBackoff` counts them. Where they fail
    for long the log tells.
    """

    def __init__(
        self, log: logging.Logger, what: str, seconds: float, first: float = 0.05, ceiling: float = 1.0
    ) -> None:
        self._log = log
        self._what = what
        self._stamina = RetryBackoff(seconds, first, ceiling)
        self._since = time.monotonic()

    def __repr__(self) -> str:
        return f"<Retries of {self._what}, {self._stamina.left:.1f} s left>"

    def progress(self) -> None:
        """Something worked: the time and the delays begin anew, and an outage is over."""
        self._stamina.progress()
        self._since = time.monotonic()
        OUTAGES.worked(self._log, self._what)

    def pause(self, at_least: float = 0.0) -> bool:
        """As `RetryBackoff.pause`, after something that is no failure."""
        return self._stamina.pause(at_least)

    def failed(self, problem: object, at_least: float = 0.0) -> bool:
        """Notes that a try failed with `problem`, and pauses as `RetryBackoff.pause` does."""
        left = self._stamina.left
        OUTAGES.failed(self._log, self._what, lambda: f"{self._what} fails: {problem}", left, self._since)
        return self._stamina.pause(at_least)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OUTAGES.forget)
