# SPDX-License-Identifier: Apache-2.0
"""Scripted servers: they answer as a test says, byte by byte or request by request."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_request, encode_reply
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

Serve = Callable[[socket.socket], None]
Answer = Callable[[Request], Response | Failure | None]
"""The reply to a request; None means no reply."""


class Peer:
    """Listens on the loopback interface and passes each connection to `serve`, in a thread of its own.

    A context manager. At its end it breaks all connections, waits for the threads, and raises the first error of one.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name=f"peer {self.address}")]
        self._problems: list[Exception] = []

    @property
    def connections(self) -> int:
        """How many connections clients have made."""
        return len(self._sockets)

    def __enter__(self) -> Peer:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()
        if self._problems and error is None:
            raise self._problems[0]

    def hang_up(self) -> None:
        """Break all connections and refuse new ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connection)
            self._threads.append(threading.Thread(target=self._run, args=(connection,)))
            self._threads[-1].start()

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError:
            pass  # the connection was broken
        except Exception as problem:
            self._problems.append(problem)
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def requests(connection: socket.socket, framing: Framing = Framing.STANDARD) -> Iterator[tuple[int, Request]]:
    """Yield the serial number and the request of each frame that comes in, until the client closes."""
    decoder = FrameDecoder(framing)
    while data := connection.recv(1 << 16):
        for frame in decoder.feed(data):
            yield frame.serial_no, decode_request(frame.body)


def reply_bytes(serial_no: int, reply: Response | Failure, framing: Framing = Framing.STANDARD) -> bytes:
    return encode_frame(serial_no, encode_reply(reply), framing)


def answering(answer: Answer, framing: Framing = Framing.STANDARD) -> Serve:
    """Return a server that replies to one request after the other."""

    def serve(connection: socket.socket) -> None:
        for serial_no, request in requests(connection, framing):
            reply = answer(request)
            if reply is not None:
                connection.sendall(reply_bytes(serial_no, reply, framing))

    return serve


def silent(connection: socket.socket) -> None:
    """Read everything and send nothing."""
    while connection.recv(1 << 16):
        pass


def echo(request: Request) -> Response:
    return Response(request.method, request.data)


def calling_itself(broker_id: int) -> Answer:
    """Return a broker that refuses all claims, and names itself."""

    def answer(request: Request) -> Response:
        text = f"[Duplicated Register] Partition {broker_id}#group:topic:0 has been registered by another"
        return message_reply(request, broker_pb.RegisterResponseB2C(success=False, errCode=410, errMsg=text))

    return answer


def message_reply(request: Request, message: Message) -> Response:
    return Response(request.method, message.SerializeToString())


def refused_address() -> Address:
    """Return an address where nobody listens, because the system does not choose such a low port."""
    return Address("127.0.0.1", 1)
