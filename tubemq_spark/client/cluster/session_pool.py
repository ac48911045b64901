# SPDX-License-Identifier: Apache-2.0
"""What the producers of this process share: sessions, connection attempts, and the failures of brokers (broker health).

Tasks come and go. The metadata of the cluster stays, and is kept fresh.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tubemq_spark.client import runtime, system
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.connect_attempt import ConnectAttempts
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.broker_backoff import Backoff, Endpoint
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_SESSION_INQUIRY = 1.0  # seconds; between two requests of all producers of a session to the master
MASTER = "the master that producers ask"  # in warnings about outages
REFRESH_THREAD = "tubemq-refresh"


class BrokerHealth:
    """The brokers and partitions that failed and have stored nothing since. All producers of a session count together,
    because each lives for one task only. Safe to use from several threads."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.failing: Mapping[Endpoint, Backoff] = {}  # replaced under the lock, never changed
        self._clock = clock
        self._lock = system.Lock()  # for writers; who reads has a mapping that does not change

    def failed(self, endpoint: Endpoint) -> None:
        with self._lock:
            backoff = self.failing.get(endpoint, Backoff()).after_failure(self._clock.monotonic())
            self.failing = {**self.failing, endpoint: backoff}

    def succeeded(self, partition: Partition) -> None:
        """Forget the failures of `partition` and its broker, because it has stored a record."""
        working = partition, partition.broker_id
        if any(one in self.failing for one in working):
            with self._lock:
                self.failing = {one: backoff for one, backoff in self.failing.items() if one not in working}


class SharedSession:
    """A session, and what its producers share besides."""

    def __init__(self, settings: ClientSettings) -> None:
        self.session = ProducerSession(settings)
        self.health = BrokerHealth(settings.clock)
        self.attempts = ConnectAttempts(settings, self.health.failed, self.session.token)
        self.users = 0
        self.idle_since = 0.0
        self.is_asking = False
        self.asked_at = float("-inf")


class ProducerSessions:
    """One session for each set of settings. Safe to use from several threads."""

    def __init__(self) -> None:
        self._owner = runtime.current()
        self._entries: dict[ClientSettings, SharedSession] = {}
        self._lock = system.Lock()  # of the entries and their users; no master is asked under it
        self._stop_watching: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<ProducerSessions {[entry.session for entry in self._entries.values()]}>"

    @contextmanager
    def lease(self, settings: ClientSettings) -> Iterator[ProducerSession]:
        """Yield a session, perhaps a shared one. An unused session is closed after `settings.idle_for`; at once if
        `settings.shared_connections` is false. While no master answers, the next user can send without one."""
        with self._lock:
            if settings not in self._entries:
                self._entries[settings] = SharedSession(settings)
            if self._stop_watching is None:
                self._stop_watching = HEARTBEAT().keep(self.close_idle, settings.timings.heartbeat_period)
            entry = self._entries[settings]
            if not entry.users:
                entry.session.forget_unused()
            entry.users += 1
        try:
            yield entry.session
        finally:
            self._return(entry)

    def shared(self, settings: ClientSettings) -> SharedSession:
        """Return what goes with a session that the caller has leased."""
        with self._lock:
            return self._entries[settings]

    def refresh_later(self, settings: ClientSettings) -> None:
        """Ask the master in the background what has changed, for a session that the caller has leased. One request at
        a time, and not often."""
        with self._lock:
            entry = self._entries[settings]
            if entry.is_asking or settings.clock.monotonic() - entry.asked_at < _SESSION_INQUIRY:
                return
            entry.is_asking = True
            entry.users += 1  # so that nobody closes the session meanwhile
        system.Thread(target=self._refresh, args=(entry,), daemon=True, name=REFRESH_THREAD).start()

    def _refresh(self, entry: SharedSession) -> None:
        clock = entry.session.settings.clock
        try:
            entry.session.refresh_once()
            OUTAGES().worked(_log, MASTER)
        except TubeMQError as error:
            problem = str(error)
            OUTAGES().failed(_log, MASTER, lambda: f"the master does not list partitions: {problem}", clock=clock)
        finally:
            entry.asked_at = clock.monotonic()
            entry.is_asking = False
            self._return(entry)

    def _return(self, entry: SharedSession) -> None:
        if runtime.current() is not self._owner:
            return  # in a forked child: the session is the parent's, of which a thread may have held the lock
        settings = entry.session.settings
        with self._lock:
            entry.users -= 1
            entry.idle_since = settings.clock.monotonic()
        if not settings.shared_connections:
            self.close_idle()

    def close_idle(self) -> None:
        """Close the unused sessions that were idle for long, or that are not shared."""
        self.close(_is_idle)

    def close(self, chosen: Callable[[SharedSession], bool] = lambda _: True) -> None:
        """Close the unused sessions that are `chosen`."""
        with self._lock:
            unused = [settings for settings, entry in self._entries.items() if not entry.users and chosen(entry)]
            sessions = [self._entries.pop(settings).session for settings in unused]
            if not self._entries and self._stop_watching is not None:
                self._stop_watching()
                self._stop_watching = None
        for session in sessions:
            session.close()


def _is_idle(entry: SharedSession) -> bool:
    settings = entry.session.settings
    kept_for = settings.idle_for if settings.shared_connections else 0.0
    return settings.clock.monotonic() - entry.idle_since >= kept_for


SESSIONS = PerProcess(ProducerSessions, ProducerSessions.close)  # Spark's Python workers live across tasks and batches
