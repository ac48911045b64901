"""The producer sessions of this process: tasks come and go, what is known about the cluster stays and stays fresh."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tubemq_spark.client.cluster.broker_health import BrokerHealth
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.connect_attempt import ConnectAttempts
from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError

_log = logging.getLogger(__name__)

MASTER = "the master that producers ask"
"""Names it in warnings about outages."""

_ASKED_EVERY = 1.0  # seconds


class Shared:
    """What the producers of one session have in common besides it."""

    def __init__(self, session: ProducerSession) -> None:
        self.health = BrokerHealth(session.settings.clock)
        self.attempts = ConnectAttempts(
            session.settings, lambda broker_id: self.health.broker_failed(broker_id, "lost")
        )


@dataclass
class _Entry:
    session: ProducerSession
    shared: Shared
    users: int = 0
    idle_since: float = 0.0
    is_asking: bool = False
    asked_at: float = float("-inf")


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
                session = ProducerSession(settings)
                self._entries[settings] = _Entry(session, Shared(session))
            if self._stop_watching is None:
                self._stop_watching = HEARTBEAT.keep(self.close_idle)
            entry = self._entries[settings]
            entry.users += 1
        try:
            yield entry.session
        finally:
            self._give_back(entry)

    def shared(self, settings: ClientSettings) -> Shared:
        """What goes with the session, for who has leased it."""
        with self._lock:
            return self._entries[settings].shared

    def inquire(self, settings: ClientSettings) -> None:
        """Has the master asked what is new, for who has leased the session: in the background, one question at a time,
        and not too often."""
        with self._lock:
            entry = self._entries[settings]
            if entry.is_asking or time.monotonic() - entry.asked_at < _ASKED_EVERY:
                return
            entry.is_asking = True
            entry.users += 1  # so that nobody closes it meanwhile
        threading.Thread(target=self._ask, args=(entry,), daemon=True, name="tubemq-ask").start()

    def _ask(self, entry: _Entry) -> None:
        try:
            entry.session.refresh_once()
            OUTAGES.worked(_log, MASTER)
        except TubeMQError as error:
            problem = str(error)
            OUTAGES.failed(_log, MASTER, lambda: f"the master cannot be asked for partitions anew: {problem}")
        finally:
            entry.asked_at = time.monotonic()
            entry.is_asking = False
            self._give_back(entry)

    def _give_back(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            entry.idle_since = time.monotonic()
        if not entry.session.settings.shared_connections:
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

empty_after_fork(SESSIONS.forget)  # the child has neither the parent's heartbeats nor its client id
close_with_servers(SESSIONS.close)
