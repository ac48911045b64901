# SPDX-License-Identifier: Apache-2.0
"""A host without threads and sockets, whose time stands still until a test moves it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from tests.testing.raw import METHODS
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.host import Host
from tubemq_spark.testing.port import Port
from tubemq_spark.testing.rpc_messages import REPLIES

T = TypeVar("T")


class VirtualHost:
    def __init__(self) -> None:
        self.ports: dict[int, Port] = {}
        self.closed = False
        self._seconds = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self._seconds

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._seconds * 1000)

    def call(self, function: Callable[[], T]) -> T:
        if self.closed:
            raise RuntimeError("this host is closed")
        return function()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._seconds + seconds, next(self._numbers), function))

    def listen(self, port: Port) -> None:
        port.port = port.port or 1000 + len(self.ports)
        self.ports[port.port] = port

    def stop_listening(self, port: Port) -> None:
        pass

    def close(self, last: Callable[[], None]) -> None:
        if not self.closed:
            last()
            self.closed = True

    def pass_time(self, seconds: float) -> None:
        end = self._seconds + seconds
        while self._timers and self._timers[0][0] <= end:
            self._seconds, _, function = heapq.heappop(self._timers)
            function()
        self._seconds = end


class VirtualTubeMQ(EmbeddedTubeMQ):
    """A cluster on `virtual`."""

    virtual: VirtualHost
    log: list[str]
    """What the servers have done to their connections, in this order."""

    def _new_host(self) -> Host:
        self.virtual, self.log = VirtualHost(), []
        return self.virtual

    def connect(self, address: str, name: str = "") -> Client:
        port = self.virtual.ports[int(address.rpartition(":")[2])]
        if not port.is_open:
            raise ConnectionRefusedError(address)
        return Client(self.virtual, port, name, self.log)


class Client:
    """A client's connection, and the transport of its other end."""

    def __init__(self, host: VirtualHost, port: Port, name: str, log: list[str]) -> None:
        self._host, self._name, self._log = host, name, log
        self.end = ""  # how the server has ended the connection
        self.written = b""
        self.server = port.connect()
        self._numbers = itertools.count(1)
        self.server.connection_made(self)

    def request(self, message: Message, timeout_ms: int = 100_000) -> bytes:
        method, service = METHODS[type(message)]
        request = Request(service, method, timeout_ms, message.SerializeToString())
        return encode_frame(next(self._numbers), encode_request(request), Framing.STANDARD)

    def call(self, message: Message) -> Any:
        """Return the reply message of one request."""
        self.written = b""
        self.server.data_received(self.request(message))
        (frame,) = FrameDecoder(Framing.STANDARD).feed(self.written)
        reply = decode_reply(frame.body)
        assert isinstance(reply, Response), reply
        return REPLIES[METHODS[type(message)][0]].FromString(reply.data)

    def write(self, data: bytes | bytearray) -> None:
        self.written += data
        self._tell(bytes(data).hex())

    def write_eof(self) -> None:
        self.end = "eof"
        self._tell(self.end)

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.end not in ("", "eof")

    def close(self) -> None:
        self._ends("closed")

    def abort(self) -> None:
        self._ends("reset")

    def _ends(self, end: str) -> None:
        self.end = end
        self._tell(end)
        self._host.after(0, lambda: self.server.connection_lost(None))

    def _tell(self, what: str) -> None:
        self._log.append(f"{self._name} {what}")
