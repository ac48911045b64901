"""A master and brokers that take messages, or do not, as a test tells them.

They speak the standard framing over loopback and know just what a producer needs. For behaviour of the real servers see
`tests.real`; this is for faults that a real server has at moments of its own choosing.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from tubemq_spark.client.pool import POOL
from tubemq_spark.client.sessions import SESSIONS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_request, encode_reply
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.message import split_payload
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

Send = broker_pb.SendMessageRequestP2B
Reaction = int | Failure | Literal["close", "store and close", "silence"]
Script = Callable[[Send, int], Reaction]
"""What a broker does about a request, the n-th it meets, counted from 0. A number is the code of its answer, 200
stores; `close` ends the connection after the answers before; `silence` is no answer, ever."""

OK = 200


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Callable[[Request], Response | Failure | Literal["close"] | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.most_at_once = 0
        self.sockets: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", int(self.server_address[1]))

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Refuses connections from now on, and breaks those there are."""
        self.shutdown()
        self.server_close()
        for connection in list(self.sockets):
            connection.close()
        self._thread.join()


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        decoder = FrameDecoder(Framing.STANDARD)
        self.server.sockets.add(self.request)
        try:
            while data := self.request.recv(1 << 20):
                frames = decoder.feed(data)
                self.server.most_at_once = max(self.server.most_at_once, len(frames))
                replies = []
                closing = False
                for frame in frames:
                    reply = self.server.answer(decode_request(frame.body))
                    closing = reply == "close"
                    if closing:
                        break
                    if isinstance(reply, (Response, Failure)):
                        replies.append(encode_frame(frame.serial_no, encode_reply(reply), Framing.STANDARD))
                self.request.sendall(b"".join(replies))
                if closing:
                    # A reset would overtake the answers: say that this was the last word, and let the peer close.
                    self.request.shutdown(socket.SHUT_WR)
                    while self.request.recv(1 << 20):
                        pass
                    return
        except OSError:
            pass  # the peer, or the test, ended it
        finally:
            self.server.sockets.discard(self.request)


@dataclass
class FakeBroker:
    """Stores what its script lets it store."""

    broker_id: int
    script: Script = lambda request, n: OK
    stored: list[Send] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.server = _Server(self._answer)

    @property
    def bodies(self) -> list[bytes]:
        return [body_of(message) for message in self.stored]

    @property
    def most_at_once(self) -> int:
        """The most requests that came in together, which is what was unanswered then: it answers all before it reads
        on."""
        return self.server.most_at_once

    def _answer(self, request: Request) -> Response | Failure | Literal["close"] | None:
        message = Send.FromString(request.data)
        with self._lock:
            reaction = self.script(message, self.requests)
            self.requests += 1
            if reaction in (OK, "store and close"):
                self.stored.append(message)
        if reaction == "silence":
            return None
        if reaction in ("close", "store and close"):
            return "close"
        if isinstance(reaction, Failure):
            return reaction
        assert isinstance(reaction, int)
        answer = broker_pb.SendMessageResponseB2P(
            success=reaction == OK, errCode=reaction, errMsg="" if reaction == OK else "as the test wants it"
        )
        return Response(Method.SEND_MESSAGE, answer.SerializeToString())


class FakeCluster:
    """A master and brokers numbered from 1, each with `partitions` of every topic.

    `token` is the visit token that the next answers of the master carry; `calls` counts them by method. Everything of
    the client's process-wide state that refers to the cluster goes with it.
    """

    def __init__(
        self, *, brokers: int = 2, topics: Mapping[str, int] | None = None, max_message_size: int | None = None
    ) -> None:
        self.topics = {"demo": 3} if topics is None else dict(topics)
        self.brokers = {n: FakeBroker(n) for n in range(1, brokers + 1)}
        self.token = 1
        self.calls: Counter[Method] = Counter()
        self._max_message_size = max_message_size
        self._master = _Server(self._answer)

    def __enter__(self) -> FakeCluster:
        for server in self._servers():
            server.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        SESSIONS.close()
        POOL.close()
        for server in self._servers():
            server.end()

    @property
    def master(self) -> str:
        return str(self._master.address)

    def settings(
        self, *, rpc_timeout: float = 10.0, retry_for: float = 30.0, idle_for: float = 180.0
    ) -> ClientSettings:
        """For a client of this cluster."""
        return ClientSettings(
            masters=(self._master.address,),
            framing=Framing.STANDARD,
            rpc_timeout=rpc_timeout,
            retry_for=retry_for,
            idle_for=idle_for,
        )

    @property
    def stored(self) -> Counter[bytes]:
        """How often each body is stored."""
        return Counter(body for broker in self.brokers.values() for body in broker.bodies)

    def _servers(self) -> list[_Server]:
        return [self._master, *(broker.server for broker in self.brokers.values())]

    def _answer(self, request: Request) -> Response | Failure:
        method = Method(request.method)
        self.calls[method] += 1
        token = master_pb.MasterAuthorizedInfo(visitAuthorizedToken=self.token)
        brokers = [f"{n}:{broker.server.address}" for n, broker in self.brokers.items()]
        config = master_pb.ApprovedClientConfig(configId=1)
        if self._max_message_size is not None:
            config.maxMsgSize = self._max_message_size
        if method is Method.PRODUCER_REGISTER:
            reply: master_pb.RegisterResponseM2P | master_pb.HeartResponseM2P | master_pb.CloseResponseM2P
            reply = master_pb.RegisterResponseM2P(
                success=True,
                errCode=OK,
                errMsg="",
                brokerCheckSum=7,
                brokerInfos=brokers,
                authorizedInfo=token,
                appdConfig=config,
            )
        elif method is Method.PRODUCER_HEARTBEAT:
            asked = master_pb.HeartRequestP2M.FromString(request.data).topicList
            layouts = {t: ",".join(f"{n}:{self.topics[t]}:1" for n in self.brokers) for t in asked if t in self.topics}
            reply = master_pb.HeartResponseM2P(
                success=True,
                errCode=OK,
                errMsg="",
                brokerCheckSum=7,
                topicInfos=[f"{topic}#{layout}" for topic, layout in layouts.items()],
                authorizedInfo=token,
            )
        else:
            reply = master_pb.CloseResponseM2P(success=True, errCode=OK, errMsg="")
        return Response(method, reply.SerializeToString())


def body_of(message: Send) -> bytes:
    return split_payload(message.data, message.flag)[1]
