# SPDX-License-Identifier: Apache-2.0
"""What may happen to one request of a client: the request or its reply is lost, the reply is late, or somebody acts
before the request is written, after it is written, or after its reply came.

The faults are made at the client's connection, so they are the same on an embedded and on a real server.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.protocol.envelope import Request
from tubemq_spark.testing.faults import _read

LOST, UNANSWERED, LATE = "lost", "unanswered", "late"
BEFORE, SENT, ANSWERED = "before", "sent", "answered"  # the moments of an act
LATENESS = 3.0  # seconds
_PATIENCE = 2.0  # seconds for a reply
_CHUNK = 1 << 16

Submit = Callable[[Connection, Request], int]
Act = Callable[[Connection], object]

_give_up_at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()  # on the monotonic clock


def befall(
    how: str, connection: Connection, request: Request, submit: Submit, acts: Mapping[str, Act], soon: float | None
) -> int:
    """Submit `request` with the fault `how`, and return its serial number.

    `how` is `lost`, `unanswered`, `late`, or the name of an act and its moment, as `cut_sent`. An act at `answered`
    takes place after the server has executed the request, and the reply never reaches the client. A client that waits
    for a reply in vain gives up after `soon` seconds, or after its own timeout if that is None.
    """
    if how in (LOST, UNANSWERED, LATE):
        serial_no = _without_reply(how, connection, request, submit)
        if soon is not None:
            waiting = [*connection._deadlines] if how == LATE else [serial_no]
            connection._deadlines |= dict.fromkeys(waiting, connection._clock.monotonic() + soon)
            connection._grace = 0.0
            _give_up_at[connection] = connection._clock.monotonic() + soon
        return serial_no
    act, _, moment = how.partition("_")
    if moment == BEFORE:
        acts[act](connection)
        return submit(connection, request)
    serial_no = submit(connection, request)
    _write(connection)
    if moment == ANSWERED:
        _drop_reply(connection, serial_no)
    acts[act](connection)
    return serial_no


def make_senders_impatient() -> None:
    """Let the senders of this process give up a missing reply as early as its other clients, from now on."""
    usual = BrokerChannel.gives_up_at

    def gives_up_at(channel: BrokerChannel) -> float:
        soon = _give_up_at.get(channel.connection, float("inf")) if channel.in_flight else float("inf")
        return min(usual(channel), soon)

    BrokerChannel.gives_up_at = gives_up_at  # type: ignore[method-assign, assignment]


def method_of(request: Request) -> str:
    """Return the name of a request's method, as `EmbeddedTubeMQ.on` takes it."""
    return _read(request)[0]


def cut(connection: Connection) -> None:
    """Break the connection. It loses the bytes in flight."""
    with suppress(OSError):
        connection._stream.socket.shutdown(socket.SHUT_RDWR)


def _without_reply(how: str, connection: Connection, request: Request, submit: Submit) -> int:
    if how == LOST:
        serial_no, _ = connection._rpc.request(request)
        connection._deadlines[serial_no] = connection._clock.monotonic() + request.timeout_ms / 1000
        return serial_no
    if how == LATE:
        _delay_replies(connection, LATENESS)
        return submit(connection, request)
    serial_no = submit(connection, request)
    _write(connection)
    _drop_reply(connection, serial_no)
    return serial_no


def _write(connection: Connection) -> None:
    """Write all queued requests."""
    deadline = time.monotonic() + _PATIENCE
    with suppress(OSError), selectors.DefaultSelector() as selector:
        selector.register(connection._stream.socket, selectors.EVENT_WRITE)
        while not connection._stream.write() and time.monotonic() < deadline:
            selector.select(0.05)


def _drop_reply(connection: Connection, serial_no: int) -> None:
    """Wait for the reply to a request, and drop it. The client gets the replies to other requests."""
    deadline = time.monotonic() + _PATIENCE
    with suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
        selector.register(connection._stream.socket, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(0.05):
                continue
            data = connection._stream.socket.recv(_CHUNK)
            replies = dict(connection._rpc.receive(data))
            is_there = replies.pop(serial_no, None) is not None
            for other, reply in replies.items():
                connection._deadlines.pop(other, None)
                connection._replies[other] = reply
            if is_there or not data:
                return


def _delay_replies(connection: Connection, seconds: float) -> None:
    """Put a proxy into the connection, which holds back all replies for `seconds` from now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname())
        inner, _ = listener.accept()
    outer.setblocking(False)
    stream = connection._stream
    server, stream.socket = stream.socket, outer
    stream._selector.unregister(server)
    stream._selector.register(outer, stream._events)
    server.setblocking(True)
    for read, write, pause in ((inner, server, 0.0), (server, inner, seconds)):
        threading.Thread(target=_pump, args=(read, write, pause), name="late-reply", daemon=True).start()


def _pump(read: socket.socket, write: socket.socket, pause: float) -> None:
    """Copy all bytes, the first ones after `pause` seconds. End both sockets with the first one that ends."""
    release = time.monotonic() + pause
    with suppress(OSError):
        while data := read.recv(_CHUNK):
            time.sleep(max(0.0, release - time.monotonic()))
            write.sendall(data)
    for one in (read, write):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        read.close()
