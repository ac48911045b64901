# SPDX-License-Identifier: Apache-2.0
"""The framing of a server, found out by probes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.client.net.connecting import HASTY, LATE, SOON, connected, response, submit, trickling
from tests.peers import Peer, Serve, answering, echo, reply_bytes, requests, silent
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.connection import connect
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import Framing

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


def _of(framing: Framing) -> Serve:
    """A server of one framing: silent to the other one, as real ones are."""

    def serve(connection: socket.socket) -> None:
        is_standard = connection.recv(1, socket.MSG_PEEK) == b"\xff"
        if is_standard == (framing is Framing.STANDARD):
            answering(echo, framing)(connection)
        else:
            silent(connection)

    return serve


@pytest.mark.parametrize("framing", list(Framing))
def test_the_framing_is_detected_and_cached(framing: Framing) -> None:
    # The other framing is not tried beside the standard one, however long the answer takes.
    timings = replace(HASTY, second_framing_after=LATE if framing is Framing.STANDARD else SOON)
    with Peer(_of(framing)) as peer:
        for tried in (2 if framing is Framing.PREFIXED else 1, 1):
            before = peer.connections
            connection = connect(peer.address, None, 10.0, timings=timings)
            assert connection.framing is framing
            assert connection.reply(submit(connection, b"hello")) == response(b"hello")
            assert peer.connections - before == tried
            connection.close()


def test_a_slow_answer_to_the_first_probe_still_counts() -> None:
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


def test_no_answer_in_either_framing_is_an_error() -> None:
    with Peer(silent) as peer:
        with pytest.raises(
            TransportError, match=r"does not answer within 0\.5 s in either framing\. Check that it is the plain port"
        ):
            connect(peer.address, None, 0.5)
        wait_until(lambda: peer.connections == 2)


def test_a_timeout_drops_the_cached_framing() -> None:
    speaks = Framing.PREFIXED
    with Peer(lambda connection: _of(speaks)(connection)) as peer:
        connect(peer.address, None, 10.0).close()
        speaks = Framing.STANDARD
        upgraded = connect(peer.address, None, 10.0, timings=HASTY)
        with pytest.raises(TransportError, match="did not answer in time"):
            upgraded.reply(submit(upgraded, b"", SOON))
        connection = connect(peer.address, None, 10.0)
        assert connection.framing is Framing.STANDARD
        connection.close()


def test_a_short_timeout_leaves_time_for_both_framings() -> None:
    def serve(peer: socket.socket) -> None:
        is_standard = peer.recv(1, socket.MSG_PEEK) == b"\xff"
        (silent if is_standard else answering(echo, Framing.PREFIXED))(peer)

    with Peer(serve) as peer:
        connection = connect(peer.address, None, 1.0, timings=replace(HASTY, second_framing_after=LATE))
        assert connection.framing is Framing.PREFIXED
        connection.close()


def test_a_peer_that_sends_byte_by_byte_does_not_block_the_probe() -> None:
    with Peer(trickling) as peer, pytest.raises(TransportError, match=r"does not answer within 0\.5 s"):
        connect(peer.address, None, 0.5, timings=HASTY)
