"""Connections to lend: each belongs to one borrower at a time and is used again until it was idle for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.process_caches import close_with_servers, empty_after_fork
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address

Key = tuple[Address, "Framing | None", "TlsSettings | None"]  # what connections must have in common
Idle = dict[Key, list[Connection]]


class ConnectionPool:
    """The idle connections of this process, by address. Safe to use from several threads."""

    def __init__(self) -> None:
        self._idle: Idle = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        with self._lock:
            counts = {str(address): len(connections) for (address, *_), connections in self._idle.items()}
        return f"<ConnectionPool idle: {counts}>"

    @contextmanager
    def lease(self, address: Address, settings: ClientSettings, timeout: float | None = None) -> Iterator[Connection]:
        """A connection to use alone; it goes back to the pool unless it broke or has unanswered requests, or the
        settings share none: then it is a new one, and closed at the end.

        `timeout` is in seconds, by default that of a request; `TransportError` when no connection can be made, and
        `ProtocolError` when the peer is something else or over TLS somebody else.
        """
        key = (address, settings.framing, settings.tls)
        connection = self._take(key, settings.idle_for) if settings.shared_connections else None
        if connection is None:
            seconds = settings.rpc_timeout if timeout is None else timeout
            connection = connect(address, settings.framing, seconds, settings.tls)
        try:
            yield connection
        except BaseException:
            # A request may be half written or unanswered: who uses it next would get the wrong replies.
            connection.close()
            raise
        if connection.closed or connection.unanswered or not settings.shared_connections:
            connection.close()
        else:
            connection.take()  # answers that nobody asked for are not for whoever borrows it next
            connection.idle_since = time.monotonic()
            with self._lock:
                self._idle.setdefault(key, []).append(connection)

    def has_idle(self, address: Address, settings: ClientSettings) -> bool:
        """Whether a lease would most likely not have to connect."""
        with self._lock:
            idle = self._idle.get((address, settings.framing, settings.tls), ())
            oldest = time.monotonic() - settings.idle_for
            return settings.shared_connections and any(c.idle_since >= oldest and c.still_open() for c in idle)

    def close(self) -> None:
        with self._lock:
            connections = [c for idle in self._idle.values() for c in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def forget(self) -> None:
        """Begins empty, without closing anything."""
        self._idle = {}
        self._lock = threading.Lock()

    def _take(self, key: Key, idle_for: float) -> Connection | None:
        with self._lock:
            keep, drop = choose(self._idle, time.monotonic() - idle_for)
            self._idle = keep
            candidates = self._idle.pop(key, [])
            chosen = next((c for c in reversed(candidates) if c.still_open()), None)
            left = [c for c in candidates if c is not chosen and c.still_open()]
            if left:
                self._idle[key] = left
        for connection in (*drop, *(c for c in candidates if c is not chosen and c not in left)):
            connection.close()
        return chosen


def choose(idle: Idle, oldest: float) -> tuple[Idle, list[Connection]]:
    """Which connections to keep, and which to close because they were last used before `oldest`."""
    keep: Idle = {}
    drop: list[Connection] = []
    for key, connections in idle.items():
        for connection in connections:
            if connection.idle_since < oldest:
                drop.append(connection)
            else:
                keep.setdefault(key, []).append(connection)
    return keep, drop


POOL = ConnectionPool()
"""The pool of this process: Spark's Python workers live across tasks and batches."""

empty_after_fork(POOL.forget)  # a child must not write to its parent's sockets
close_with_servers(POOL.close)
