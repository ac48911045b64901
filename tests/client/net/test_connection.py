"""One connection, against scripted peers."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.peers import Peer, Serve, answering, echo, refused_address, reply_bytes, requests, silent
from tests.waiting import wait_until
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response

pytestmark = pytest.mark.timeout(60)

SOON, LATE = 0.05, 600.0  # seconds


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_GRACE", SOON)
    monkeypatch.setattr(connection_module, "_framings", {})


@contextmanager
def connected(peer: Peer, framing: Framing | None = Framing.STANDARD) -> Iterator[Connection]:
    with peer:
        connection = connect(peer.address, framing, timeout=10.0)
        try:
            yield connection
        finally:
            connection.close()


def submit(connection: Connection, body: bytes, timeout: float = LATE) -> int:
    return connection.submit_bytes(ServiceType.BROKER_READ, Method.GET_MESSAGE, body, timeout)


def response(body: bytes) -> Response:
    return Response(Method.GET_MESSAGE, body)


# Replies


@pytest.mark.parametrize("framing", list(Framing))
def test_replies_belong_to_their_requests_in_any_order(framing: Framing) -> None:
    def serve(peer: socket.socket) -> None:
        asked = requests(peer, framing)
        three = [next(asked) for _ in range(3)]
        for serial_no, request in reversed(three):
            peer.sendall(reply_bytes(serial_no, echo(request), framing))
        silent(peer)

    with connected(Peer(serve), framing) as connection:
        numbers = [submit(connection, body) for body in (b"first", b"second", b"third")]
        assert repr(connection).endswith("3 unanswered>")
        assert [connection.reply(number) for number in numbers] == [
            response(b"first"),
            response(b"second"),
            response(b"third"),
        ]
        assert connection.unanswered == 0


def test_an_exception_of_the_server_is_a_reply() -> None:
    failure = Failure("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "I am a standby")
    with connected(Peer(answering(lambda request: failure))) as connection:
        assert connection.reply(submit(connection, b"")) == failure
        assert not connection.closed


def test_replies_that_nobody_asked_for_yet_can_be_taken_together() -> None:
    with connected(Peer(answering(echo))) as connection:
        numbers = [submit(connection, body) for body in (b"first", b"second")]
        connection.reply(numbers[1])
        assert connection.answered(numbers[0])
        assert connection.take() == {numbers[0]: response(b"first")}
        assert connection.take() == {}


def test_long_pipelines_do_not_block_each_other() -> None:
    """The peer reads nothing more while nobody takes its replies."""
    body = bytes(1 << 20)
    with connected(Peer(answering(echo))) as connection:
        numbers = [submit(connection, b"%d" % n + body) for n in range(32)]
        for n, number in enumerate(numbers):
            assert connection.reply(number) == response(b"%d" % n + body)


def test_a_request_that_fits_into_no_frame_does_no_harm() -> None:
    with connected(Peer(answering(echo, Framing.PREFIXED)), Framing.PREFIXED) as connection:
        with pytest.raises(ProtocolError, match="a frame's body has 1 to"):
            submit(connection, bytes(6 << 20))
        assert connection.reply(submit(connection, b"small")) == response(b"small")


# Time


def test_silence_ends_at_the_requests_own_timeout_and_closes() -> None:
    with connected(Peer(silent)) as connection:
        patient = submit(connection, b"", LATE)
        hasty = submit(connection, b"", SOON)
        with pytest.raises(TransportError, match=r"did not answer in time; if its port .*tubemq.rpc.framing.*standard"):
            connection.reply(hasty)
        assert connection.closed
        assert repr(connection).endswith("closed>")
        with pytest.raises(TransportError, match="is closed"):
            connection.reply(patient)
        with pytest.raises(TransportError, match="is closed"):
            submit(connection, b"")
        with pytest.raises(TransportError, match="is closed"):
            connection.flush()


def test_a_reply_that_waited_for_its_reader_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_for = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + busy_for)
    monkeypatch.setattr(connection_module, "time", clock)
    with connected(Peer(answering(echo))) as connection:
        number = submit(connection, b"here since long", 10.0)
        connection.flush()
        select.select([connection._socket], [], [])
        busy_for = 3600.0
        assert connection.reply(number) == response(b"here since long")


def test_nobody_is_late_while_bytes_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_for = 0.0
    monkeypatch.setattr(connection_module, "_GRACE", 10.0)
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + busy_for))

    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        for byte in reply_bytes(serial_no, echo(request)):
            peer.sendall(bytes([byte]))
        silent(peer)

    with connected(Peer(serve)) as connection:
        number = submit(connection, b"x" * 300, 1.0)
        connection.flush()
        busy_for = 3600.0
        assert connection.reply(number) == response(b"x" * 300)


# Peers that are none


def test_nobody_there() -> None:
    address = refused_address()
    with pytest.raises(TransportError, match=f"cannot connect to {address}: Connection refused"):
        connect(address, Framing.STANDARD, 1.0)


@pytest.mark.parametrize("sent", [0, 1, 20], ids="after {} bytes".format)
def test_a_peer_that_closes(sent: int) -> None:
    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        peer.sendall(reply_bytes(serial_no, echo(request))[:sent])

    with connected(Peer(serve)) as connection:
        number = submit(connection, b"hello")
        with pytest.raises(TransportError, match=f"the connection to {connection.address} broke: the peer closed it"):
            connection.reply(number)
        assert connection.closed


def test_what_the_peer_said_before_it_closed_counts() -> None:
    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        peer.sendall(reply_bytes(serial_no, echo(request)))

    with connected(Peer(serve)) as connection:
        first, second = submit(connection, b"first"), submit(connection, b"second")
        assert connection.reply(first) == response(b"first")
        with pytest.raises(TransportError):
            connection.reply(second)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50", bytes(64), b"\xff" * 64],
    ids=["HTTP", "TLS", "zeros", "ones"],
)
def test_a_peer_that_speaks_something_else(said: bytes, framing: Framing) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(said)
        silent(peer)

    with connected(Peer(serve), framing) as connection:
        number = submit(connection, b"hello")
        with pytest.raises(ProtocolError, match=f"does not speak TubeMQ's protocol .{framing.value}.*") as raised:
            connection.reply(number)
        assert repr(said[:16])[2:-1] in str(raised.value)
        assert connection.closed


@pytest.mark.parametrize(
    ("serial_no", "reply", "message"),
    [
        (77, response(b""), "serial number 77, which no request waits for"),
        (1, Response(Method.COMMIT_OFFSET, b""), "method 17 was answered as method 18"),
    ],
)
def test_a_reply_to_something_else(serial_no: int, reply: Response, message: str) -> None:
    def serve(peer: socket.socket) -> None:
        next(requests(peer))
        peer.sendall(reply_bytes(serial_no, reply))
        silent(peer)

    with connected(Peer(serve)) as connection:
        number = submit(connection, b"")
        with pytest.raises(ProtocolError, match=message):
            connection.reply(number)
        assert connection.closed


# Reuse


def test_still_open_until_something_comes_unasked() -> None:
    with connected(Peer(answering(echo))) as connection:
        assert connection.still_open()
        number = submit(connection, b"")
        assert not connection.still_open()
        connection.reply(number)
        assert connection.still_open()
        connection.close()
        assert not connection.still_open()


def test_no_longer_open_when_the_peer_has_hung_up() -> None:
    peer = Peer(silent)
    with connected(peer) as connection:
        assert connection.still_open()
        peer.hang_up()
        select.select([connection._socket], [], [])
        assert not connection.still_open()


# Which framing


@pytest.mark.parametrize("framing", list(Framing))
def test_the_framing_is_found_and_remembered(framing: Framing, monkeypatch: pytest.MonkeyPatch) -> None:
    if framing is Framing.STANDARD:  # the other one is not tried beside it, however long the answer takes
        monkeypatch.setattr(connection_module, "_SECOND_FRAMING_AFTER", LATE)
    with Peer(_of(framing)) as peer:
        for tried in (2 if framing is Framing.PREFIXED else 1, 1):
            before = peer.connections
            connection = connect(peer.address, None, 10.0)
            assert connection.framing is framing
            assert connection.reply(submit(connection, b"hello")) == response(b"hello")
            assert peer.connections - before == tried
            connection.close()


def test_a_slow_server_is_not_taken_for_one_of_the_other_framing() -> None:
    """It answers the first probe only when the second one has come."""

    def serve(connection: socket.socket) -> None:
        if connection.recv(1, socket.MSG_PEEK) != b"\xff":
            silent(connection)  # as servers are to the framing they do not know
            return
        for serial_no, request in requests(connection):
            while peer.connections < 2:
                time.sleep(0.001)
            connection.sendall(reply_bytes(serial_no, echo(request)))

    peer = Peer(serve)
    with connected(peer, None) as connection:
        assert connection.framing is Framing.STANDARD
        assert connection.reply(submit(connection, b"hello")) == response(b"hello")


def test_neither_framing_is_answered() -> None:
    with Peer(silent) as peer:
        with pytest.raises(
            TransportError, match=r"answers nothing within 0\.5 s in either framing; is it the plain port"
        ):
            connect(peer.address, None, 0.5)
        wait_until(lambda: peer.connections == 2)


def test_probing_a_peer_that_closes() -> None:
    with Peer(lambda connection: None) as peer, pytest.raises(TransportError, match="the peer closed it"):
        connect(peer.address, None, 10.0)


def test_probing_a_peer_that_speaks_something_else() -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Peer(serve) as peer, pytest.raises(ProtocolError, match=r"HTTP/1\.1 400"):
        connect(peer.address, None, 10.0)


def test_a_server_that_came_back_with_the_other_framing_is_found_again() -> None:
    speaks = Framing.PREFIXED
    with Peer(lambda connection: _of(speaks)(connection)) as peer:
        connect(peer.address, None, 10.0).close()
        speaks = Framing.STANDARD
        upgraded = connect(peer.address, None, 10.0)
        with pytest.raises(TransportError, match="did not answer in time"):
            upgraded.reply(submit(upgraded, b"", SOON))
        connection = connect(peer.address, None, 10.0)
        assert connection.framing is Framing.STANDARD
        connection.close()


def _of(framing: Framing) -> Serve:
    """A server of one framing: silent to the other one, as real ones are."""

    def serve(connection: socket.socket) -> None:
        is_standard = connection.recv(1, socket.MSG_PEEK) == b"\xff"
        if is_standard == (framing is Framing.STANDARD):
            answering(echo, framing)(connection)
        else:
            silent(connection)

    return serve
