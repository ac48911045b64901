# SPDX-License-Identifier: Apache-2.0
"""A plain connection to an embedded server, without the client."""

from __future__ import annotations

import itertools
import socket
import ssl
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.dispatch import REPLIES, REQUESTS

TIMEOUT = 60.0  # seconds to wait for an answer

Send = broker_pb.SendMessageRequestP2B


class Raw:
    """A connection that sends requests and reads replies."""

    def __init__(
        self, address: str, framing: Framing = Framing.STANDARD, context: ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._numbers = itertools.count(1)
        self._replies: dict[int, Response | Failure] = {}
        self.order: list[int] = []  # numbers of the requests in the order of their replies

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def ask(self, *messages: Message, timeout_ms: int = 100_000) -> list[int]:
        """Send requests in one write and return their numbers."""
        numbers = [next(self._numbers) for _ in messages]
        frames = [self._frame(n, message, timeout_ms) for n, message in zip(numbers, messages, strict=True)]
        self.write(b"".join(frames))
        return numbers

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reply(self, number: int) -> Response | Failure:
        while number not in self._replies:
            data = self._socket.recv(1 << 16)
            assert data, f"the connection ended before the reply to {number}"
            for frame in self._decoder.feed(data):
                self._replies[frame.serial_no] = decode_reply(frame.body)
                self.order.append(frame.serial_no)
        return self._replies[number]

    def call(self, message: Message) -> Any:
        """Send one request and return the reply message."""
        (number,) = self.ask(message)
        reply = self.reply(number)
        assert isinstance(reply, Response), reply
        return REPLIES[Method(reply.method)].FromString(reply.data)

    def rest(self) -> bytes:
        """Close the sending side and return all bytes until the server closes the connection."""
        self._socket.shutdown(socket.SHUT_WR)
        return self.until_the_end()

    def until_the_end(self) -> bytes:
        """Receive bytes; a reset or an alert counts as the end."""
        data = b""
        with suppress(ConnectionError, ssl.SSLError):
            while more := self._socket.recv(1 << 16):
                data += more
        return data

    def _frame(self, number: int, message: Message, timeout_ms: int) -> bytes:
        method, service = METHODS[type(message)]
        request = Request(service, method, timeout_ms, message.SerializeToString())
        return encode_frame(number, encode_request(request), self._framing)


def _service(method: Method, kind: type[Message]) -> ServiceType:
    if kind.DESCRIPTOR.file is master_pb.DESCRIPTOR:
        return ServiceType.MASTER
    return ServiceType.BROKER_WRITE if method is Method.SEND_MESSAGE else ServiceType.BROKER_READ


METHODS = {kind: (method, _service(method, kind)) for method, kind in REQUESTS.items()}


def send(body: bytes, topic: str = "demo", partition: int = 0, client: str = "c1") -> Send:
    return Send(
        clientId=client, topicName=topic, partitionId=partition, data=body, flag=0, checkSum=-1, sentAddr=0x7F000001
    )
