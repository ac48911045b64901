# SPDX-License-Identifier: Apache-2.0
"""Servers on a host without threads, sockets and real time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.testing.raw import send
from tests.testing.virtual_host import VirtualTubeMQ
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

ROOT = Path(__file__).resolve().parents[2]


def test_servers_need_no_thread_and_no_socket() -> None:
    threads = threading.active_count()
    with VirtualTubeMQ({"demo": 1}, brokers=2, masters=2) as tubemq:
        master, broker = tubemq.master.split(",")[0], tubemq.broker_address(1)
        assert [tubemq.connect(broker).call(send(b"x")).errCode for _ in range(2)] == [200, 200]
        register = master_pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="h")
        assert list(tubemq.connect(master).call(register).brokerInfos) == [
            f"{n}:{tubemq.broker_address(n)}" for n in (1, 2)
        ]
        assert threading.active_count() == threads
        assert [message.body for message in tubemq.messages("demo")] == [b"x", b"x"]
    with pytest.raises(RuntimeError, match="closed"):
        tubemq.messages("demo")


def test_time_is_the_hosts() -> None:
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        tubemq.virtual.pass_time(5)
        tubemq.clock.advance(0.5)
        assert (tubemq.clock.now(), tubemq.clock.wall_ms()) == (5.5, 1_700_000_005_500)


@pytest.mark.parametrize("skipped", [0.0, 1e9 + 0.1])
def test_a_delay_ends_with_the_hosts_time(skipped: float) -> None:
    """Also when the sums of times are rounded."""
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        tubemq.clock.advance(skipped)
        tubemq.on("send_message").delay(0.3)
        client = tubemq.connect(tubemq.broker_address(1))
        client.server.data_received(client.request(send(b"x")))
        tubemq.virtual.pass_time(0.2)
        assert not tubemq.messages("demo")
        tubemq.virtual.pass_time(0.2)
        assert (len(tubemq.messages("demo")), client.written != b"") == (1, True)


def test_an_advance_of_the_clock_ends_a_delay_once() -> None:
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        tubemq.on("send_message").delay(10)
        client = tubemq.connect(tubemq.broker_address(1))
        client.server.data_received(client.request(send(b"x")))
        tubemq.clock.advance(10)
        assert len(tubemq.messages("demo")) == 1
        tubemq.virtual.pass_time(20)
        assert len(tubemq.messages("demo")) == 1


def test_a_request_is_executed_though_its_client_has_gone() -> None:
    """The network delivers the bytes late, and then the end of the connection."""
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        client = tubemq.connect(tubemq.broker_address(1))
        first, second = client.request(send(b"1")), client.request(send(b"2"))
        tubemq.virtual.pass_time(1000)
        client.server.data_received(first + second[:10])
        tubemq.virtual.pass_time(1000)
        client.server.data_received(second[10:])
        client.server.connection_lost(ConnectionResetError())
        assert [message.body for message in tubemq.messages("demo")] == [b"1", b"2"]
        assert tubemq.activity().clients == 0


def test_nothing_is_executed_after_a_crash() -> None:
    """Not even what the host delivers before it reports the end of the connection."""
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        tubemq.on("send_message", nth=2).delay(1)
        held, late = (tubemq.connect(tubemq.broker_address(1)) for _ in range(2))
        held.call(send(b"1"))
        tubemq.flush("demo")
        held.server.data_received(held.request(send(b"2")))
        tubemq.crash_broker(1)
        with pytest.raises(ConnectionRefusedError):
            tubemq.connect(tubemq.broker_address(1))
        tubemq.start_broker(1)
        tubemq.clear_faults()
        late.server.data_received(late.request(send(b"3")))
        tubemq.virtual.pass_time(2)
        assert [message.body for message in tubemq.messages("demo")] == [b"1"]
        assert (held.end, late.end, late.written) == ("reset", "reset", b"")


def test_a_connection_whose_port_was_closed_during_the_handshake_ends() -> None:
    """Even when the port is open again."""
    with VirtualTubeMQ({"demo": 1}) as tubemq:
        client = tubemq.connect(tubemq.broker_address(1))
        connection = tubemq.virtual.ports[int(tubemq.broker_address(1).rpartition(":")[2])].connect()
        tubemq.crash_broker(1)
        tubemq.start_broker(1)
        client.end = ""
        connection.connection_made(client)
        assert client.end == "reset"


PLAY = """
from tests.testing.log_of_servers import play

play()
"""


def test_the_same_schedule_gives_the_same_bytes_in_another_process() -> None:
    """Nothing depends on the order of hash values, on real time, or on where objects are."""
    logs = [
        subprocess.run(
            [sys.executable, "-c", PLAY],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert len(logs[0].splitlines()) > 400
    assert logs[1:] == logs[:1] * 2
