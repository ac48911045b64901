# SPDX-License-Identifier: Apache-2.0
"""Let a fault happen to a chosen request of this process: see `tests.request_faults`. The acts kill this process, cut
the connection, let the server crash, or end the rows of a task."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import NoReturn

from tests import request_faults
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.protocol.envelope import Request

# The faults of random histories. A cut connection loses the bytes in flight.
HOWS = ("kill_before", "kill_sent", "kill_answered", "cut_before", "cut_sent", "cut_answered")


class FetchFailedError(Exception):
    """The rows of a task end, because shuffle files are lost. The worker continues. `fail_answered` raises it."""


@dataclass(frozen=True)
class Hook:
    """The fault `how` at request number `nth`, from 1. `soon` is as in `request_faults.befall`."""

    how: str
    nth: int
    soon: float | None = None


@dataclass(frozen=True)
class PeerCrash:
    """A process asks its driver to let the server at `address` crash, and waits for an answer."""

    address: str


class Calls:
    """The requests of this process's main thread, without heartbeats: the names of their methods, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hook: Hook | None = None

    def begin(self, hook: Hook | None) -> None:
        self.names = []
        self.hook = hook

    def met(self, request: Request) -> Hook | None:
        if threading.current_thread() is not threading.main_thread():
            return None
        self.names.append(request_faults.method_of(request))
        return self.hook if self.hook is not None and len(self.names) == self.hook.nth else None


CALLS = Calls()


def install(driver: Pipe) -> None:
    """Watch the requests of this process. `driver` takes a `PeerCrash`."""
    submit = Connection.submit_request
    acts = {
        "kill": lambda _: die(),
        "cut": request_faults.cut,
        "crash": lambda connection: _ask_for_crash(driver, connection),
        "fail": lambda _: _fail(),
    }

    def hooked(connection: Connection, request: Request) -> int:
        hook = CALLS.met(request)
        if hook is None:
            return submit(connection, request)
        return request_faults.befall(hook.how, connection, request, submit, acts, hook.soon)

    Connection.submit_request = hooked  # type: ignore[method-assign, assignment]
    request_faults.make_senders_impatient()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not end the process")


def _fail() -> NoReturn:
    raise FetchFailedError("by the history")


def _ask_for_crash(driver: Pipe, connection: Connection) -> None:
    driver.send(PeerCrash(str(connection.address)))
    driver.recv()
