# SPDX-License-Identifier: Apache-2.0
"""The RPC protocol of one connection: assigns serial numbers to requests and matches replies to them."""

from __future__ import annotations

from collections import deque

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.send_acks import AckShapes, SendAck

SendReply = int | list[SendAck] | Response | Failure | ProtocolError
"""The next so many sends are stored, with these answers if they are wanted; or the reply to the next one, or that it
will have none."""

_SERIAL_NO_MASK = 0x7FFFFFFF  # an int32 on the wire, kept positive for readable logs


class RpcProtocol:
    """The client side of one connection, without the I/O.

    `request` returns the serial number and the bytes to send; `receive` returns the replies in the received bytes. It
    raises `ProtocolError` for bytes that are not a reply, a reply that no request waits for, or one of another method.
    If replies came before the error, it returns them first and raises at the next call, and at all later ones.

    Sends have an interface of their own, because there are many: `next_sends` returns their serial numbers, and
    `take_outcomes` returns what became of them. A server answers the sends of a connection in their order (wire:
    NettyRpcServer). So if it answers a later one, those before it will have no reply.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._last_serial_no = 0
        self._methods: dict[int, int] = {}
        self._failure: str | None = None
        self._sends: deque[range] = deque()  # serial numbers of sends without a reply
        self._ack_shapes = AckShapes(framing)
        self._outcomes: list[SendReply] = []
        self.wants_answers = False
        """Whether `take_outcomes` returns the answers to sends that are stored, or only their number."""

    @property
    def unanswered(self) -> int:
        """The number of requests without a reply."""
        return len(self._methods) + sum(map(len, self._sends))

    @property
    def never_answered(self) -> bool:
        """Whether the first request has no reply, and neither has any other."""
        first = self._sends[0].start if self._sends else 0
        return 1 in (first, next(iter(self._methods), 0))

    def next_sends(self, count: int) -> range:
        """Return the serial numbers that the next `count` sends have, if they are `sent`."""
        first = self._last_serial_no + 1
        if first + count - 1 > _SERIAL_NO_MASK:
            first = 1
        return range(first, first + count)

    def sent(self, sends: range) -> None:
        self._last_serial_no = sends[-1]
        self._sends.append(sends)

    def take_outcomes(self) -> list[SendReply]:
        """Return and remove what became of sends, in their order."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def request(self, request: Request) -> tuple[int, bytes]:
        serial_no = (self._last_serial_no + 1) & _SERIAL_NO_MASK
        data = encode_frame(serial_no, encode_request(request), self._framing)
        self._last_serial_no = serial_no
        self._methods[serial_no] = request.method
        return serial_no, data

    def receive(self, data: bytes | bytearray | memoryview) -> list[tuple[int, Response | Failure]]:
        if self._failure is not None:
            raise ProtocolError(self._failure)
        if self._sends and not self._decoder.is_inside_frame:
            data = self._skip_acknowledgements(bytes(data))
        replies: list[tuple[int, Response | Failure]] = []
        for serial_no, body in self._decoder.feed(data):
            try:
                if any(serial_no in sends for sends in self._sends):
                    self._answer_send(serial_no, body)
                else:
                    replies.append((serial_no, self._reply(serial_no, body)))
            except ProtocolError as error:
                self._failure = str(error)
                if not replies:
                    raise
                break
        return replies

    def _skip_acknowledgements(self, data: bytes) -> memoryview:
        """Take the usual acknowledgements at the start of `data`, and return the rest."""
        start = 0
        while self._sends:
            sends = self._sends[0]
            answers: list[SendAck] | None = [] if self.wants_answers else None
            count, start = self._ack_shapes.count(data, start, sends.start, len(sends), answers)
            self._stored(count, answers)
            if count < len(sends):
                break
        return memoryview(data)[start:]

    def _answer_send(self, serial_no: int, body: bytes) -> None:
        """Take the reply to a send."""
        while serial_no != self._sends[0].start:
            self._outcomes.append(ProtocolError("the server answered a later send, and not this one"))
            self._end_sends(1)
        answer = self._ack_shapes.learn(body)
        if answer is not None:
            self._stored(1, [answer] if self.wants_answers else None)
        else:
            reply = decode_reply(body, Method.SEND_MESSAGE)
            if isinstance(reply, Response) and reply.method != Method.SEND_MESSAGE:
                raise ProtocolError(f"a send was answered as method {reply.method}")
            self._outcomes.append(reply)
            self._end_sends(1)

    def _stored(self, count: int, answers: list[SendAck] | None) -> None:
        last = self._outcomes[-1] if self._outcomes else None
        if answers is None:
            if isinstance(last, int):
                self._outcomes[-1] = last + count
            elif count:
                self._outcomes.append(count)
        elif isinstance(last, list):
            last += answers
        elif answers:
            self._outcomes.append(answers)
        self._end_sends(count)

    def _end_sends(self, count: int) -> None:
        left = self._sends.popleft()[count:]
        if left:
            self._sends.appendleft(left)

    def _reply(self, serial_no: int, body: bytes) -> Response | Failure:
        method = self._methods.pop(serial_no, None)
        if method is None:
            raise ProtocolError(f"a reply has the serial number {serial_no}, which no request waits for")
        reply = decode_reply(body, method)
        if isinstance(reply, Response) and reply.method != method:
            raise ProtocolError(f"a request of method {method} was answered as method {reply.method}")
        return reply
