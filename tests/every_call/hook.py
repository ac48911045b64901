# SPDX-License-Identifier: Apache-2.0
"""Numbers the requests of a query in this process, and lets a fault happen to one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn
from unittest import mock

from tests.histories.calls import KilledError, Query, WorkerKilledError
from tests.request_faults import befall, cut, method_of
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.open_socket import open_socket
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.envelope import Request

DRIVER, TASK = "driver", "task"


class Call(NamedTuple):
    """A request: whether the driver or a task sent it, and the name of its method."""

    role: str
    method: str


class CallHook:
    """The requests of one query, without its heartbeats.

    `met` is the request that the fault happened to. A process that was killed sends nothing more: each later request
    raises that error again, until `revive`.
    """

    def __init__(
        self, crash_peer: Callable[[str], object], refused: Callable[[str], object], soon: float | None
    ) -> None:
        """`crash_peer` gets the address of a server that shall crash, `refused` that of one that refused a connection.
        After `soon` seconds the client gives up a request whose reply is missing; None leaves its own timeout."""
        self.calls: list[Call] = []
        self.met: Call | None = None
        self.is_in_task: Callable[[], bool] = lambda: False
        self._crash_peer, self._refused, self._soon = crash_peer, refused, soon
        self._fault: tuple[int, str] | None = None
        self._thread = threading.get_ident()
        self._is_counting = False
        self._dead: KilledError | WorkerKilledError | None = None

    def arm(self, nth: int, how: str) -> None:
        """Let the fault `how` happen to request number `nth`, from 1."""
        self._fault = nth, how

    def disarm(self) -> None:
        """Count no further requests."""
        self._fault = None
        self._is_counting = False
        self._thread = -1

    def revive(self, *, driver: bool) -> None:
        """Begin a new process after a worker was killed, or with `driver` after any was."""
        if driver or isinstance(self._dead, WorkerKilledError):
            self._dead = None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count requests within this block: they are the query's, and not those of the test."""
        before, self._is_counting = self._is_counting, True
        try:
            yield
        finally:
            self._is_counting = before

    @contextmanager
    def installed(self) -> Iterator[None]:
        submit = Connection.submit_request

        def hooked(connection: Connection, request: Request) -> int:
            if not self._is_counting or threading.get_ident() != self._thread:
                return submit(connection, request)
            if self._dead is not None:
                self._die(connection, self._dead)
            call = Call(TASK if self.is_in_task() else DRIVER, method_of(request))
            self.calls.append(call)
            if self._fault is None or self._fault[0] != len(self.calls):
                return submit(connection, request)
            self.met = call
            acts = {"kill": self._kill, "cut": cut, "crash": self._crash}
            return befall(self._fault[1], connection, request, submit, acts, self._soon)

        def opened(address: Any, *args: Any) -> Any:
            try:
                return open_socket(address, *args)
            except TransportError:
                self._refused(str(address))
                raise

        with (
            mock.patch.object(Connection, "submit_request", hooked),
            mock.patch.object(connection_module, "open_socket", opened),
        ):
            yield

    def _kill(self, connection: Connection) -> NoReturn:
        assert self.met is not None
        self._dead = KilledError() if self.met.role == DRIVER else WorkerKilledError()
        self._die(connection, self._dead)

    def _die(self, connection: Connection, error: KilledError | WorkerKilledError) -> NoReturn:
        """Close the connection as the system does for a dead process: what was written arrives, nothing else."""
        if not connection.closed:
            connection._stream.close(drop_unsent=False)
        raise error

    def _crash(self, connection: Connection) -> None:
        before, self._is_counting = self._is_counting, False
        try:
            self._crash_peer(str(connection.address))
        finally:
            self._is_counting = before


class NumberedQuery(Query):
    """A query whose requests `hook` counts."""

    def __init__(self, options: dict[str, str], hook: CallHook, *, retries: int, width: int) -> None:
        super().__init__(options, retries=retries, width=width)
        self._hook = hook
        hook.is_in_task = lambda: self.is_in_task

    def start(self, available_now: bool = False) -> None:
        self._hook.revive(driver=True)
        with self._hook.counting():
            try:
                super().start(available_now)
            except KilledError:
                self.kill()
                raise

    def step(self) -> bool:
        with self._hook.counting():
            return super().step()

    def stop(self) -> None:
        with self._hook.counting():
            try:
                super().stop()
            except KilledError:
                self.kill()

    def _kill(self, task: Any, late: int) -> None:
        super()._kill(task, late)
        self._hook.revive(driver=False)
