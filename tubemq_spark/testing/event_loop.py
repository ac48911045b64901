# SPDX-License-Identifier: Apache-2.0
"""The host of an embedded cluster that others can connect to: a thread with an event loop, and sockets on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from tubemq_spark.testing.port import HOST, Host, Port

T = TypeVar("T")


class EventLoopThread(Host):
    """The only thread that reads and changes the servers' state, and their sockets."""

    running: ClassVar[weakref.WeakSet[EventLoopThread]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # all that were opened
        self._acceptors: dict[Port, _Acceptor] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded-tubemq", daemon=True)
        self._closed = False
        self._lock = threading.Lock()  # guards `_closed`: after the end of the loop no function runs
        self._thread.start()
        self.running.add(self)

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread and return its result; may be called on the thread itself.

        Raises `RuntimeError` when the thread has ended.
        """
        if threading.current_thread() is self._thread:
            return function()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # the caller receives it
                done.set_exception(error)

        with self._lock:
            if self._closed:
                raise RuntimeError("this EmbeddedTubeMQ is closed")
            self._loop.call_soon_threadsafe(run)
        if (error := done.exception()) is not None:
            raise error  # from here, so that no frame of `concurrent.futures` is in its traceback
        return done.result()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self._loop.call_later(seconds, function)

    def listen(self, port: Port) -> None:
        if port not in self._acceptors:
            self._acceptors[port] = _Acceptor(port, self._loop, self._sockets)
        self._acceptors[port].open()

    def stop_listening(self, port: Port) -> None:
        self._acceptors[port].close()

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` on the thread and end the thread; a second call does nothing.

        Raises `RuntimeError` when called on the thread itself, which then continues.
        """
        if threading.current_thread() is self._thread and not self._closed:
            raise RuntimeError(
                "a function that runs within a call of an EmbeddedTubeMQ cannot close it: close it outside"
            )
        with self._lock:
            if self._closed:
                return
            self._closed = True

        async def settle() -> None:
            last()
            # Let accepted connections finish their set-up; they find their listener closed.
            for _ in range(3):
                await asyncio.sleep(0)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        try:
            asyncio.run_coroutine_threadsafe(settle(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._close_sockets()

    def forget(self) -> None:
        """Close the sockets in a forked child, where the thread does not run.

        The loop stays as it is, because it shares its poll object with the parent's.
        """
        self._closed = True
        self._lock = threading.Lock()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for opened in list(self._sockets):
            opened.close()


class _Acceptor:
    """The socket of one port: it listens, or keeps the port while that is closed."""

    def __init__(self, port: Port, loop: asyncio.AbstractEventLoop, sockets: weakref.WeakSet[socket.socket]) -> None:
        self._port = port
        self._loop = loop
        self._sockets = sockets
        self._socket: socket.socket | None = None  # while it does not listen, it keeps the port and refuses connections
        self._handshakes: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        try:
            if self._socket is None:
                self._socket = self._bind()
            self._socket.listen(1024)
        except OSError as error:
            raise OSError(
                error.errno, f"{self._port.name} cannot listen on {self._port.address}: {error.strerror}"
            ) from error
        self._port.port = self._socket.getsockname()[1]
        self._loop.add_reader(self._socket, self._accept, self._socket)

    def close(self) -> None:
        assert self._socket is not None  # a port closes only after it has opened
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        with suppress(OSError):  # another program took the port: `open` will report it
            self._socket = self._bind()

    def _bind(self) -> socket.socket:
        bound = socket.socket()
        self._sockets.add(bound)
        try:
            if os.name == "posix":  # on Windows it would let others take the port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((HOST, self._port.port))
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return bound

    def _accept(self, listening: socket.socket) -> None:
        # asyncio's own server would leak a socket when it closes between accept and the end of the handshake.
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:  # no connection waits, or the one that waited was closed
                return
            self._sockets.add(accepted)
            self._handshakes.add(task := self._loop.create_task(self._connect(accepted)))
            task.add_done_callback(self._handshake_ended)

    def _connect(self, accepted: socket.socket) -> Coroutine[Any, Any, Any]:
        connection = self._port.connect()
        return self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._port.tls_context)

    def _handshake_ended(self, task: asyncio.Task[Any]) -> None:
        self._handshakes.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the error of a failed handshake; its client has it too


def _forget_all() -> None:
    for thread in list(EventLoopThread.running):
        thread.forget()


if hasattr(os, "register_at_fork"):
    # A forked child must not keep its parent's ports and connections open.
    os.register_at_fork(after_in_child=_forget_all)
