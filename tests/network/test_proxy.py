# SPDX-License-Identifier: Apache-2.0
"""The proxies do to a connection what a test asks for, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.network.hostile import Spoiled, wrong_serial_number
from tests.network.proxied import Proxied
from tests.network.proxy import Network, Proxy
from tests.peers import Peer, answering, echo, reply_bytes
from tests.without_spark.query import Query, fill, stored
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, Response, encode_request
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.metadata import parse_master_addresses
from tubemq_spark.testing import EmbeddedTubeMQ

DATA = bytes(range(256)) * 1000


def repeating(connection: socket.socket) -> None:
    """Send all bytes back."""
    while data := connection.recv(1 << 16):
        connection.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Peer(repeating) as peer, Network() as network:
        yield network.proxy(peer.address)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address) as connection:
        connection.settimeout(60)
        yield connection


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := connection.recv(1 << 16)):
        data += part
    return data


@pytest.mark.parametrize("changes", [{}, {"latency": 0.01}, {"jitter": 0.02}, {"rate": 5e6}], ids=str)
def test_bytes_come_whole_and_in_their_order(proxy: Proxy, client: socket.socket, changes: dict[str, float]) -> None:
    proxy.disturb(**changes)
    for start in range(0, len(DATA), 50_000):
        client.sendall(DATA[start : start + 50_000])
    assert received(client, len(DATA)) == DATA
    assert proxy.connections == 1


def test_bytes_wait_while_the_network_is_down(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"before")
    assert received(client, 6) == b"before"
    proxy.disturb(is_down=True)
    client.sendall(b"meanwhile")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(60)
    proxy.disturb(is_down=False)
    assert received(client, 9) == b"meanwhile"


def test_a_half_open_connection_is_reset_at_the_end(proxy: Proxy, client: socket.socket) -> None:
    proxy.disturb(swallows=True)
    client.sendall(b"lost")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(60)
    proxy.calm()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_server_that_is_away_resets_connections() -> None:
    with Peer(repeating) as peer, Network() as network:
        proxy = network.proxy(peer.address)
        peer.hang_up()
        with socket.create_connection(proxy.address) as connection:
            connection.settimeout(60)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


def test_an_edit_replaces_replies() -> None:
    request = Request(ServiceType.BROKER_READ, Method.GET_MESSAGE, 1000, b"data")
    with Peer(answering(echo)) as peer, Network() as network:
        proxy = network.proxy(peer.address)
        proxy.edit = spoiled = Spoiled(Method.GET_MESSAGE, wrong_serial_number, spared=1)
        wanted = [reply_bytes(number, Response(Method.GET_MESSAGE, b"data")) for number in (7, 1008)]
        with socket.create_connection(proxy.address) as connection:
            connection.settimeout(60)
            for number, reply in zip((7, 8), wanted, strict=True):
                connection.sendall(encode_frame(number, encode_request(request), Framing.STANDARD))
                assert received(connection, len(reply)) == reply
    assert spoiled.fired == 1


def test_masters_name_the_proxies_of_brokers() -> None:
    with EmbeddedTubeMQ({"one": 1, "pair": 2}) as tubemq, Network() as network:
        proxied = Proxied(network, tubemq.master, {1: tubemq.broker_address(1)})
        fill(tubemq)
        query = Query(tubemq, masters=parse_master_addresses(proxied.master))
        query.run()
        assert query.rows == stored(tubemq)
        assert all(proxy.connections for proxy in proxied.all)
        forget_servers()
