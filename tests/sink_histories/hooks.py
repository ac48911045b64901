"""In a process that is to die: when. Counts the calls to servers, and kills or cuts off at the chosen one."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from tubemq_spark.client.net.connection import Connection
from tubemq_spark.protocol.envelope import Request

# What befalls the process, and when: before the call is written, when it is written, when its answer has come. A cut
# connection has lost what was on its way.
HOWS = ("kill_before", "kill_sent", "kill_answered", "cut_before", "cut_sent", "cut_answered")
_PATIENCE = 2.0  # seconds for an answer


class FetchFailedError(Exception):
    """The rows of a task end, because shuffle files are lost; its worker lives on. `fail_answered` raises it."""


@dataclass(frozen=True)
class Hook:
    how: str
    nth: int


class Calls:
    """The requests of this process's main thread, without heartbeats."""

    def __init__(self) -> None:
        self.count = 0
        self.hook: Hook | None = None

    def begin(self, hook: Hook | None) -> None:
        self.count = 0
        self.hook = hook

    def met(self) -> str | None:
        if threading.current_thread() is not threading.main_thread():
            return None
        self.count += 1
        return self.hook.how if self.hook is not None and self.count == self.hook.nth else None


CALLS = Calls()


def install() -> None:
    submit = Connection.submit_request

    def hooked(connection: Connection, request: Request) -> int:
        how = CALLS.met()
        if how == "kill_before":
            die()
        serial_no = submit(connection, request)
        if how is None:
            return serial_no
        if how != "cut_before":
            _write_all(connection)
            if how.endswith("answered"):
                _wait_for_answer(connection)
        if how.startswith("kill"):
            die()
        if how.startswith("fail"):
            raise FetchFailedError("by the history")
        _cut(connection)
        return serial_no

    Connection.submit_request = hooked  # type: ignore[method-assign, assignment]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def _write_all(connection: Connection) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            if connection._stream.write():
                return
        except OSError:
            return
        select.select([], [connection._stream.socket], [], 0.05)


def _wait_for_answer(connection: Connection) -> None:
    """Wait for the answers to all requests, and drop them."""
    deadline = time.monotonic() + _PATIENCE
    owed = len(connection._deadlines)
    heard: dict[int, object] = {}
    while len(heard) < owed and time.monotonic() < deadline:
        if not select.select([connection._stream.socket], [], [], 0.05)[0]:
            continue
        try:
            data = connection._stream.socket.recv(1 << 16)
            if not data:
                return
            heard.update(connection._rpc.receive(data))
        except (OSError, ValueError):
            return


def _cut(connection: Connection) -> None:
    with suppress(OSError):
        connection._stream.socket.shutdown(socket.SHUT_RDWR)
