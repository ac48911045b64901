# SPDX-License-Identifier: Apache-2.0
"""One connection, against scripted peers."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from tests.client.net.connecting import LATE, SOON, connected, response, submit, trickling
from tests.clocks import SkippingClock
from tests.peers import Peer, answering, echo, reply_bytes, requests, silent
from tubemq_spark.client.clock import SystemClock
from tubemq_spark.client.net.connection import connect
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, encode_request
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.send_acks import SendAck

pytestmark = pytest.mark.timeout(60)

PATIENCE = 30.0  # seconds


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


def test_replies_can_be_forgotten() -> None:
    """Replies to requests, and to sends."""
    stored = Response(Method.SEND_MESSAGE, SendAck(success=True, errCode=200, errMsg="").SerializeToString())
    with connected(Peer(answering(lambda it: stored if it.method == Method.SEND_MESSAGE else echo(it)))) as connection:
        for forgets in (False, True):
            numbers = connection.next_sends(2)
            connection.submit_sends(numbers, b"".join(map(send, numbers)), wants_answers=False)
            first = submit(connection, b"first")
            connection.reply(submit(connection, b"second"))
            assert connection.answered(first)
            if forgets:
                connection.forget_replies()
            assert connection.answered(first) is not forgets
            assert connection.take_outcomes() == [] if forgets else [2]
            connection.forget_replies()


def send(serial_no: int) -> bytes:
    request = Request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, 10_000, b"")
    return encode_frame(serial_no, encode_request(request), Framing.STANDARD)


@pytest.mark.parametrize("answer", [echo, lambda _: Failure("java.lang.Exception", "no such method")])
def test_a_ping_waits_for_any_answer(answer: Callable[[Request], Response | Failure]) -> None:
    with connected(Peer(answering(answer))) as connection:
        connection.ping(LATE)
        assert not connection.unanswered


def test_a_ping_without_answer_is_an_error() -> None:
    with connected(Peer(silent)) as connection, pytest.raises(TransportError, match="did not answer in time"):
        connection.ping(SOON)


def test_long_pipelines_do_not_block_each_other() -> None:
    """The peer reads only while somebody reads its replies."""
    body = bytes(1 << 20)
    with connected(Peer(answering(echo))) as connection:
        numbers = [submit(connection, b"%d" % n + body) for n in range(32)]
        for n, number in enumerate(numbers):
            assert connection.reply(number) == response(b"%d" % n + body)


def test_a_request_that_is_too_long_leaves_the_connection_usable() -> None:
    with connected(Peer(answering(echo, Framing.PREFIXED)), Framing.PREFIXED) as connection:
        with pytest.raises(ProtocolError, match="a frame's body has 1 to"):
            submit(connection, bytes(6 << 20))
        assert connection.reply(submit(connection, b"small")) == response(b"small")


# Time


def test_a_request_timeout_closes_the_connection() -> None:
    with connected(Peer(silent)) as connection:
        patient = submit(connection, b"", LATE)
        hasty = submit(connection, b"", SOON)
        with pytest.raises(
            TransportError, match=r"did not answer in time. Check its port .*tubemq.rpc.framing.*standard"
        ):
            connection.reply(hasty)
        assert connection.closed
        assert repr(connection).endswith("closed>")
        with pytest.raises(TransportError, match="is closed"):
            connection.reply(patient)
        with pytest.raises(TransportError, match="is closed"):
            submit(connection, b"")
        with pytest.raises(TransportError, match="is closed"):
            connection.flush()


def test_a_reply_that_came_in_before_a_late_reader_is_in_time() -> None:
    clock = SkippingClock()
    with connected(Peer(answering(echo)), clock=clock) as connection:
        number = submit(connection, b"here since long", 10.0)
        connection.flush()
        if not connection.answered(number):  # the flush may have read the reply already
            select.select([connection._stream.socket], [], [])
        clock.advance(3600.0)
        assert connection.reply(number) == response(b"here since long")


def test_incoming_bytes_extend_the_timeout() -> None:
    clock = SkippingClock()

    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        for byte in reply_bytes(serial_no, echo(request)):
            peer.sendall(bytes([byte]))
        silent(peer)

    with connected(Peer(serve), timings=Timings(slow_peer_grace=10.0), clock=clock) as connection:
        number = submit(connection, b"x" * 300, 1.0)
        connection.flush()
        clock.advance(3600.0)
        assert connection.reply(number) == response(b"x" * 300)


def test_a_peer_that_sends_byte_by_byte_does_not_block_several_replies() -> None:
    with connected(Peer(trickling)) as connection:
        numbers = [submit(connection, b"", 0.2) for _ in range(3)]
        for number in numbers:
            with pytest.raises(TransportError):
                connection.reply(number)


@pytest.mark.parametrize(("rate", "arrives"), [(32 * 1024, True), (8 * 1024, False)])
def test_a_long_reply_over_a_slow_link_has_more_time(rate: int, arrives: bool) -> None:
    """The reader's clock makes the link carry `rate` bytes a second."""

    def serve(connection: socket.socket) -> None:
        serial_no, request = next(requests(connection))
        reply = reply_bytes(serial_no, Response(request.method, bytes(1 << 20)))
        for cut in range(0, len(reply), 4096):
            connection.sendall(reply[cut : cut + 4096])
            read.acquire(timeout=1.0)

    class SlowLink(SystemClock):
        def monotonic(self) -> float:
            read.release()
            return time.monotonic() + connection._stream.received / rate

    read = threading.Semaphore(0)
    with connected(Peer(serve)) as connection:
        connection._clock = SlowLink()
        number = submit(connection, b"", 5.0)
        if arrives:
            assert connection.reply(number) == response(bytes(1 << 20))
        else:
            with pytest.raises(TransportError, match="did not answer in time"):
                connection.reply(number)


# Peers that are none


@pytest.mark.parametrize("sent", [0, 1, 20], ids="after {} bytes".format)
def test_a_peer_that_closes_is_a_transport_error(sent: int) -> None:
    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        peer.sendall(reply_bytes(serial_no, echo(request))[:sent])

    with connected(Peer(serve)) as connection:
        number = submit(connection, b"hello")
        with pytest.raises(TransportError, match=f"the connection to {connection.address} broke: the peer closed it"):
            connection.reply(number)
        assert connection.closed


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize(
    "said",
    [b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50", bytes(64), b"\xff" * 64],
    ids=["HTTP", "TLS", "zeros", "ones"],
)
def test_a_peer_that_speaks_another_protocol_is_a_protocol_error(said: bytes, framing: Framing) -> None:
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


# Reuse


def test_an_idle_connection_with_no_unanswered_request_is_still_open() -> None:
    with connected(Peer(answering(echo))) as connection:
        assert connection.still_open()
        number = submit(connection, b"")
        assert not connection.still_open()
        connection.reply(number)
        assert connection.still_open()
        connection.close()
        assert not connection.still_open()


def test_a_connection_that_the_peer_closed_is_not_still_open() -> None:
    peer = Peer(silent)
    with connected(peer) as connection:
        assert connection.still_open()
        peer.hang_up()
        select.select([connection._stream.socket], [], [])
        assert not connection.still_open()


# Both sides write


def test_replies_before_a_reset_are_read_while_there_is_more_to_write() -> None:
    written, broken = threading.Event(), threading.Event()

    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        assert written.wait(PATIENCE)
        peer.sendall(reply_bytes(serial_no, echo(request)))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # with a reset
        broken.set()

    with Peer(serve) as peer:
        connection = connect(peer.address, Framing.STANDARD, PATIENCE)
        first, second = submit(connection, b"first"), submit(connection, bytes(20 << 20))
        connection.flush()
        written.set()
        assert broken.wait(PATIENCE)
        with pytest.raises(TransportError, match="broke"):
            connection.flush()
        assert connection.reply(first) == Response(Method.GET_MESSAGE, b"first")
        with pytest.raises(TransportError, match="broke"):
            connection.reply(second)


def test_a_peer_may_write_all_replies_before_it_reads_on() -> None:
    """It reads the first request, answers all of them, and only then reads on."""
    count = 24

    def serve(peer: socket.socket) -> None:
        serial_no, _ = next(requests(peer))
        for n in range(count):
            peer.sendall(reply_bytes(serial_no + n, Response(Method.GET_MESSAGE, bytes([n]) * (1 << 20))))
        silent(peer)

    with Peer(serve) as peer:
        connection = connect(peer.address, Framing.STANDARD, PATIENCE)
        numbers = [submit(connection, bytes(1 << 20)) for _ in range(count)]
        for n, number in enumerate(numbers):
            assert connection.reply(number) == Response(Method.GET_MESSAGE, bytes([n]) * (1 << 20))
        connection.close()
