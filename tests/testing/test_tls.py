# SPDX-License-Identifier: Apache-2.0
"""The embedded servers over TLS, tested with Python's own sockets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority, Certificate, tls_files
from tests.testing.raw import Raw
from tubemq_spark.protocol.metadata import parse_addresses, parse_brokers
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing import EmbeddedTubeMQ, TLSFiles

PATIENCE = 20.0
REGISTER = master_pb.RegisterRequestP2M(clientId="c", brokerCheckSum=-1, hostName="127.0.0.1")


@pytest.fixture(scope="module")
def one_way(server_cert: Certificate) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"demo": 1}, tls=tls_files(server_cert)) as tubemq:
        yield tubemq


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.own.cert))


def plain(text: str) -> socket.socket:
    return socket.create_connection(parse_addresses(text)[0], timeout=PATIENCE)


def secure(address: str, authority: Authority) -> Raw:
    return Raw(address, context=trusting(authority))


def broker_of(master: Raw) -> str:
    """Return the address of the broker that the master lists."""
    return str(parse_brokers(master.call(REGISTER).brokerInfos)[1].address)


def is_closed(connection: socket.socket) -> bool:
    """Return True if the peer ends the connection, with or without an alert."""
    try:
        while connection.recv(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("greet", [lambda s: None, lambda s: s.sendall(b"\x16\x03\x01")], ids=["nothing", "half"])
def test_close_ends_a_handshake(server_cert: Certificate, greet: Callable[[socket.socket], None]) -> None:
    with EmbeddedTubeMQ(tls=tls_files(server_cert)) as tubemq:
        connection = plain(tubemq.tls_master)
        greet(connection)
    with connection:
        assert is_closed(connection)


def test_a_stopped_broker_leaves_no_handshake(one_way: EmbeddedTubeMQ, authority: Authority) -> None:
    with secure(one_way.tls_master, authority) as master:
        broker = broker_of(master)
    with plain(broker) as early:
        with secure(broker, authority):
            pass  # the server accepts in order, so it has accepted the earlier one too
        one_way.stop_broker(1)
        one_way.start_broker(1)
        try:
            connection = trusting(authority).wrap_socket(early, server_hostname="127.0.0.1")
        except OSError:
            return
        with connection:
            assert is_closed(connection)


def test_faults_and_restarts_apply_to_the_tls_port(one_way: EmbeddedTubeMQ, authority: Authority) -> None:
    with secure(one_way.tls_master, authority) as master:
        broker = broker_of(master)
    with secure(broker, authority) as connection:
        one_way.stop_broker(1)
        assert connection.until_the_end() == b""
    with pytest.raises(ConnectionRefusedError):
        plain(broker)
    one_way.start_broker(1)
    with secure(one_way.tls_master, authority) as master:
        assert broker_of(master) == broker
        with one_way.on("producer_register", times=1).close_mid_frame() as fault:
            master.ask(REGISTER)
            master.until_the_end()
        assert fault.fired == 1


@pytest.mark.parametrize("missing", ["cert", "key", "client_ca"])
def test_a_missing_file_is_an_error_at_once(server_cert: Certificate, tmp_path: Path, missing: str) -> None:
    files = {"cert": str(server_cert.cert), "key": str(server_cert.key), missing: str(tmp_path / "none.pem")}
    with pytest.raises(OSError, match=r"No such file"):
        EmbeddedTubeMQ(tls=TLSFiles(**files)).close()
