# SPDX-License-Identifier: Apache-2.0
"""The RPC protocol of one connection: assigns serial numbers to requests and matches replies to them."""

from __future__ import annotations

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame

_SERIAL_NO_MASK = 0x7FFFFFFF  # an int32 on the wire, kept positive for readable logs


class RpcProtocol:
    """The client side of one connection, without the I/O.

    `request` returns the serial number and the bytes to send; `receive` returns the replies in the received bytes. It
    raises `ProtocolError` for bytes that are no reply, a reply that no request waits for, or one of another method. If
    replies came before the error, it returns them first and raises at the next call, and at all later ones.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._last_serial_no = 0
        self._methods: dict[int, int] = {}
        self._failure: str | None = None

    def request(self, request: Request) -> tuple[int, bytes]:
        serial_no = (self._last_serial_no + 1) & _SERIAL_NO_MASK
        data = encode_frame(serial_no, encode_request(request), self._framing)
        self._last_serial_no = serial_no
        self._methods[serial_no] = request.method
        return serial_no, data

    def receive(self, data: bytes | bytearray | memoryview) -> list[tuple[int, Response | Failure]]:
        if self._failure is not None:
            raise ProtocolError(self._failure)
        replies: list[tuple[int, Response | Failure]] = []
        for serial_no, body in self._decoder.feed(data):
            try:
                replies.append((serial_no, self._reply(serial_no, body)))
            except ProtocolError as error:
                self._failure = str(error)
                if not replies:
                    raise
                break
        return replies

    def _reply(self, serial_no: int, body: bytes) -> Response | Failure:
        method = self._methods.pop(serial_no, None)
        if method is None:
            raise ProtocolError(f"a reply has the serial number {serial_no}, which no request waits for")
        reply = decode_reply(body, method)
        if isinstance(reply, Response) and reply.method != method:
            raise ProtocolError(f"a request of method {method} was answered as method {reply.method}")
        return reply
