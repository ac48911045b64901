# SPDX-License-Identifier: Apache-2.0
"""Kill the process, or cut its connection, at a chosen request to a server."""

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

# What happens to the process, and when: before the request is written, after it, or after its reply has come. A cut
# connection loses the bytes in flight.
HOWS = ("kill_before", "kill_sent", "kill_answered", "cut_before", "cut_sent", "cut_answered")
_PATIENCE = 2.0  # seconds for a reply


class FetchFailedError(Exception):
    """The rows of a task end, because shuffle files are lost. The worker continues. `fail_answered` raises it."""


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
    raise AssertionError("SIGKILL did not end the process")


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
    """Wait for the replies to all requests, and drop them."""
    deadline = time.monotonic() + _PATIENCE
    unanswered = len(connection._deadlines)
    replies: dict[int, object] = {}
    while len(replies) < unanswered and time.monotonic() < deadline:
        if not select.select([connection._stream.socket], [], [], 0.05)[0]:
            continue
        try:
            data = connection._stream.socket.recv(1 << 16)
            if not data:
                return
            replies.update(connection._rpc.receive(data))
        except (OSError, ValueError):
            return


def _cut(connection: Connection) -> None:
    with suppress(OSError):
        connection._stream.socket.shutdown(socket.SHUT_RDWR)
