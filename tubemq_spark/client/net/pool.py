# SPDX-License-Identifier: Apache-2.0
"""The connection pool: each connection belongs to one borrower at a time, and is reused until it was idle for long.

Who wants one broker gets a connection to that broker, and never one to another broker at its address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tubemq_spark.client import runtime, system
from tubemq_spark.client.net.broker_identity import ExpectedBroker, Server, address_of, ask_broker_id
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker

Key = tuple[Address, "Framing | None", "TlsSettings | None"]  # a connection serves all settings with the same key


class ConnectionPool:
    """The idle connections of this process, by address. Safe to use from several threads."""

    def __init__(self) -> None:
        self._owner = runtime.current()
        self._idle: list[tuple[Key, Connection]] = []  # those used last at the end
        self._elsewhere: set[Broker] = set()  # at whose address another broker was met last
        self._lock = system.Lock()  # of both; nobody connects or sends under it

    def __repr__(self) -> str:
        with self._lock:
            return f"<ConnectionPool idle: {dict(Counter(str(address) for (address, *_), _ in self._idle))}>"

    @contextmanager
    def lease(self, server: Server, settings: ClientSettings, timeout: float | None = None) -> Iterator[Connection]:
        """Yield a connection to use alone. Afterwards it returns to the pool, unless it broke or has unanswered
        requests. If the settings share no connections it is a new one, and closed at the end.

        `timeout` is in seconds, by default that of a request. Raise `TransportError` if no connection can be made, or
        another broker than the expected one is there, and `ProtocolError` if the peer speaks another protocol or is not
        trusted over TLS.
        """
        key = (address_of(server), settings.framing, settings.tls)
        seconds = settings.rpc_timeout if timeout is None else timeout
        oldest = settings.clock.monotonic() - settings.idle_for
        connection = self._take(key, server, oldest) if settings.shared_connections else None
        if connection is None:
            connection = connect(key[0], settings.framing, seconds, settings.tls, settings.timings, settings.clock)
        try:
            if isinstance(server, ExpectedBroker):
                self._identify(connection, server, settings, seconds)
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

    def has_idle(self, server: Server, settings: ClientSettings) -> bool:
        """Return True if a lease would most likely not have to wait for the server."""
        key = (address_of(server), settings.framing, settings.tls)
        oldest = settings.clock.monotonic() - settings.idle_for
        with self._lock:
            idle = [c for one, c in self._idle if one == key and c.idle_since >= oldest]
            if isinstance(server, ExpectedBroker):
                idle = [c for c in idle if c.broker_id == server.broker.broker_id]
            return settings.shared_connections and any(c.still_open() for c in idle)

    def is_elsewhere(self, broker: Broker) -> bool:
        """Return True if another broker was met at the address of `broker` last: masters may list a new one."""
        return broker in self._elsewhere

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            self._elsewhere.clear()
        for _, connection in idle:
            connection.close()

    def _identify(
        self, connection: Connection, expected: ExpectedBroker, settings: ClientSettings, timeout: float
    ) -> None:
        """Raise `TransportError` if another broker than the `expected` one is at the other end."""
        if connection.broker_id is None:
            connection.broker_id = ask_broker_id(connection, settings, expected.token, timeout)
        broker, met = expected.broker, connection.broker_id
        if met == broker.broker_id:
            if broker in self._elsewhere:
                with self._lock:
                    self._elsewhere.discard(broker)
        elif met is not None:
            with self._lock:
                self._elsewhere.add(broker)
            raise TransportError(
                f"broker {met} answers at {broker.address}, not broker {broker.broker_id}. If brokers have changed "
                "addresses, the masters must list the new ones; check option 'tubemq.brokers.addresses', if it is set"
            )

    def _take(self, key: Key, server: Server, oldest: float) -> Connection | None:
        """Remove and return the connection for `key` that was used last, but none to another broker than an expected
        one. Close those that were last used before `oldest`, and those for `key` that broke.
        """
        usual = {None, server.broker.broker_id} if isinstance(server, ExpectedBroker) else None
        usable: list[tuple[Key, Connection]] = []
        unusable: list[Connection] = []
        chosen = None
        with self._lock:
            for one, connection in reversed(self._idle):
                if connection.idle_since < oldest or (one == key and not connection.still_open()):
                    unusable.append(connection)
                elif one == key and chosen is None and (usual is None or connection.broker_id in usual):
                    chosen = connection
                else:
                    usable.append((one, connection))
            self._idle = usable[::-1]
        for connection in unusable:
            connection.close()
        return chosen


POOL = PerProcess(ConnectionPool, ConnectionPool.close)
"""The pool of this process: Spark's Python workers live across tasks and batches."""
