# SPDX-License-Identifier: Apache-2.0
"""A port of a server and the connections to it; its host does the networking."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tubemq_spark.testing.host import Host, Transport
from tubemq_spark.testing.tls import TLSFiles

HOST = "127.0.0.1"


class Connection(ABC):
    """The server's end of one connection; its methods are those of `asyncio.Protocol`, and `abort`."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._times_closed = port.times_closed
        self._transport: Transport | None = None  # None before the handshake has ended, and after an abort

    def connection_made(self, transport: Transport) -> None:
        if self._port.times_closed != self._times_closed:  # during the handshake
            transport.abort()
            return
        self._transport = transport
        self._port.connections[self] = None

    @abstractmethod
    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool:
        """Return False: the host ends a connection whose peer sends no more."""
        return False

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()  # back-pressure: a peer that reads no answers may send no requests

    def resume_writing(self) -> None:
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
