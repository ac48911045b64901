# SPDX-License-Identifier: Apache-2.0
"""Listeners: bytes to frames, frames to a service, and back, on one thread for a whole cluster."""

from __future__ import annotations

import struct
from collections import deque

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.constants import RPC_MAX_BUFFER_SIZE, Framing
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_request, encode_reply
from tubemq_spark.protocol.frame import Frame, FrameDecoder, encode_frame
from tubemq_spark.testing.clock import Timers
from tubemq_spark.testing.dispatch import Service, unreadable
from tubemq_spark.testing.faults import Effect, Fault, Faults
from tubemq_spark.testing.port import Connection, Host, Port, TLSFiles

WRITE_AT = 256 * 1024  # bytes of answers that one write sends; the transport may then pause a connection


class Listener(Port):
    """A port that serves TubeMQ's requests, and the connections to it."""

    def __init__(
        self, service: Service, host: Host, timers: Timers, faults: Faults, framing: Framing, tls: TLSFiles | None
    ) -> None:
        super().__init__(service.name, host, tls)
        self.service = service
        self.timers = timers
        self.faults = faults
        self.framing = framing

    def answer(self, request: Request) -> Response | Failure | None:
        return self.service.answer(request, tls=self.tls_context is not None)

    def connect(self) -> Connection:
        return _Connection(self)


class _Connection(Connection):
    """One connection. It handles requests in the order of their arrival, as TubeMQ's workers do."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._listener = listener
        self._decoder = FrameDecoder(listener.framing)
        self._waiting: deque[Frame] = deque()
        self._held = False  # by a delayed request
        self._silent = False
        self._unsent = bytearray()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None:
            self._resume_requests()

    def _is_ending(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        if self._silent or self._transport is None:
            return
        try:
            self._waiting.extend(self._decoder.feed(data))
        except ProtocolError:
            # The real server logs it, keeps the connection open, and understands nothing that follows.
            self._silent = True
            return
        self._resume_requests()

    def _resume_requests(self) -> None:
        self._listener.service.tick()
        while self._waiting and self._transport is not None and not (self._held or self._silent or self._paused):
            self._handle(self._waiting.popleft())
            if len(self._unsent) >= WRITE_AT:
                self._flush()
        self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, bytearray()
        if self._transport is not None and unsent:
            self._transport.write(unsent)

    def _handle(self, frame: Frame) -> None:
        try:
            request = decode_request(frame.body)
        except ProtocolError as error:
            self._unsent += self._encode(frame, unreadable(str(error), ended=isinstance(error.__cause__, EOFError)))
            return
        fault = self._listener.faults.fault_on(self._listener.name, request)
        if fault is None:
            self._unsent += self._encode(frame, self._listener.answer(request))
        elif delay := fault.effect.delay:
            self._held = True
            too_late = delay * 1000 > request.timeout_ms
            self._listener.timers.after(delay, lambda: self._resume(frame, request, fault, too_late))
        else:
            self._handle_with(frame, request, fault)

    def _resume(self, frame: Frame, request: Request, fault: Fault, too_late: bool) -> None:
        self._held = False
        if self._transport is None:
            return
        if not too_late:  # else the server drops it, as a request that waited longer than its timeout
            self._handle_with(frame, request, fault)
        self._resume_requests()

    def _handle_with(self, frame: Frame, request: Request, fault: Fault) -> None:
        effect = fault.effect
        close = effect.close
        try:
            self._unsent += self._reply_with(frame, request, effect)
        except BaseException as error:  # an error of the test's function, which the fault raises there
            fault.failed(error)
            close = True
        if effect.silence:
            self._silent = True
        if close:
            self._flush()
            self._end()

    def _reply_with(self, frame: Frame, request: Request, effect: Effect) -> bytes:
        if effect.before is not None:
            effect.before()
            if self._is_ending():  # the function stopped this server
                return b""
        reply: Response | Failure | None = None
        if effect.delay_by_gets:
            self._listener.service.delay_next_get(effect.delay_by_gets)
        if effect.work:
            reply = self._listener.answer(request)
        if effect.reply is not None:
            reply = effect.reply(request)
        if effect.after is not None:
            effect.after()
        sent = self._encode(frame, reply)
        return sent if effect.damage is None else effect.damage(sent)

    def _end(self) -> None:
        """End the connection after the answers that were written.

        `close` would reset it if there is more to read, and a reset overtakes the answers. So this side sends EOF only,
        and the peer closes the connection.
        """
        self._silent = True
        if self._transport is None:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _encode(self, frame: Frame, reply: Response | Failure | None) -> bytes:
        if reply is None:
            return b""
        framing = self._listener.framing
        data = encode_frame(frame.serial_no, encode_reply(reply), framing)
        return data if framing is Framing.STANDARD else _pad(data)


def _pad(data: bytes) -> bytes:
    """Return a prefixed frame as 1.1 and 1.2 write it: padded with the whole buffer of its last block."""
    (blocks,) = struct.unpack_from(">i", data, 12)
    length = 12 + blocks * (4 + RPC_MAX_BUFFER_SIZE)
    return struct.pack(">i", length) + data[4:] + bytes(length + 4 - len(data))
