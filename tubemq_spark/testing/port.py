# SPDX-License-Identifier: Apache-2.0
"""A port of a server and the connections to it. Its host does the networking.

`event_loop.EventLoopThread` is a host with a thread and sockets. Another host can run the servers without both: a
subclass of `EmbeddedTubeMQ` overrides `_new_host`.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tubemq_spark.testing.clock import SystemTime

T = TypeVar("T")

HOST = "127.0.0.1"


class Connection(asyncio.Protocol):
    """The server's end of one connection."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._times_closed = port.times_closed
        self._paused = False  # by a peer that does not read its answers
        self._transport: asyncio.Transport | None = None  # None before the handshake has ended, and after an abort

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a host has no others
        if self._port.times_closed != self._times_closed:  # during the handshake
            transport.abort()
            return
        self._transport = transport
        self._port.connections[self] = None

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()  # back-pressure: a peer that reads no answers may send no requests

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._port.connections.pop(self, None)

    def abort(self) -> None:
        """Reset the connection; from now on it handles and answers nothing."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


class Port(ABC):
    """A port and the connections to it. It keeps its number until the host closes, also while it is closed itself."""

    def __init__(self, name: str, host: Host, tls: TLSFiles | None = None) -> None:
        self.name = name
        self.port = 0  # the host chooses one
        self.tls_context = None if tls is None else tls.context()  # raises for bad files before any port is open
        self.connections: dict[Connection, None] = {}  # in the order of their beginnings
        self.times_closed = 0
        self.is_open = False
        self._host = host

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @abstractmethod
    def connect(self) -> Connection:
        """Return the server's end of a connection that begins; only while the port is open."""

    def open(self) -> None:
        """Accept connections from now on; `OSError` when another program has the port."""
        if not self.is_open:
            self._host.listen(self)
            self.is_open = True

    def close(self) -> None:
        """Refuse connections from now on, and reset the open ones."""
        if not self.is_open:
            return
        self.is_open = False
        self.times_closed += 1
        self._host.stop_listening(self)
        for connection in list(self.connections):
            connection.abort()


@dataclass(frozen=True)
class TLSFiles:
    """PEM files of the servers. With `client_ca` they require certificates of their clients (mutual TLS)."""

    cert: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert, self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.client_ca)
        return context


class Host(SystemTime, ABC):
    """The place where the servers of one cluster run, and their time.

    All functions run one after the other, also those of `after` and the connections' methods. The host drives a
    connection as asyncio does: `port.connect()` when a client arrives at an open port, `connection_made(transport)`,
    `data_received(data)` any number of times, and `connection_lost(error)` once after the end or an abort.
    """

    @abstractmethod
    def call(self, function: Callable[[], T]) -> T:
        """Run `function` and return its result; also within another call. `RuntimeError` after `close`."""

    @abstractmethod
    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` once when `seconds` of real time have passed, unless `close` comes first."""

    @abstractmethod
    def listen(self, port: Port) -> None:
        """Let connections to `port` begin. The host sets `port.port` if it is 0; `OSError` when it is in use."""

    @abstractmethod
    def stop_listening(self, port: Port) -> None:
        """Refuse connections to `port`, and keep its number for the next `listen`; the port ends the open ones."""

    @abstractmethod
    def close(self, last: Callable[[], None]) -> None:
        """Run `last`, and no function after it; a second call does nothing."""
