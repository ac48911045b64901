# SPDX-License-Identifier: Apache-2.0
"""Connections to scripted peers, for the tests of this folder."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.peers import Peer, reply_bytes, requests, silent
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.timings import Timings
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, Response

SOON, LATE = 0.05, 600.0  # seconds
HASTY = Timings(slow_peer_grace=SOON)


@contextmanager
def connected(
    peer: Peer, framing: Framing | None = Framing.STANDARD, *, timings: Timings = HASTY, clock: Clock = SYSTEM_CLOCK
) -> Iterator[Connection]:
    with peer:
        connection = connect(peer.address, framing, 10.0, timings=timings, clock=clock)
        try:
            yield connection
        finally:
            connection.close()


def submit(connection: Connection, body: bytes, timeout: float = LATE) -> int:
    request = Request(ServiceType.BROKER_READ, Method.GET_MESSAGE, int(timeout * 1000), body)
    return connection.submit_request(request)


def response(body: bytes) -> Response:
    return Response(Method.GET_MESSAGE, body)


def trickling(connection: socket.socket) -> None:
    """Answer with a valid frame of a megabyte, byte by byte, each before the reader gives up."""
    if connection.recv(1, socket.MSG_PEEK) != b"\xff":
        silent(connection)  # as servers are to the framing they do not know
        return
    serial_no, request = next(requests(connection))
    for byte in reply_bytes(serial_no, Response(request.method, bytes(1 << 20))):
        connection.sendall(bytes([byte]))
        time.sleep(0.9 * SOON)
