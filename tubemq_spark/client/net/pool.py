"""The connection pool: each connection belongs to one borrower at a time, and is reused until it was idle for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tubemq_spark.client.net.connect import connect
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address

Key = tuple[Address, "Framing | None", "TlsSettings | None"]  # a connection serves all settings with the same key
Idle = dict[Key, list[Connection]]


class ConnectionPool:
    """The idle connections of this process, by address. Safe to use from several threads."""

    def __init__(self) -> None:
        self.forget()

    def __repr__(self) -> str:
        with self._lock:
            counts = {str(address): len(connections) for (address, *_), connections in self._idle.items()}
        return f"<ConnectionPool idle: {counts}>"

    def forget(self) -> None:
        """Drop all connections without closing them."""
        self._idle: Idle = {}
        self._lock = threading.Lock()

    @contextmanager
    def lease(self, address: Address, settings: ClientSettings, timeout: float | None = None) -> Iterator[Connection]:
        """Yield a connection to use alone. Afterwards it returns to the pool, unless it broke or has unanswered
        requests. If the settings share no connections it is a new one, and closed at the end.

        `timeout` is in seconds, by default that of a request. Raise `TransportError` if no connection can be made, and
        `ProtocolError` if the peer speaks another protocol or is not trusted over TLS.
        """
        key = (address, settings.framing, settings.tls)
        oldest = settings.clock.monotonic() - settings.idle_for
        connection = self._take(key, oldest) if settings.shared_connections else None
        if connection is None:
            seconds = settings.rpc_timeout if timeout is None else timeout
            connection = connect(address, settings.framing, seconds, settings.tls, settings.timings, settings.clock)
        try:
            yield connection
        except BaseException:
            # A request may be half written or unanswered: the next borrower would get the wrong replies.
            connection.close()
            raise
        if connection.closed or connection.unanswered or not settings.shared_connections:
            connection.close()
        else:
            connection.take()  # replies that nobody read are not for the next borrower
            connection.idle_since = settings.clock.monotonic()
            with self._lock:
                self._idle.setdefault(key, []).append(connection)

    def has_idle(self, address: Address, settings: ClientSettings) -> bool:
        """Return True if a lease would most likely not have to connect."""
        with self._lock:
            idle = self._idle.get((address, settings.framing, settings.tls), ())
            oldest = settings.clock.monotonic() - settings.idle_for
            return settings.shared_connections and any(c.idle_since >= oldest and c.still_open() for c in idle)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            connections = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _take(self, key: Key, oldest: float) -> Connection | None:
        with self._lock:
            self._idle, expired = split_by_age(self._idle, oldest)
            candidates = self._idle.pop(key, [])
            chosen = next((c for c in reversed(candidates) if c.still_open()), None)
            left = [c for c in candidates if c is not chosen and c.still_open()]
            if left:
                self._idle[key] = left
        for connection in (*expired, *(c for c in candidates if c is not chosen and c not in left)):
            connection.close()
        return chosen


def split_by_age(idle: Idle, oldest: float) -> tuple[Idle, list[Connection]]:
    """Return the connections to keep, and those to close because they were last used before `oldest`."""
    keep: Idle = {}
    expired: list[Connection] = []
    for key, connections in idle.items():
        for connection in connections:
            if connection.idle_since < oldest:
                expired.append(connection)
            else:
                keep.setdefault(key, []).append(connection)
    return keep, expired


POOL = ConnectionPool()
"""The pool of this process: Spark's Python workers live across tasks and batches."""

empty_after_fork(POOL.forget)  # a child must not write to its parent's sockets
close_with_servers(POOL.close)
