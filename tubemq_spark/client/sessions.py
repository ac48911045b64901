"""The producer sessions of this process: tasks come and go, what is known about the cluster stays and stays fresh."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.master import ProducerSession
from tubemq_spark.client.settings import ClientSettings


@dataclass
class _Entry:
    session: ProducerSession
    users: int = 0
    idle_since: float = 0.0


class ProducerSessions:
    """One session for each set of settings. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"<ProducerSessions {[entry.session for entry in self._entries.values()]}>"

    def forget(self) -> None:
        """Begins empty, without closing anything."""
        self._entries: dict[ClientSettings, _Entry] = {}
        self._lock = threading.Lock()
        self._stop_watching: Callable[[], None] | None = None

    @contextmanager
    def lease(self, settings: ClientSettings) -> Iterator[ProducerSession]:
        """A session that may be shared with others. One that nobody uses is closed after `settings.idle_for`, or when
        its masters do not answer; at once where connections are not shared.
        """
        with self._lock:
            if settings not in self._entries:
                self._entries[settings] = _Entry(ProducerSession(settings))
            if self._stop_watching is None:
                self._stop_watching = HEARTBEAT.keep(self.close_idle)
            entry = self._entries[settings]
            entry.users += 1
        try:
            yield entry.session
        finally:
            with self._lock:
                entry.users -= 1
                entry.idle_since = time.monotonic()
            if not settings.shared_connections:
                self.close_idle()

    def close(self) -> None:
        """Closes the sessions that nobody uses now."""
        self._close_unused(idle=False)

    def close_idle(self) -> None:
        """Closes those that nobody has used for long, and those that nobody uses and no master answers to or that are
        not to be used again."""
        self._close_unused(idle=True)

    def _close_unused(self, *, idle: bool) -> None:
        now = time.monotonic()
        with self._lock:
            unused = [
                settings
                for settings, entry in self._entries.items()
                if not entry.users
                and (not idle or entry.session.is_forgotten or now - entry.idle_since >= _kept_for(settings))
            ]
            sessions = [self._entries.pop(settings).session for settings in unused]
            if not self._entries and self._stop_watching is not None:
                self._stop_watching()
                self._stop_watching = None
        for session in sessions:
            session.close()


def _kept_for(settings: ClientSettings) -> float:
    return settings.idle_for if settings.shared_connections else 0.0


SESSIONS = ProducerSessions()
"""The producer sessions of this process: Spark's Python workers live across tasks and batches."""

if hasattr(os, "register_at_fork"):
    # The parent's heartbeats are not the child's, nor is its client id.
    os.register_at_fork(after_in_child=SESSIONS.forget)
