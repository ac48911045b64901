# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: daemon threads that renew sessions and claims, so that masters and brokers do not expire them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tubemq_spark.client import runtime, system
from tubemq_spark.client.clock import SYSTEM_CLOCK
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import TubeMQError

_log = logging.getLogger(__name__)

_STARTED = float("inf")
_LONGEST_WAIT = 10.0  # seconds after which a thread that waits for heartbeats ends if there are none


@dataclass
class _Beat:
    call: Callable[[], None]
    period: float
    due: float  # the time of its first call; infinite when its own thread has started


class Heartbeat:
    """Calls functions periodically, each from a thread of its own: one call may wait for a silent server, and the
    others must not be late because of it. Heartbeats use real time, because servers expire clients by theirs.

    That thread starts when the first call is due. Most tasks are shorter than a period, and need none: one thread waits
    for the first calls of all.
    """

    def __init__(self) -> None:
        self._owner = runtime.current()
        self._last_key = 0
        self._beats: dict[int, _Beat] = {}
        self._changed = system.Condition()
        self._looks_at: float | None = None  # when the waiting thread looks for calls that are due; None without it

    def keep(self, beat: Callable[[], None], period: float) -> Callable[[], None]:
        """Call `beat` every `period` seconds from now on, never twice at once. Return a function that ends that; it
        does not wait for a call that is running.

        A call that fails is repeated after the period. Only the first of several failures in a row is a warning, and
        none of a call that has been ended.
        """
        with self._changed:
            due = SYSTEM_CLOCK.monotonic() + period
            if self._looks_at is None:
                self._looks_at = due
                try:
                    _thread(self._start_those_due).start()  # it waits for the lock that we hold
                except BaseException:
                    self._looks_at = None
                    raise
            elif due < self._looks_at:
                self._changed.notify_all()
            self._last_key += 1
            key = self._last_key
            self._beats[key] = _Beat(beat, period, due)

        def end() -> None:
            if runtime.current() is not self._owner:
                return  # in a forked child: a thread of the parent may have held the lock
            with self._changed:
                ended = self._beats.pop(key, None)
                if ended is not None and ended.due == _STARTED:
                    self._changed.notify_all()

        return end

    def wake(self) -> None:
        """Let threads that wait for nothing end now."""
        with self._changed:
            self._changed.notify_all()

    def _start_those_due(self) -> None:
        with self._changed:
            while waiting := [(key, beat) for key, beat in self._beats.items() if beat.due != _STARTED]:
                now = SYSTEM_CLOCK.monotonic()
                for key, beat in waiting:
                    if beat.due <= now:
                        self._start(key, beat)
                self._looks_at = min(min(beat.due for _, beat in waiting), now + _LONGEST_WAIT)
                self._changed.wait(max(0.0, self._looks_at - now))
            self._looks_at = None

    def _start(self, key: int, beat: _Beat) -> None:
        try:
            _thread(self._run, key, beat.call, beat.period).start()
            beat.due = _STARTED
        except RuntimeError:  # no more threads now
            _log_crash()
            beat.due += beat.period

    def _run(self, key: int, beat: Callable[[], None], period: float) -> None:
        succeeded = True
        while True:
            try:
                beat()
                succeeded = True
            except TubeMQError as error:
                # The owner notices by its own requests and decides. This thread has nobody to report to.
                level = logging.WARNING if succeeded and key in self._beats else logging.DEBUG
                _log.log(level, "[heartbeat-failed] a heartbeat failed: %s", error)
                succeeded = False
            except Exception:
                _log_crash()
                succeeded = False
            if not self._is_kept_for(period, key):
                return

    def _is_kept_for(self, period: float, key: int) -> bool:
        """Wait for `period` seconds. Return True if nobody has ended the heartbeat meanwhile."""
        with self._changed:
            due = SYSTEM_CLOCK.monotonic() + period
            while key in self._beats and (left := due - SYSTEM_CLOCK.monotonic()) > 0:
                self._changed.wait(left)
            return key in self._beats


def _thread(target: Callable[..., None], *args: object) -> system.Thread:
    return system.Thread(target=target, args=args, name="tubemq-heartbeat", daemon=True)


def _log_crash() -> None:
    """Log the error that is being handled."""
    _log.exception("[heartbeat-crashed] a heartbeat failed")


HEARTBEAT = PerProcess(Heartbeat, Heartbeat.wake)
