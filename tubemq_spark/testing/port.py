# SPDX-License-Identifier: Apache-2.0
"""A TCP port on loopback: binding, accepting, and keeping the port while its server is down."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Protocol

from tubemq_spark.testing.event_loop import EventLoopThread
from tubemq_spark.testing.tls import TLSFiles

HOST = "127.0.0.1"


class OpenConnection(Protocol):
    """A connection that the port must end when it closes."""

    def abort(self) -> None: ...


class Port(ABC):
    """A port and the connections to it. It keeps its port until the thread ends, also while it is closed."""

    def __init__(self, name: str, thread: EventLoopThread, tls: TLSFiles | None = None) -> None:
        self.port = 0
        self.thread = thread
        self.connections: set[OpenConnection] = set()
        self._name = name
        self._context = None if tls is None else tls.context()  # raises for bad files before any port is open
        self._socket: socket.socket | None = None
        self._reserved: socket.socket | None = None  # bound but not listening: keeps the port and refuses connections
        self._handshakes: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def connect(self, opened: socket.socket) -> asyncio.Protocol:
        """Return the protocol of a connection that `opened` accepted."""

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def has_closed(self, opened: socket.socket) -> bool:
        """Return True if the connections that `opened` accepted must end."""
        return self._socket is not opened

    def open(self) -> None:
        """Accept connections from now on; `OSError` when another program has the port."""
        if self._socket is not None:
            return
        try:
            if self._reserved is None:
                self._reserved = self._bind()
            (opened := self._reserved).listen(1024)
        except OSError as error:
            raise OSError(error.errno, f"{self._name} cannot listen on {HOST}:{self.port}: {error.strerror}") from error
        self._socket, self._reserved = opened, None
        self.port = opened.getsockname()[1]
        self.thread.loop.add_reader(opened, self._accept, opened)

    def close(self) -> None:
        """Refuse connections from now on, and reset the open ones."""
        if self._socket is None:
            return
        self.thread.loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        with suppress(OSError):  # another program took the port: `open` will report it
            self._reserved = self._bind()
        for connection in list(self.connections):
            connection.abort()

    def _bind(self) -> socket.socket:
        bound = socket.socket()
        self.thread.sockets.add(bound)
        try:
            if os.name == "posix":  # on Windows it would let others take the port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((HOST, self.port))
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return bound

    def _accept(self, opened: socket.socket) -> None:
        # asyncio's own server would leak a socket when it closes between accept and the end of the handshake.
        while True:
            try:
                accepted, _ = opened.accept()
            except OSError:  # no connection waits, or the one that waited was closed
                return
            self.thread.sockets.add(accepted)
            loop = self.thread.loop
            handshake = loop.connect_accepted_socket(lambda: self.connect(opened), accepted, ssl=self._context)
            self._handshakes.add(task := loop.create_task(handshake))
            task.add_done_callback(self._handshake_ended)

    def _handshake_ended(self, task: asyncio.Task[Any]) -> None:
        self._handshakes.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the error of a failed handshake; its client has it too
