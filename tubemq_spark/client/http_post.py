# SPDX-License-Identifier: Apache-2.0
"""Posts a form to an HTTP server that may be slow, hostile or another service than expected."""

from __future__ import annotations

import http.client
import socket
import urllib.parse
from contextlib import closing
from typing import Any

from tubemq_spark.client.clock import SYSTEM_CLOCK

_MOST = 64 << 20  # bytes of an answer


def post(url: str, form: bytes, timeout: float) -> bytes:
    """Return the answer, which must be complete after `timeout` seconds.

    No redirect is followed, because the form may have a token. Raise `OSError`, also for another status than 200,
    `http.client.HTTPException`, or `ValueError` for a URL or a length that is not possible.
    """
    parts = urllib.parse.urlsplit(url)
    with closing(_Connection(parts.hostname or "", parts.port, timeout=timeout)) as connection:
        connection.request("POST", parts.path, form, {"Content-Type": "application/x-www-form-urlencoded"})
        reply = connection.getresponse()
        if reply.status != http.client.OK:
            target = reply.getheader("Location")
            text = f"HTTP status {reply.status}" + (f", a redirect to {target}" if target else "")
            raise OSError(text)
        return reply.read(_MOST)


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        assert self.timeout is not None
        self.sock: socket.socket = _TimedSocket(self.sock, SYSTEM_CLOCK.monotonic() + self.timeout)


class _TimedSocket(socket.socket):
    """Bounds the time and the bytes of a whole answer. The timeout of a socket is that of one call, which may bring one
    byte; and `http.client` reads any number of lines before an answer (`100 Continue`)."""

    def __init__(self, connected: socket.socket, ends: float) -> None:
        super().__init__(fileno=connected.detach())
        self._ends = ends
        self._most = 2 * _MOST  # a body in chunks has other bytes, too

    def recv_into(self, *args: Any) -> int:
        left = self._ends - SYSTEM_CLOCK.monotonic()
        if left <= 0 or self._most <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        received = super().recv_into(*args)
        self._most -= received
        return received
