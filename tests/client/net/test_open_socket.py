# SPDX-License-Identifier: Apache-2.0
"""Opening sockets: hosts that refuse, are silent, or share a name."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from tests.client.net.connecting import SOON
from tests.peers import Peer, refused_address, silent
from tubemq_spark.client.net.open_socket import open_socket
from tubemq_spark.client.timings import DEFAULT_TIMINGS
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Address

pytestmark = pytest.mark.timeout(60)


def test_a_refused_connection_is_a_transport_error() -> None:
    address = refused_address()
    with pytest.raises(TransportError, match=f"cannot connect to {address}: Connection refused"):
        open_socket(address, 1.0, None, DEFAULT_TIMINGS)


def test_an_impossible_host_name_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match=r"cannot connect to no\.\.host:8715: .*"):
        open_socket(Address("no..host", 8715), 1.0, None, DEFAULT_TIMINGS)


def test_a_tls_handshake_byte_by_byte_times_out() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        for byte in b"\x16\x03\x03\x40\x00" + bytes(1 << 14):
            connection.sendall(bytes([byte]))
            time.sleep(0.9 * SOON)

    with Peer(serve) as peer, pytest.raises(TransportError, match="no answer to the TLS handshake"):
        open_socket(peer.address, 0.2, TlsSettings(verify_hostname=False), DEFAULT_TIMINGS)


def test_all_hosts_of_a_name_share_the_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the three hosts accept no connection and do not answer."""
    given: list[float | None] = []
    settimeout = socket.socket.settimeout

    def note(self: socket.socket, seconds: float | None) -> None:
        if threading.current_thread() is threading.main_thread():  # other threads have sockets of their own
            given.append(seconds)
        settimeout(self, seconds)

    with socket.socket() as deaf, contextlib.ExitStack() as queue:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):  # more than may wait to be accepted
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        with Peer(silent) as peer:
            hosts = [deaf.getsockname(), deaf.getsockname(), tuple(peer.address)]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", host) for host in hosts]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            monkeypatch.setattr(socket.socket, "settimeout", note)
            open_socket(Address("three.hosts", 8715), 0.6, None, DEFAULT_TIMINGS).close()
    assert len(given) == 3
    assert sum(seconds for seconds in given[:2] if seconds is not None) < 0.6
