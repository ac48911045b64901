"""Daemon threads that say at the servers, again and again, that we are still there."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from tubemq_spark.errors import TubeMQError

_log = logging.getLogger(__name__)

PERIOD = 8.0  # seconds; servers forget clients and claims after 30


class Heartbeat:
    """Calls what it was handed about every `PERIOD` seconds, each from a thread of its own: a beat waits for servers
    that are silent, and others must not be late for that. The thread starts with the beat and ends with it.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._last_key = 0  # goes on after a fork, so that who ends a beat of the parent's hits none of the child's
        self._reset()

    def _reset(self) -> None:
        self._beats: dict[int, Callable[[], None]] = {}
        self._changed = threading.Condition()

    def keep(self, beat: Callable[[], None]) -> Callable[[], None]:
        """Calls `beat` from now on, never twice at once; the result ends that, and does not wait for a call that is
        under way. A beat that fails is called again next time; a row of failures is logged once.
        """
        with self._changed:
            self._last_key += 1
            key = self._last_key
            threading.Thread(target=self._run, args=(key, beat), name="tubemq-heartbeat", daemon=True).start()
            self._beats[key] = beat  # after the start, which may fail; the thread looks when we are done here

        def end() -> None:
            with self._changed:
                self._beats.pop(key, None)
                self._changed.notify_all()

        return end

    def _run(self, key: int, beat: Callable[[], None]) -> None:
        well = True
        while self._is_kept_for_a_period(key):
            well = self._do(beat, well)

    def _is_kept_for_a_period(self, key: int) -> bool:
        with self._changed:
            due = time.monotonic() + self._period
            while key in self._beats and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            return key in self._beats

    @staticmethod
    def _do(beat: Callable[[], None], was_well: bool) -> bool:
        """Whether the beat went well; `was_well` is that of its last time."""
        try:
            beat()
        except TubeMQError as error:
            # Who waits for the server finds out by a call of its own and decides; here there is nobody to tell.
            _log.log(logging.WARNING if was_well else logging.DEBUG, "a heartbeat failed: %s", error)
        except Exception:
            _log.exception("a heartbeat failed")
        else:
            return True
        return False


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""

if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork, and the parent's clients are not the child's.
    os.register_at_fork(after_in_child=HEARTBEAT._reset)
