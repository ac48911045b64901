"""One daemon thread per process that says at the servers, again and again, that we are still there."""

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
    """Calls what it was handed about every `PERIOD` seconds. The thread starts with the first and ends with the
    last.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._last_key = 0  # goes on after a fork, so that who ends a beat of the parent's hits none of the child's
        self._reset()

    def _reset(self) -> None:
        self._beats: dict[int, Callable[[], None]] = {}
        self._failing: set[int] = set()  # keys of beats that failed last time, which was said
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, beat: Callable[[], None]) -> Callable[[], None]:
        """Calls `beat` from now on; the result ends that. A beat that fails is called again next time; a row of
        failures is logged once.
        """
        with self._changed:
            self._last_key += 1
            key = self._last_key
            self._beats[key] = beat
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tubemq-heartbeat", daemon=True)
                self._thread.start()

        def end() -> None:
            with self._changed:
                self._beats.pop(key, None)
                self._failing.discard(key)
                self._changed.notify_all()

        return end

    def _run(self) -> None:
        while True:
            with self._changed:
                due = time.monotonic() + self._period
                while self._beats and time.monotonic() < due:
                    self._changed.wait(due - time.monotonic())
                if not self._beats:
                    self._thread = None
                    return
                beats = list(self._beats.items())
            for key, beat in beats:
                self._do(key, beat)

    def _do(self, key: int, beat: Callable[[], None]) -> None:
        try:
            beat()
        except TubeMQError as error:
            # Who waits for the server finds out by a call of its own and decides; here there is nobody to tell.
            _log.log(logging.DEBUG if key in self._failing else logging.WARNING, "a heartbeat failed: %s", error)
        except Exception:
            _log.exception("a heartbeat failed")
        else:
            self._failing.discard(key)
            return
        with self._changed:
            if key in self._beats:
                self._failing.add(key)


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""

if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork, and the parent's clients are not the child's.
    os.register_at_fork(after_in_child=HEARTBEAT._reset)
