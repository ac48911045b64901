# SPDX-License-Identifier: Apache-2.0
"""The RPC protocol of one connection: assigns serial numbers to requests and matches replies to them."""

from __future__ import annotations

from collections import deque

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_reply, encode_request
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.send_acks import AckShapes

_SERIAL_NO_MASK = 0x7FFFFFFF  # an int32 on the wire, kept positive for readable logs


class RpcProtocol:
    """The client side of one connection, without the I/O.

    `request` returns the serial number and the bytes to send; `receive` returns the replies in the received bytes. It
    raises `ProtocolError` for bytes that are not a reply, a reply that no request waits for, or one of another method.
    If replies came before the error, it returns them first and raises at the next call, and at all later ones.

    The sends of a run are counted in `acknowledged` while the server acknowledges them in their order, as it usually
    does. Any other reply to one of them ends all runs: then `receive` returns it, and each later one.
    """

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._decoder = FrameDecoder(framing)
        self._last_serial_no = 0
        self._methods: dict[int, int] = {}
        self._failure: str | None = None
        self._runs: deque[range] = deque()  # serial numbers of sends that are not acknowledged yet
        self._ack_shapes = AckShapes()
        self.acknowledged = 0  # sends of runs, ever
        self.ended_runs = 0  # how often a reply has ended all runs

    @property
    def unanswered(self) -> int:
        """The number of requests without a reply."""
        return len(self._methods) + sum(map(len, self._runs))

    @property
    def never_answered(self) -> bool:
        """Whether the first request has no reply, and neither has any other."""
        first = self._runs[0].start if self._runs else 0
        return 1 in (first, next(iter(self._methods), 0))

    def can_begin_run(self, count: int) -> bool:
        """Whether `count` sends can be a run: not in another framing, or where serial numbers start again."""
        return self._framing is Framing.STANDARD and self._last_serial_no + count < _SERIAL_NO_MASK

    def begin_run(self, count: int) -> int:
        """Return the serial number of the first of `count` sends, which the caller encodes."""
        first = self._last_serial_no + 1
        self._last_serial_no += count
        self._runs.append(range(first, first + count))
        return first

    def request(self, request: Request) -> tuple[int, bytes]:
        serial_no = (self._last_serial_no + 1) & _SERIAL_NO_MASK
        data = encode_frame(serial_no, encode_request(request), self._framing)
        self._last_serial_no = serial_no
        self._methods[serial_no] = request.method
        return serial_no, data

    def receive(self, data: bytes | bytearray | memoryview) -> list[tuple[int, Response | Failure]]:
        if self._failure is not None:
            raise ProtocolError(self._failure)
        if self._runs and not self._decoder.is_inside_frame:
            data = self._skip_acknowledgements(bytes(data))
        replies: list[tuple[int, Response | Failure]] = []
        for serial_no, body in self._decoder.feed(data):
            try:
                if not (self._runs and self._is_acknowledgement(serial_no, body)):
                    replies.append((serial_no, self._reply(serial_no, body)))
            except ProtocolError as error:
                self._failure = str(error)
                if not replies:
                    raise
                break
        return replies

    def _skip_acknowledgements(self, data: bytes) -> memoryview:
        """Count the usual acknowledgements at the start of `data`, and return the rest."""
        start = 0
        while self._runs:
            run = self._runs[0]
            count, end = self._ack_shapes.count(data, start, run.start, len(run))
            start = end
            self._count(count)
            if count < len(run):
                break
        return memoryview(data)[start:]

    def _is_acknowledgement(self, serial_no: int, body: bytes) -> bool:
        """Count the acknowledgement of the next send of a run; otherwise end all runs if one has this send."""
        if serial_no == self._runs[0].start and self._ack_shapes.learn(body):
            self._count(1)
            return True
        if any(serial_no in run for run in self._runs):
            for run in self._runs:
                self._methods.update(dict.fromkeys(run, Method.SEND_MESSAGE))
            self._runs.clear()
            self.ended_runs += 1
        return False

    def _count(self, acknowledged: int) -> None:
        self.acknowledged += acknowledged
        left = self._runs.popleft()[acknowledged:]
        if left:
            self._runs.appendleft(left)

    def _reply(self, serial_no: int, body: bytes) -> Response | Failure:
        method = self._methods.pop(serial_no, None)
        if method is None:
            raise ProtocolError(f"a reply has the serial number {serial_no}, which no request waits for")
        reply = decode_reply(body, method)
        if isinstance(reply, Response) and reply.method != method:
            raise ProtocolError(f"a request of method {method} was answered as method {reply.method}")
        return reply
