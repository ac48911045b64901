"""Peers that are slow on purpose, and slow links, which are not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.client.net.test_connection import SOON, connected, response, submit
from tests.peers import Peer, reply_bytes, requests, silent
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.metadata import Address, Broker, Partition

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_GRACE", SOON)
    monkeypatch.setattr(connection_module, "_framings", {})


def trickling(connection: socket.socket) -> None:
    """Answers with a legal frame of a megabyte, byte by byte, each before the reader loses its patience."""
    if connection.recv(1, socket.MSG_PEEK) != b"\xff":
        silent(connection)  # as servers are to the framing they do not know
        return
    serial_no, request = next(requests(connection))
    for byte in reply_bytes(serial_no, Response(request.method, bytes(1 << 20))):
        connection.sendall(bytes([byte]))
        time.sleep(0.9 * SOON)


def as_consumer(settings: ClientSettings) -> None:
    ConsumerSession(settings, "g", ["demo"]).register()


def as_producer(settings: ClientSettings) -> None:
    ProducerSession(settings).refresh()


@pytest.mark.parametrize("ask", [as_consumer, as_producer])
def test_a_master_that_trickles_holds_nobody(ask: Callable[[ClientSettings], None]) -> None:
    with Peer(trickling) as peer:
        settings = ClientSettings((peer.address,), rpc_timeout=0.2, framing=Framing.STANDARD, retry_for=0.0)
        with pytest.raises(TransportError, match=r"no master answered: .*did not answer in time"):
            ask(settings)


def test_a_broker_that_trickles_holds_no_reader() -> None:
    with Peer(trickling) as peer:
        settings = ClientSettings((), rpc_timeout=0.2, framing=Framing.STANDARD, retry_for=0.0)
        wanted = RangeToRead(Partition(1, "demo", 0), 0, 28, owns_store=True)
        snapshot = PartitionSnapshot(Broker(1, peer.address))
        reader = PartitionReader(settings, "g", ClaimId("q", run=1, batch=1, task=0), wanted, snapshot)
        with pytest.raises(TransportError, match=r"1:demo:0 at broker 1 .* gave up .*did not answer in time"):
            next(reader.batches())


def test_one_who_waits_for_several_replies_is_not_held_either() -> None:
    with connected(Peer(trickling)) as connection:
        numbers = [submit(connection, b"", 0.2) for _ in range(3)]
        for number in numbers:
            with pytest.raises(TransportError):
                connection.reply(number)


def test_who_finds_out_the_framing_is_not_held() -> None:
    with Peer(trickling) as peer, pytest.raises(TransportError, match=r"answers nothing within 0\.5 s"):
        connect(peer.address, None, 0.5)


def test_a_tls_handshake_that_trickles_ends() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        for byte in b"\x16\x03\x03\x40\x00" + bytes(1 << 14):
            connection.sendall(bytes([byte]))
            time.sleep(0.9 * SOON)

    with Peer(serve) as peer, pytest.raises(TransportError, match="no answer to the TLS handshake"):
        Connection(peer.address, Framing.STANDARD, 0.2, TlsSettings(verify_hostname=False))


@pytest.mark.parametrize(("rate", "arrives"), [(32 * 1024, True), (8 * 1024, False)])
def test_a_slow_link_has_time_for_a_long_reply(rate: int, arrives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reader's clock the link carries `rate` bytes a second."""

    def serve(connection: socket.socket) -> None:
        serial_no, request = next(requests(connection))
        reply = reply_bytes(serial_no, Response(request.method, bytes(1 << 20)))
        for cut in range(0, len(reply), 4096):
            connection.sendall(reply[cut : cut + 4096])
            read.acquire(timeout=1.0)

    def monotonic() -> float:
        read.release()
        return time.monotonic() + connection._received / rate

    read = threading.Semaphore(0)
    with connected(Peer(serve)) as connection:
        monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=monotonic))
        number = submit(connection, b"", 5.0)
        if arrives:
            assert connection.reply(number) == response(bytes(1 << 20))
        else:
            with pytest.raises(TransportError, match="did not answer in time"):
                connection.reply(number)


def test_the_hosts_of_one_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three hosts take no connection and say nothing."""
    given: list[float | None] = []
    settimeout = socket.socket.settimeout

    def note(self: socket.socket, seconds: float | None) -> None:
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
            connection = Connection(Address("three.hosts", 8715), Framing.STANDARD, 0.6)
            connection.close()
    assert len(given) == 3
    assert sum(seconds for seconds in given[:2] if seconds is not None) < 0.6
