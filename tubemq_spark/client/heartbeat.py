# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: daemon threads that renew sessions and claims, so that masters and brokers do not expire them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tubemq_spark.client.process_caches import empty_after_fork
from tubemq_spark.errors import TubeMQError

_log = logging.getLogger(__name__)


class Heartbeat:
    """Calls functions periodically, each from a thread of its own: one call may wait for a silent server, and the
    others must not be late because of it. Heartbeats use real time, because servers expire clients by theirs.
    """

    def __init__(self) -> None:
        self._last_key = 0  # continues after a fork, so that ending a parent's heartbeat ends none of the child's
        self._reset()

    def _reset(self) -> None:
        self._beats: dict[int, Callable[[], None]] = {}
        self._changed = threading.Condition()

    def keep(self, beat: Callable[[], None], period: float) -> Callable[[], None]:
        """Call `beat` every `period` seconds from now on, never twice at once. Return a function that ends that; it
        does not wait for a call that is running.

        A call that fails is repeated after the period. Only the first of several failures in a row is a warning.
        """
        with self._changed:
            self._last_key += 1
            key = self._last_key
            threading.Thread(target=self._run, args=(key, beat, period), name="tubemq-heartbeat", daemon=True).start()
            self._beats[key] = beat  # after the start, which may fail; the thread waits for the lock that we hold

        def end() -> None:
            with self._changed:
                self._beats.pop(key, None)
                self._changed.notify_all()

        return end

    def _run(self, key: int, beat: Callable[[], None], period: float) -> None:
        succeeded = True
        while self._is_kept_for(period, key):
            try:
                beat()
                succeeded = True
            except TubeMQError as error:
                # The owner notices by its own requests and decides. This thread has nobody to report to.
                _log.log(
                    logging.WARNING if succeeded else logging.DEBUG, "[heartbeat-failed] a heartbeat failed: %s", error
                )
                succeeded = False
            except Exception:
                _log.exception("[heartbeat-crashed] a heartbeat failed")
                succeeded = False

    def _is_kept_for(self, period: float, key: int) -> bool:
        """Wait for `period` seconds. Return True if nobody has ended the heartbeat meanwhile."""
        with self._changed:
            due = time.monotonic() + period
            while key in self._beats and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            return key in self._beats


HEARTBEAT = Heartbeat()  # of this process
empty_after_fork(HEARTBEAT._reset)  # threads do not survive a fork, and the child does not own the parent's clients
