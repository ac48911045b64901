# SPDX-License-Identifier: Apache-2.0
"""Connections over TLS: which servers are trusted, what errors say, and that requests work as without TLS."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.certificates import Authority, Certificate, openssl, tls_files, trusting
from tests.peers import Peer, Serve, answering, echo, message_reply, reply_bytes, requests, silent
from tests.without_spark.query import Query, write
from tubemq_spark.client import forget_servers
from tubemq_spark.client import tls as tls_module
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.net.connection import Connection, connect, wait_for_any
from tubemq_spark.client.net.pool import ConnectionPool
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.client.tls import TlsSettings, tls_context
from tubemq_spark.errors import ConfigError, ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Request, Response
from tubemq_spark.protocol.metadata import Address, parse_addresses
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ

pytestmark = pytest.mark.timeout(120)

TIMEOUT = 20.0  # seconds
SOON = 0.2
MIB = 1 << 20
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


@pytest.fixture(scope="module")
def elsewhere(authority: Authority) -> Certificate:
    """Signed by the authority, for a host of another name."""
    return authority.certify("elsewhere", "DNS:elsewhere.example")


@pytest.fixture
def one_way(server_cert: Certificate) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"one": 1, "pair": 2}, tls=tls_files(server_cert)) as tubemq:
        yield tubemq
        forget_servers()


def secured(serve: Serve, own: Certificate, version: ssl.TLSVersion = TLS_1_3, ca: Path | None = None) -> Peer:
    """Return a server over that TLS version. With `ca` it asks clients for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(own.cert, own.key)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)

    def over_tls(connection: socket.socket) -> None:
        # Of a copy, so that the peer can break the connection.
        with context.wrap_socket(connection.dup(), server_side=True, suppress_ragged_eofs=False) as secure:
            serve(secure)

    return Peer(over_tls)


@contextmanager
def connected(peer: Peer, tls: TlsSettings, framing: Framing | None = Framing.STANDARD) -> Iterator[Connection]:
    with peer:
        connection = connect(peer.address, framing, TIMEOUT, tls)
        try:
            yield connection
        finally:
            connection.close()


def submit(connection: Connection, body: bytes) -> int:
    return connection.submit_request(Request(ServiceType.BROKER_READ, Method.GET_MESSAGE, int(TIMEOUT * 1000), body))


def response(body: bytes) -> Response:
    return Response(Method.GET_MESSAGE, body)


def works(connection: Connection) -> bool:
    return connection.reply(submit(connection, b"hello")) == response(b"hello")


def address(text: str) -> Address:
    return parse_addresses(text)[0]


def at(tubemq: EmbeddedTubeMQ, tls: TlsSettings) -> dict[str, Any]:
    """Return the settings for `Query` and `write`."""
    return {"masters": parse_addresses(tubemq.tls_master), "tls": tls, "rpc_timeout": TIMEOUT, "framing": None}


# As without TLS


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
@pytest.mark.parametrize("framing", list(Framing))
def test_replies_belong_to_their_requests(
    authority: Authority, server_cert: Certificate, framing: Framing, version: ssl.TLSVersion
) -> None:
    peer = secured(answering(echo, framing), server_cert, version)
    with connected(peer, trusting(authority), framing) as connection:
        numbers = [submit(connection, body) for body in (b"first", b"second", b"third")]
        assert [connection.reply(n) for n in numbers] == [response(b"first"), response(b"second"), response(b"third")]


def test_long_pipelines_do_not_block_each_other(authority: Authority, server_cert: Certificate) -> None:
    """The peer reads only while somebody reads its replies."""
    bodies = [bytes([number]) * (MIB + number) for number in range(32)]
    with connected(secured(answering(echo), server_cert), trusting(authority)) as connection:
        numbers = [submit(connection, body) for body in bodies]
        for number, body in zip(numbers, bodies, strict=True):
            assert connection.reply(number) == response(body)


def test_waiting_does_not_miss_bytes_that_are_decrypted_already(authority: Authority, server_cert: Certificate) -> None:
    """All replies come together, after the last request."""

    def serve(peer: socket.socket) -> None:
        asked = requests(peer)
        replies = [reply_bytes(serial_no, echo(request)) for serial_no, request in (next(asked) for _ in range(50))]
        peer.sendall(b"".join(replies))
        silent(peer)

    with connected(secured(serve, server_cert), trusting(authority)) as connection:
        numbers = [submit(connection, bytes(20_000)) for _ in range(50)]
        while not all(map(connection.answered, numbers)):
            wait_for_any([connection], TIMEOUT)
            connection.flush()
        assert [connection.reply(number) for number in numbers] == [response(bytes(20_000))] * 50


@pytest.mark.parametrize(("release", "framing"), [("1.2", Framing.PREFIXED), ("2.5", Framing.STANDARD)])
def test_the_framing_is_detected_over_tls(
    authority: Authority, server_cert: Certificate, release: str, framing: Framing
) -> None:
    with EmbeddedTubeMQ(tls=tls_files(server_cert), release=release) as tubemq:
        connection = connect(address(tubemq.tls_master), None, TIMEOUT, trusting(authority))
        assert connection.framing is framing
        connection.close()


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
def test_an_idle_tls_connection_is_reused(
    authority: Authority, server_cert: Certificate, version: ssl.TLSVersion
) -> None:
    pool = ConnectionPool()
    settings = ClientSettings(masters=(), framing=Framing.STANDARD, tls=trusting(authority))
    with secured(answering(echo), server_cert, version) as peer:
        for _ in range(3):
            with pool.lease(peer.address, settings) as connection:
                assert works(connection)
        assert peer.connections == 1
        pool.close()


def test_only_settings_with_the_same_authority_share_a_connection(
    authority: Authority, other_authority: Authority, server_cert: Certificate
) -> None:
    pool = ConnectionPool()
    settings = ClientSettings(masters=(), framing=Framing.STANDARD, tls=trusting(authority))
    with secured(answering(echo), server_cert) as peer:
        with pool.lease(peer.address, settings) as connection:
            assert works(connection)
        with (
            pytest.raises(ProtocolError, match="is not trusted"),
            pool.lease(peer.address, replace(settings, tls=trusting(other_authority))),
        ):
            pytest.fail("it was given a connection that it would not have made")
        pool.close()


def test_session_tickets_do_not_end_an_idle_connection(authority: Authority, server_cert: Certificate) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1)
        peer.sendall(b"x")
        silent(peer)

    with connected(secured(serve, server_cert), trusting(authority)) as connection:
        select.select([connection._stream.socket], [], [])  # tickets for later sessions
        assert connection.still_open()
        connection._stream.socket.send(b"?")
        while connection.still_open():
            select.select([connection._stream.socket], [], [])


def test_a_tls_connection_that_the_peer_closed_is_not_still_open(
    authority: Authority, server_cert: Certificate
) -> None:
    with connected(secured(silent, server_cert), trusting(authority)) as connection:
        assert connection.still_open()
    with connected(secured(lambda peer: None, server_cert), trusting(authority)) as connection:
        while connection.still_open():
            select.select([connection._stream.socket], [], [])


@pytest.mark.parametrize("sent", [0, 1, 20], ids="after {} bytes".format)
def test_a_tls_peer_that_closes_is_a_transport_error(authority: Authority, server_cert: Certificate, sent: int) -> None:
    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        peer.sendall(reply_bytes(serial_no, echo(request))[:sent])

    with connected(secured(serve, server_cert), trusting(authority)) as connection:
        number = submit(connection, b"hello")
        with pytest.raises(TransportError, match=f"the connection to {connection.address} broke: the peer closed it$"):
            connection.reply(number)
        assert connection.closed


def test_closing_sends_the_closing_alert(authority: Authority, server_cert: Certificate) -> None:
    ends = []
    begun = threading.Event()

    def serve(peer: socket.socket) -> None:
        begun.set()
        try:
            ends.append(peer.recv(1))
        except OSError as error:
            ends.append(repr(error).encode())

    with connected(secured(serve, server_cert), trusting(authority)):
        assert begun.wait(TIMEOUT)  # or the end may come into the server's part of the handshake
    assert ends == [b""]


# Whom to trust


def test_a_server_of_an_unknown_authority_is_not_trusted(one_way: EmbeddedTubeMQ, other_authority: Authority) -> None:
    master = address(one_way.tls_master)
    with pytest.raises(
        ProtocolError, match=rf"certificate of {master} is not trusted: .*; name the file .* 'tubemq\.tls\.ca'"
    ):
        connect(master, None, TIMEOUT, trusting(other_authority))


def test_the_systems_authorities_are_trusted(
    one_way: EmbeddedTubeMQ, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ssl.get_default_verify_paths().openssl_cafile_env, str(authority.own.cert))
    tls_module._context().cache_clear()
    connect(address(one_way.tls_master), None, TIMEOUT, TlsSettings()).close()
    tls_module._context().cache_clear()


@pytest.mark.parametrize("by_name", [True, False], ids=["name", "address"])
def test_a_certificate_of_another_host_is_refused_unless_names_are_not_verified(
    authority: Authority, server_cert: Certificate, elsewhere: Certificate, by_name: bool
) -> None:
    with secured(answering(echo), server_cert if by_name else elsewhere) as peer:
        asked = peer.address._replace(host="localhost" if by_name else "127.0.0.1")
        with pytest.raises(
            ProtocolError, match=rf"of {asked} is not trusted: .*'tubemq\.tls\.verifyHostname' to false"
        ):
            connect(asked, Framing.STANDARD, TIMEOUT, trusting(authority))
        connection = connect(asked, Framing.STANDARD, TIMEOUT, trusting(authority, verify_hostname=False))
        assert works(connection)
        connection.close()


def test_the_authority_is_verified_even_if_names_are_not(server_cert: Certificate, other_authority: Authority) -> None:
    with secured(answering(echo), server_cert) as peer, pytest.raises(ProtocolError, match=r"'tubemq\.tls\.ca'"):
        connect(peer.address, Framing.STANDARD, TIMEOUT, trusting(other_authority, verify_hostname=False))


# Plain and TLS mixed up


HASTY = Timings(tls_handshake_timeout=SOON)


def test_tls_to_a_plain_port_times_out_with_a_hint(one_way: EmbeddedTubeMQ, authority: Authority) -> None:
    master = address(one_way.master)
    with pytest.raises(
        TransportError,
        match=rf"cannot connect to {master}: no answer to the TLS handshake within 0\.2 s\. Check that it is",
    ):
        connect(master, None, TIMEOUT, trusting(authority), HASTY)


def test_tls_to_a_port_that_speaks_http_has_a_hint(authority: Authority) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Peer(serve) as peer, pytest.raises(ProtocolError, match=r"does not speak TLS .*Check that it is the TLS port"):
        connect(peer.address, None, TIMEOUT, trusting(authority))


@pytest.mark.parametrize("framing", [None, *Framing])
def test_a_plain_connection_to_a_tls_port_has_a_hint(one_way: EmbeddedTubeMQ, framing: Framing | None) -> None:
    with pytest.raises(
        (TransportError, ProtocolError), match=r"if the port uses TLS, set option 'tubemq\.tls\.enabled'"
    ):
        works(connect(address(one_way.tls_master), framing, TIMEOUT))


def test_a_tls_alert_on_a_plain_connection_has_a_hint() -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(b"\x15\x03\x03\x00\x02\x02\x50" + bytes(9))
        silent(peer)

    with Peer(serve) as peer, pytest.raises(ProtocolError, match=r"if the port uses TLS"):
        works(connect(peer.address, Framing.STANDARD, TIMEOUT))


def test_a_server_that_answered_before_gets_no_tls_hint() -> None:
    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        peer.sendall(reply_bytes(serial_no, echo(request)))

    with Peer(serve) as peer:
        connection = connect(peer.address, Framing.STANDARD, TIMEOUT)
        assert works(connection)
        with pytest.raises(TransportError) as raised:
            works(connection)
        assert "TLS" not in str(raised.value)


# The files


def test_a_file_that_an_executor_lacks_is_a_transport_error(server_cert: Certificate, tmp_path: Path) -> None:
    with (
        secured(silent, server_cert) as peer,
        pytest.raises(
            TransportError, match=r"option 'tubemq\.tls\.ca': cannot read .*none\.pem.*. Each executor needs"
        ),
    ):
        connect(peer.address, None, TIMEOUT, TlsSettings(ca=str(tmp_path / "none.pem")))


def test_a_replaced_file_is_read_again(
    authority: Authority, other_authority: Authority, server_cert: Certificate, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    shutil.copy(other_authority.own.cert, file)
    tls = TlsSettings(ca=str(file))
    with secured(answering(echo), server_cert) as peer:
        with pytest.raises(ProtocolError, match="is not trusted"):
            connect(peer.address, Framing.STANDARD, TIMEOUT, tls)
        shutil.copy(authority.own.cert, file)
        os.utime(file, ns=(1, 1))  # another time than before, however fast this went
        connection = connect(peer.address, Framing.STANDARD, TIMEOUT, tls)
        assert works(connection)
        connection.close()


@pytest.fixture
def encrypted(client_cert: Certificate, tmp_path: Path) -> Path:
    file = tmp_path / "encrypted.key"
    openssl("pkey", "-in", client_cert.key, "-aes256", "-passout", "pass:open sesame", "-out", file)
    return file


@pytest.mark.parametrize(
    ("password", "problem"),
    [(None, "is missing"), ("", "does not open it"), ("close", "does not open it"), ("x" * 2000, "does not open it")],
    ids=["none", "empty", "wrong", "too long"],
)
def test_a_missing_or_wrong_key_password_is_a_config_error(
    authority: Authority, client_cert: Certificate, encrypted: Path, password: str | None, problem: str
) -> None:
    tls = trusting(authority, client_cert, key=str(encrypted), key_password=password)
    with pytest.raises(ConfigError) as raised:
        tls_context(tls)
    assert str(raised.value) == (
        f"option 'tubemq.tls.key': {encrypted} is encrypted, and option 'tubemq.tls.keyPassword' {problem}"
    )


def test_a_key_of_another_certificate_is_a_config_error(
    authority: Authority, client_cert: Certificate, server_cert: Certificate
) -> None:
    with pytest.raises(
        ConfigError, match=r"'tubemq\.tls\.key': .* are not a PEM certificate and its private key \(key val"
    ):
        tls_context(trusting(authority, client_cert, key=str(server_cert.key)))


# Writing and reading


@pytest.mark.parametrize("release", ["1.2", "2.5"])
@pytest.mark.parametrize("kind", ["one-way", "two-way", "another host"])
def test_rows_are_written_and_read_over_tls(
    authority: Authority,
    server_cert: Certificate,
    client_cert: Certificate,
    elsewhere: Certificate,
    kind: str,
    release: str,
) -> None:
    servers, tls = {
        "one-way": (tls_files(server_cert), trusting(authority)),
        "two-way": (tls_files(server_cert, authority), trusting(authority, client_cert)),
        "another host": (
            tls_files(elsewhere), trusting(authority, verify_hostname=False)
        ),
    }[kind]  # fmt: skip
    rows = [b"row %d" % number for number in range(1000)]
    with EmbeddedTubeMQ({"pair": 2}, tls=servers, release=release) as tubemq:
        assert write(tubemq, rows, **at(tubemq, tls)) == 1000
        query = Query(tubemq, "pair", **at(tubemq, tls))
        query.run()
        forget_servers()
    assert Counter(row.body for given in query.rows.values() for row in given) == Counter(rows)


@pytest.mark.parametrize("fault", ["close_mid_frame", "close_connection"])
def test_broken_tls_connections_lose_no_rows(one_way: EmbeddedTubeMQ, authority: Authority, fault: str) -> None:
    rows = [b"row %d" % number for number in range(300)]
    client = {**at(one_way, trusting(authority)), "retry_for": TIMEOUT}
    with getattr(one_way.on("send_message", nth=100, times=1), fault)() as broken:
        assert write(one_way, rows, **client) == 300
    assert broken.fired == 1
    query = Query(one_way, "pair", **client)
    with getattr(one_way.on("get_message", nth=2, times=1), fault)() as broken:
        query.run()
    assert broken.fired == 1
    stored = [message.body for message in one_way.messages("pair")]
    assert set(stored) == set(rows)  # what was not acknowledged was sent again
    assert Counter(row.body for given in query.rows.values() for row in given) == Counter(stored)


@pytest.mark.parametrize(("over_tls", "port"), [(False, 8123), (True, 8124)], ids=["plain", "TLS"])
def test_a_broker_without_a_port_has_the_default_tls_port(
    authority: Authority, server_cert: Certificate, over_tls: bool, port: int
) -> None:
    replies: dict[int, Message] = {
        Method.PRODUCER_REGISTER: pb.RegisterResponseM2P(
            success=True, errCode=200, errMsg="", brokerCheckSum=1, brokerInfos=["1:127.0.0.1: "]
        ),
        Method.PRODUCER_HEARTBEAT: pb.HeartResponseM2P(
            success=True, errCode=200, errMsg="", brokerCheckSum=1, topicInfos=["demo#1:1:1"]
        ),
        Method.PRODUCER_CLOSE: pb.CloseResponseM2P(success=True, errCode=200, errMsg=""),
    }

    def answer(request: Request) -> Response:
        return message_reply(request, replies[request.method])

    peer = secured(answering(answer), server_cert) if over_tls else Peer(answering(answer))
    tls = trusting(authority) if over_tls else None
    with peer:
        session = ProducerSession(ClientSettings((peer.address,), framing=Framing.STANDARD, tls=tls))
        session.add_topics(["demo"])
        assert session.cluster.brokers[1].address.port == port
        session.close()
        forget_servers()


def test_a_wrong_authority_fails_without_retries(one_way: EmbeddedTubeMQ, other_authority: Authority) -> None:
    with pytest.raises(ProtocolError, match=r"'tubemq\.tls\.ca'"):
        Query(one_way, "pair", **{**at(one_way, trusting(other_authority)), "retry_for": 3600.0}).run()
