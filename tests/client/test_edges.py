"""Rare moments: a peer's last words, time that others use up, a master that knows us already."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from google.protobuf.message import Message

from tests.clocks import UseTimings
from tests.peers import Peer, answering, echo, message_reply, refused_address, reply_bytes, requests, silent
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net import connection as connection_module
from tubemq_spark.client.net import pool as pool_module
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import ServerRequest, send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import AuthError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address, Partition
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

pytestmark = pytest.mark.timeout(60)

PATIENCE = 30.0  # seconds


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection_module, "_framings", {})
    yield
    POOL.close()


def submit(connection: Connection, body: bytes) -> int:
    return connection.submit_bytes(ServiceType.BROKER_READ, Method.GET_MESSAGE, body, PATIENCE)


# Connections


def test_what_a_peer_said_before_it_broke_off_is_read_even_when_there_is_more_to_write() -> None:
    written, broken = threading.Event(), threading.Event()

    def serve(peer: socket.socket) -> None:
        serial_no, request = next(requests(peer))
        assert written.wait(PATIENCE)
        peer.sendall(reply_bytes(serial_no, echo(request)))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # with a reset
        broken.set()

    with Peer(serve) as peer:
        connection = Connection(peer.address, Framing.STANDARD, PATIENCE)
        first, second = submit(connection, b"first"), submit(connection, bytes(20 << 20))
        connection.flush()
        written.set()
        assert broken.wait(PATIENCE)
        with pytest.raises(TransportError, match="broke"):
            connection.flush()
        assert connection.take() == {first: Response(Method.GET_MESSAGE, b"first")}
        with pytest.raises(TransportError, match="broke"):
            connection.reply(second)


def test_a_peer_may_write_much_before_it_reads() -> None:
    """It reads the first request, answers all of them, and only then reads on."""
    count = 24

    def serve(peer: socket.socket) -> None:
        serial_no, _ = next(requests(peer))
        for n in range(count):
            peer.sendall(reply_bytes(serial_no + n, Response(Method.GET_MESSAGE, bytes([n]) * (1 << 20))))
        silent(peer)

    with Peer(serve) as peer:
        connection = Connection(peer.address, Framing.STANDARD, PATIENCE)
        numbers = [submit(connection, bytes(1 << 20)) for _ in range(count)]
        for n, number in enumerate(numbers):
            assert connection.reply(number) == Response(Method.GET_MESSAGE, bytes([n]) * (1 << 20))
        connection.close()


def test_a_name_that_no_host_can_have() -> None:
    with pytest.raises(TransportError, match=r"cannot connect to no\.\.host:8715: .*"):
        Connection(Address("no..host", 8715), Framing.STANDARD, 1.0)


def test_a_short_timeout_leaves_time_for_both_framings(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(peer: socket.socket) -> None:
        is_standard = peer.recv(1, socket.MSG_PEEK) == b"\xff"
        (silent if is_standard else answering(echo, Framing.PREFIXED))(peer)

    monkeypatch.setattr(connection_module, "_SECOND_FRAMING_AFTER", PATIENCE)
    with Peer(serve) as peer:
        connection = connect(peer.address, None, 6.0)
        assert connection.framing is Framing.PREFIXED
        connection.close()


def test_a_server_that_is_hard_to_reach_takes_no_time_from_the_calls_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = 0.0

    def slow_connect(
        address: Address, framing: Framing | None, timeout: float, tls: TlsSettings | None = None
    ) -> Connection:
        nonlocal passed
        if address != alive.address:
            passed += 1000.0
        return connect(address, framing, timeout, tls)

    def call(address: Address) -> ServerRequest:
        message = master_pb.CloseRequestP2M(clientId="me")
        return ServerRequest(address, ServiceType.MASTER, Method.PRODUCER_CLOSE, message, "asking")

    monkeypatch.setattr(pool_module, "connect", slow_connect)
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    monkeypatch.setattr(connection_module, "_GRACE", -1.0)
    settings = ClientSettings(masters=(), framing=Framing.STANDARD, rpc_timeout=PATIENCE)
    with Peer(answering(echo)) as alive:
        answered, refused = send_requests(settings, [call(alive.address), call(refused_address())])
    assert isinstance(answered, Response)
    assert isinstance(refused, TransportError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ending_a_beat_of_the_parent_in_a_forked_child_ends_none_of_the_childs() -> None:
    before = set(threading.enumerate())
    end_of_parents = HEARTBEAT.keep(lambda: None)
    (thread,) = set(threading.enumerate()) - before
    child = os.fork()
    if child == 0:
        HEARTBEAT.keep(lambda: None)
        end_of_parents()
        os._exit(0 if len(HEARTBEAT._beats) == 1 else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_of_parents()
    thread.join(PATIENCE)
    assert status == 0


# Masters


class Master:
    """Answers each method with the next of its `codes`, or with success when they are used up."""

    def __init__(self, **codes: list[int | Failure]) -> None:
        self.calls: list[str] = []
        self._codes = codes
        self.failure: Failure | None = None
        self.peer = Peer(answering(self._answer))

    def _answer(self, request: Request) -> Response | Failure:
        name = Method(request.method).name
        self.calls.append(name)
        codes = self._codes.get(name)
        code = self.failure or (codes.pop(0) if codes else 200)
        return code if isinstance(code, Failure) else message_reply(request, self._reply(name, code))

    def _reply(self, name: str, code: int) -> Message:
        brokers = ["1:one.example:8123"]
        match name:
            case "CONSUMER_REGISTER_V2":
                return master_pb.RegisterResponseM2CV2(errCode=code, errMsg="", brokerConfigList=brokers)
            case "GET_PARTITION_META":
                topics = ["demo#1:1:2:1"]
                return master_pb.GetPartMetaResponseM2C(errCode=code, errMsg="", topicMetaInfoList=topics)
            case "PRODUCER_REGISTER":
                return master_pb.RegisterResponseM2P(
                    success=code == 200,
                    errCode=code,
                    errMsg="",
                    brokerCheckSum=1,
                    brokerInfos=brokers,
                    appdConfig=master_pb.ApprovedClientConfig(configId=1, maxMsgSize=5000),
                )
            case "PRODUCER_HEARTBEAT":
                topics = ["demo#1:2:1"]
                return master_pb.HeartResponseM2P(
                    success=code == 200, errCode=code, errMsg="", brokerCheckSum=1, topicInfos=topics
                )
        return master_pb.CloseResponseM2P(success=True, errCode=200, errMsg="")


STANDBY = Failure("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "I am a standby")
PARTITIONS = [Partition(1, "demo", 0), Partition(1, "demo", 1)]


def settings_for(*masters: Master, retry_for: float = PATIENCE) -> ClientSettings:
    return ClientSettings(tuple(m.peer.address for m in masters), framing=Framing.STANDARD, retry_for=retry_for)


def test_a_next_master_that_knows_the_client_already_needs_no_registration() -> None:
    one, other = Master(), Master()
    with one.peer, other.peer:
        session = ConsumerSession(settings_for(one, other), "readers", ["demo"])
        session.register()
        one.failure = STANDBY
        assert session.refresh().partitions("demo") == PARTITIONS
        session.close()
    assert other.calls == ["GET_PARTITION_META", "CONSUMER_CLOSE"]


@pytest.mark.parametrize(
    ("codes", "calls"),
    [
        ({}, ["PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_HEARTBEAT": [411]}, 2 * ["PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_REGISTER": [201]}, ["PRODUCER_REGISTER", "PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
        ({"PRODUCER_REGISTER": [STANDBY]}, ["PRODUCER_REGISTER", "PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"]),
    ],
    ids=["at once", "forgotten", "not ready", "standing by"],
)
def test_a_producer_session_comes_about(
    codes: dict[str, list[int | Failure]], calls: list[str], use_timings: UseTimings
) -> None:
    use_timings(first_contact_timeout=PATIENCE)
    master = Master(**{name: list(each) for name, each in codes.items()})
    with master.peer:
        session = ProducerSession(settings_for(master))
        session.add_topics(["demo"])
        assert session.cluster.partitions("demo") == PARTITIONS
        assert session.message_limit("demo") == 5000
        session.close()
    assert master.calls == [*calls, "PRODUCER_CLOSE"]


@pytest.mark.parametrize(("code", "error"), [(415, AuthError), (400, ServerError)])
@pytest.mark.parametrize("name", ["PRODUCER_REGISTER", "PRODUCER_HEARTBEAT"])
def test_a_producer_that_is_refused(name: str, code: int, error: type[TubeMQError]) -> None:
    codes: list[int | Failure] = [code]
    master = Master(**{name: codes})
    with master.peer:
        session = ProducerSession(settings_for(master))
        with pytest.raises(error, match=f"at the master {master.peer.address} failed with {code}"):
            session.add_topics(["demo"])
        session.close()


@pytest.mark.parametrize("use", [lambda s: s.add_topics(["demo"]), lambda s: s.refresh_once()], ids=["add", "refresh"])
def test_a_producer_whose_master_went(use: Callable[[ProducerSession], object]) -> None:
    master = Master()
    with master.peer:
        session = ProducerSession(settings_for(master, retry_for=0))
        master.failure = STANDBY
        with pytest.raises(TransportError, match=r"no master answered: .*Check option 'tubemq.master'"):
            use(session)
        session.close()
