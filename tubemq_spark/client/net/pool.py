# SPDX-License-Identifier: Apache-2.0
"""The connection pool: each connection belongs to one borrower at a time, and is reused until it was idle for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tubemq_spark.client import runtime, system
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address

Key = tuple[Address, "Framing | None", "TlsSettings | None"]  # a connection serves all settings with the same key


class ConnectionPool:
    """The idle connections of this process, by address. Safe to use from several threads."""

    def __init__(self) -> None:
        self._owner = runtime.current()
        self._idle: list[tuple[Key, Connection]] = []  # those used last at the end
        self._lock = system.Lock()

    def __repr__(self) -> str:
        with self._lock:
            return f"<ConnectionPool idle: {dict(Counter(str(address) for (address, *_), _ in self._idle))}>"

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
            connection.forget_replies()  # they are not for the next borrower
            connection.idle_since = settings.clock.monotonic()
            if runtime.current() is not self._owner:
                return  # in a forked child: the connection is the parent's, of which a thread may have held the lock
            with self._lock:
                self._idle.append((key, connection))

    def has_idle(self, address: Address, settings: ClientSettings) -> bool:
        """Return True if a lease would most likely not have to connect."""
        key = (address, settings.framing, settings.tls)
        oldest = settings.clock.monotonic() - settings.idle_for
        with self._lock:
            idle = [c for one, c in self._idle if one == key and c.idle_since >= oldest]
            return settings.shared_connections and any(c.still_open() for c in idle)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self, key: Key, oldest: float) -> Connection | None:
        """Remove and return the connection for `key` that was used last. Close those that were last used before
        `oldest`, and those for `key` that broke.
        """
        usable: list[tuple[Key, Connection]] = []
        unusable: list[Connection] = []
        chosen = None
        with self._lock:
            for one, connection in reversed(self._idle):
                if connection.idle_since < oldest or (one == key and not connection.still_open()):
                    unusable.append(connection)
                elif one == key and chosen is None:
                    chosen = connection
                else:
                    usable.append((one, connection))
            self._idle = usable[::-1]
        for connection in unusable:
            connection.close()
        return chosen


POOL = PerProcess(ConnectionPool, ConnectionPool.close)
"""The pool of this process: Spark's Python workers live across tasks and batches."""
