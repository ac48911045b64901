# SPDX-License-Identifier: Apache-2.0
"""Ports, threads and connections of an embedded cluster."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable

import pytest

from tests.testing.raw import Raw, send
from tests.waiting import wait_until
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.dispatch import Service

CLOSED = "this EmbeddedTubeMQ is closed"


def test_a_handler_that_throws_gives_the_real_servers_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the error, because it is a defect."""

    def divide(request: pb.CloseRequestP2M, reply: pb.CloseResponseM2P) -> None:
        reply.errCode = 1 // len(request.authInfo.authorizedToken)

    service = Service("master 1", [ServiceType.MASTER], {Method.PRODUCER_CLOSE: divide}, {})
    data = pb.CloseRequestP2M(clientId="p").SerializeToString()
    reply = service.answer(Request(ServiceType.MASTER, Method.PRODUCER_CLOSE, 1000, data))
    assert reply == Failure("java.lang.reflect.InvocationTargetException", "")
    (record,) = caplog.records
    assert "ZeroDivisionError" in caplog.text
    assert str(Method.PRODUCER_CLOSE.value) in record.getMessage()


# Back-pressure

ANSWER = 100_000  # bytes
FEW = 300  # answers, more than the system's buffers hold


def test_a_peer_that_reads_no_answers_gets_no_work_done() -> None:
    """The server handles its requests in order when it reads again."""
    with EmbeddedTubeMQ(topics={"demo": 1}) as tubemq, Raw(tubemq.broker_address(1)) as raw:
        fault = tubemq.on("send_message").throw("java.lang.Exception", "x" * ANSWER)
        numbers = raw.ask(*[send(b"x")] * 5 * FEW)
        wait_until(lambda: fault.fired)
        with Raw(
            tubemq.broker_address(1)
        ) as other:  # its call is handled after the first one's requests that have arrived
            other.reply(other.ask(send(b"x"))[0])
        assert fault.fired < FEW
        raw.reply(numbers[-1])
        assert raw.order == numbers
        assert fault.fired == len(numbers) + 1


# Ports


def ports_of(tubemq: EmbeddedTubeMQ) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in (tubemq.master, tubemq.broker_address(1))]


def take(port: int) -> socket.socket:
    """Bind the port as another program does."""
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        raise
    return taken


@pytest.mark.parametrize("end", [EmbeddedTubeMQ.stop_broker, EmbeddedTubeMQ.crash_broker])
def test_a_stopped_server_keeps_its_port(end: Callable[[EmbeddedTubeMQ, int], None]) -> None:
    """It refuses connections at once, and no other program gets the port."""
    with EmbeddedTubeMQ(topics={"demo": 1}) as tubemq:
        master, broker = ports_of(tubemq)
        for _ in range(2):
            end(tubemq, 1)
            tubemq.stop_master()
            for port in (master, broker):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=20)
                with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
                    take(port)
            tubemq.start_broker(1)
            tubemq.start_master()
            assert ports_of(tubemq) == [master, broker]
            with Raw(tubemq.broker_address(1)) as raw:
                assert raw.call(send(b"x")).success


@pytest.mark.parametrize("down", [False, True])
def test_close_releases_the_ports(down: bool) -> None:
    with EmbeddedTubeMQ() as tubemq:
        ports = ports_of(tubemq)
        if down:
            tubemq.stop_broker(1)
            tubemq.stop_master()
    for port in ports:
        take(port).close()


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"master 1 cannot listen on 127.0.0.1:{port}: ") as caught:
            EmbeddedTubeMQ(port=port)
    assert caught.value.errno == errno.EADDRINUSE


# The end


def test_calls_end_when_the_cluster_closes() -> None:
    """Each call returns its result, or raises that the cluster is closed."""
    told: list[str] = []
    with EmbeddedTubeMQ(topics={"demo": 1}) as tubemq:
        begun = threading.Barrier(5)

        def ask() -> None:
            begun.wait()
            try:
                while True:
                    tubemq.messages("demo")
            except RuntimeError as error:
                told.append(str(error))

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait()
    for thread in threads:
        thread.join(timeout=20)
    assert told == [CLOSED] * 4


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_keeps_no_socket_of_the_cluster() -> None:
    """It cannot use the cluster and holds none of its ports and connections; the parent's continues."""
    with EmbeddedTubeMQ(topics={"demo": 1}) as tubemq, Raw(tubemq.broker_address(1)) as raw:
        assert raw.call(send(b"1")).success  # the connection is established
        told, tell = os.pipe()
        wait, end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forks of processes with threads
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)  # ends it in any case
                os.close(end)
                os.write(tell, what_is_left(tubemq).encode())
                os.close(tell)
                os.read(wait, 1)
            finally:
                os._exit(0)
        try:
            os.close(tell)
            with os.fdopen(told) as report:
                assert report.read() == CLOSED
            assert raw.call(send(b"2")).success
            tubemq.crash_broker(1)
            assert not raw.until_the_end()
            with pytest.raises(ConnectionRefusedError):
                Raw(tubemq.broker_address(1))
            tubemq.start_broker(1)
            with Raw(tubemq.broker_address(1)) as other:
                assert other.call(send(b"3")).success
        finally:
            os.close(wait)
            os.close(end)
            os.waitpid(child, 0)


def what_is_left(tubemq: EmbeddedTubeMQ) -> str:
    """Return the error of the child when it uses the cluster."""
    try:
        tubemq.messages("demo")
    except RuntimeError as error:
        tubemq.close()
        return str(error)
    return "it can be used"
