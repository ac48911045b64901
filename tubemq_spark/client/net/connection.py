# SPDX-License-Identifier: Apache-2.0
"""One TCP connection to a master or broker: pipelined requests, replies, request timeouts. `connect` finds out which
framing a server speaks.

A connection belongs to one thread at a time; the pool ensures that. It may have any number of unanswered requests.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from google.protobuf.message import Message

from tubemq_spark.client import system
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.net.open_socket import (
    Socket,
    TlsSocket,
    drop_unsent_bytes,
    not_received,
    open_socket,
    reason_of,
)
from tubemq_spark.client.retries import Deadline
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import (
    BROKER_PORT,
    BROKER_TLS_PORT,
    MASTER_PORT,
    MASTER_TLS_PORT,
    Framing,
    Method,
    ServiceType,
)
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.rpc import RpcProtocol, SendReply

_log = logging.getLogger(__name__)

FRAMINGS: PerProcess[dict[Address, Framing]] = PerProcess(dict, dict.clear)
"""The framing that each server speaks, as far as this process knows. It is forgotten with the servers, because the next
one at an address may speak the other framing.
"""

# A method that no server knows. The server answers with an exception at once and changes nothing.
_PROBE = Request(ServiceType.MASTER, 0, 10_000, b"")
_PROBE_POLL = 0.02  # seconds

_MIN_RATE = 16 * 1024  # bytes a second; the request timeout applies to a peer that sends less
_READ_SIZE = 1 << 18
_WRITE_SIZE = 1 << 18
_TLS_ALERT = b"\x15\x03"  # the first bytes of the record in which a TLS server reports an error


class SocketStream:
    """A connected, non-blocking socket with a send buffer. Its methods raise `OSError` if the peer or the network
    fails.
    """

    def __init__(self, opened: Socket) -> None:
        self.socket = opened
        self.received = 0  # bytes
        self.queued = 0  # bytes ever queued, sent or not
        self._sent = 0  # bytes that the operating system has taken
        self._to_write: deque[bytes] = deque()
        self._written = 0  # bytes of the first buffer in `_to_write`
        self.last_bytes = memoryview(bytearray(_READ_SIZE))  # of the last read, with unspecified bytes behind them
        # A shorter read has emptied a plain socket. TLS returns its records one by one, and they are short.
        self._full_read = 0 if self.is_tls else _READ_SIZE
        self._selector = system.Selector()
        self._events = system.EVENT_READ
        self._selector.register(opened, self._events)

    @property
    def is_tls(self) -> bool:
        return isinstance(self.socket, TlsSocket)

    @property
    def closed(self) -> bool:
        return self.socket.fileno() < 0

    @property
    def wanted_events(self) -> int:
        """The events that `exchange` waits for."""
        return system.EVENT_READ | (system.EVENT_WRITE if self._to_write else 0)

    @property
    def delivered(self) -> int:
        """How many queued bytes the peer's host has received, as far as the operating system reports it; else how many
        the system has taken. With TLS it may be slightly less while more bytes are in flight.
        """
        return self._sent - (0 if self.closed else not_received(self.socket))

    def queue(self, data: bytes) -> None:
        self._to_write.append(data)
        self.queued += len(data)

    def exchange(self, wait: float, receive: Callable[[memoryview], None]) -> None:
        """Write and read once, after waiting up to `wait` seconds until either is possible. Pass bytes to `receive`."""
        try:
            self.write()
        except OSError:
            self._read(receive)  # the peer may have sent a reply before it broke the connection
            raise
        events = self.wanted_events
        if events != self._events:
            self._selector.modify(self.socket, events)
            self._events = events
        if any(mask & system.EVENT_READ for _, mask in self._selector.select(wait)):
            self._read(receive)

    def is_quiet(self) -> bool:
        """Return True if nothing has come in, not even the end of the stream."""
        return not self._selector.select(0) or (isinstance(self.socket, TlsSocket) and self.socket.is_quiet())

    def close(self, *, drop_unsent: bool) -> None:
        """Close the socket. With `drop_unsent`, the system does not deliver what the peer has not got yet."""
        self._selector.close()
        if drop_unsent:
            drop_unsent_bytes(self.socket)
        self.socket.close()
        self._to_write.clear()

    def write(self) -> bool:
        """Write as much as possible without waiting. Return True if the send buffer is empty now."""
        while self._to_write:
            if len(self._to_write) > 1 and len(self._to_write[0]) < _WRITE_SIZE:
                self._gather()
            data = memoryview(self._to_write[0])[self._written :]
            try:
                written = self.socket.send(data)
            except BlockingIOError:
                return False
            self._written += written
            self._sent += written
            if self._written == len(self._to_write[0]):
                self._to_write.popleft()
                self._written = 0
        return True

    def _gather(self) -> None:
        """Join small buffers, because one write costs more than copying them."""
        parts, size = [], 0
        while self._to_write and size < _WRITE_SIZE:
            parts.append(self._to_write.popleft())
            size += len(parts[-1])
        self._to_write.appendleft(b"".join(parts))

    def _read(self, receive: Callable[[memoryview], None]) -> None:
        while True:
            try:
                size = self.socket.recv_into(self.last_bytes)
            except BlockingIOError:
                return
            if size == 0:
                raise ConnectionError("the peer closed it")
            self.received += size
            receive(self.last_bytes[:size])
            if size < self._full_read:
                return


class Connection:
    """Requests and replies over one socket. After any error it is closed, because its place in the byte stream is
    unknown then.
    """

    def __init__(
        self,
        address: Address,
        framing: Framing,
        connect_timeout: float,
        tls: TlsSettings | None = None,
        timings: Timings = DEFAULT_TIMINGS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect within `connect_timeout` seconds. Raises as `open_socket` does."""
        self.address = address
        self.framing = framing
        self.idle_since = 0.0  # on the monotonic clock; the pool sets it
        self.broker_id: int | None = None  # of the broker at the other end, if it has told; the pool sets it
        self._rpc = RpcProtocol(framing)
        self._deadlines: dict[int, float] = {}  # of unanswered requests, by serial number
        self._replies: dict[int, Response | Failure] = {}
        self._failure: TransportError | ProtocolError | None = None  # why it was closed, unless its user closed it
        self._grace = timings.slow_peer_grace
        self._clock = clock
        self._stream = SocketStream(open_socket(address, connect_timeout, tls, timings))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.unanswered} unanswered"
        return f"<Connection to {self.address}, {self.framing.value}, {state}>"

    @property
    def closed(self) -> bool:
        return self._stream.closed

    @property
    def unanswered(self) -> int:
        """The number of requests without a reply."""
        return 0 if self.closed else max(len(self._deadlines), self._rpc.unanswered)

    @property
    def queued(self) -> int:
        """How many bytes all requests have, written or not."""
        return self._stream.queued

    @property
    def is_written(self) -> bool:
        """Whether the system has taken all these bytes."""
        return not self._stream.wanted_events & system.EVENT_WRITE

    @property
    def delivered(self) -> int:
        """How many of these bytes the peer's host has received, see `SocketStream.delivered`."""
        return self._stream.delivered

    def submit(self, service: ServiceType, method: Method, message: Message, timeout: float) -> int:
        """Queue a request for the next write. Return the serial number of its reply. `timeout` is in seconds."""
        return self.submit_request(Request(service, method, max(1, int(timeout * 1000)), message.SerializeToString()))

    def submit_request(self, request: Request) -> int:
        if self.closed:
            raise TransportError(f"the connection to {self.address} is closed")
        serial_no, data = self._rpc.request(request)
        self._stream.queue(data)
        self._deadlines[serial_no] = self._clock.monotonic() + request.timeout_ms / 1000
        return serial_no

    def next_sends(self, count: int) -> range:
        """Return the serial numbers for the next sends, see `RpcProtocol.next_sends`."""
        return self._rpc.next_sends(count)

    def submit_sends(self, sends: range, data: bytes, *, wants_answers: bool) -> None:
        """Queue `data`, the frames of `sends`, for the next write."""
        if self.closed:
            raise TransportError(f"the connection to {self.address} is closed")
        self._rpc.wants_answers = wants_answers
        self._rpc.sent(sends)
        self._stream.queue(data)

    def take_outcomes(self) -> list[SendReply]:
        """Return and remove what became of sends, see `RpcProtocol.take_outcomes`."""
        return self._rpc.take_outcomes()

    def forget_replies(self) -> None:
        """Forget replies that came in and that nobody has read."""
        self._replies.clear()
        self._rpc.take_outcomes()

    def ping(self, timeout: float) -> None:
        """Wait for any answer of the peer; raise as `reply`. `timeout` is in seconds."""
        self.reply(self.submit_request(_PROBE._replace(timeout_ms=max(1, int(timeout * 1000)))))

    def reply(self, serial_no: int) -> Response | Failure:
        """Return the reply to `serial_no`; wait until its request's timeout. Bytes that come in extend the timeout by
        the time that they need at 16 KiB/s.

        Raise `TransportError` if the reply does not come in time or the connection breaks, `ProtocolError` if the peer
        speaks another protocol. In both cases the connection is closed.
        """
        # A busy reader may find replies that came long ago, so it looks at the socket for a moment at least. Bytes that
        # come in extend the timeout at a fixed rate only: a peer that sends one byte at a time must not block us.
        started, received = self._clock.monotonic(), self._stream.received
        while serial_no not in self._replies:
            deadline = self._deadlines.get(serial_no)
            if deadline is None:
                raise self._failure or TransportError(f"the connection to {self.address} is closed")
            wait = self._give_up_at(deadline, started, received) - self._clock.monotonic()
            try:
                self.poll(max(0.0, wait))
            except (TransportError, ProtocolError):
                if serial_no in self._replies:  # the reply came just before the error
                    break
                raise
            now = self._clock.monotonic()
            if serial_no not in self._replies and now >= self._give_up_at(deadline, started, received):
                self.close()
                FRAMINGS().pop(self.address, None)  # the server may have been replaced by another release
                raise TransportError(
                    f"{self.address} did not answer in time. Check its port and option 'tubemq.rpc.framing' "
                    f"({self.framing.value} was used), and that the server does not hang",
                    is_silence=True,
                )
        return self._replies.pop(serial_no)

    def flush(self) -> None:
        """Write what is queued and read what is there, as far as possible without waiting."""
        self.poll(0)

    def answered(self, serial_no: int) -> bool:
        """Return True if `reply(serial_no)` would not wait."""
        return serial_no in self._replies

    def close(self) -> None:
        if not self.closed:
            # Once a caller has given up a request, the peer must not receive it any more.
            self._stream.close(drop_unsent=self.unanswered > 0)
            self._deadlines.clear()

    def still_open(self) -> bool:
        """Return True if an idle connection can be used again: nothing came in since, not even its end."""
        return not self.closed and not self.unanswered and self._stream.is_quiet()

    def poll(self, wait: float) -> None:
        """Write and read once, after waiting up to `wait` seconds until either is possible."""
        if self.closed:
            raise TransportError(f"the connection to {self.address} is closed")
        try:
            self._stream.exchange(wait, self._receive)
        except OSError as cause:
            hint = self._tls_hint()
            self.close()
            self._failure = TransportError(f"the connection to {self.address} broke: {reason_of(cause)}{hint}")
            raise self._failure from None
        except ProtocolError as cause:
            hint = self._tls_hint() if self._stream.last_bytes[:2] == _TLS_ALERT else ""
            self.close()
            self._failure = ProtocolError(
                f"{self.address} does not speak TubeMQ's protocol ({self.framing.value}): {cause}{hint}"
            )
            raise self._failure from None

    def _receive(self, data: memoryview) -> None:
        for serial_no, reply in self._rpc.receive(data):
            self._deadlines.pop(serial_no, None)
            self._replies[serial_no] = reply
        self._rpc.receive(b"")  # raises an error in the bytes behind these replies now, because no more bytes may come

    def _give_up_at(self, deadline: float, started: float, received: int) -> float:
        """Return when to stop waiting for a reply with `deadline`. The reader started to wait at `started`, when
        `received` bytes had come in.
        """
        return max(deadline, started + self._grace) + (self._stream.received - received) / _MIN_RATE

    def _tls_hint(self) -> str:
        """Return a hint for a peer that never answered: a TLS port ends connections that do not begin with TLS."""
        if not self._rpc.never_answered or self._stream.is_tls:
            return ""
        return ". It never answered: if the port uses TLS, set option 'tubemq.tls.enabled' to true"


def connect(
    address: Address,
    framing: Framing | None,
    timeout: float,
    tls: TlsSettings | None = None,
    timings: Timings = DEFAULT_TIMINGS,
    clock: Clock = SYSTEM_CLOCK,
) -> Connection:
    """Return a connection with `framing`, or with the framing that `address` answers to if `framing` is None.

    A server does not answer the framing that it does not know. So the standard framing is tried first, and soon the
    other one too, over a second connection. Raises as `Connection` does, and `TransportError` if neither framing is
    answered within `timeout` seconds.
    """
    known = framing or FRAMINGS().get(address)
    if known is not None:
        return Connection(address, known, timeout, tls, timings, clock)
    deadline = Deadline(timeout, clock)
    standard = Connection(address, Framing.STANDARD, timeout, tls, timings, clock)
    probes = {standard: standard.submit_request(_PROBE)}
    try:
        found = _first_answered(probes, Deadline(min(timings.second_framing_after, timeout / 2), clock))
        if found is None:
            left = max(deadline.left, timings.min_connect_step)
            prefixed = Connection(address, Framing.PREFIXED, left, tls, timings, clock)
            probes[prefixed] = prefixed.submit_request(_PROBE)
            found = _first_answered(probes, deadline)
    except (TransportError, ProtocolError):
        for probe in probes:
            probe.close()
        raise
    for probe in probes:
        if probe is not found:
            probe.close()
    if found is None:
        ports = (MASTER_PORT, BROKER_PORT) if tls is None else (MASTER_TLS_PORT, BROKER_TLS_PORT)
        raise TransportError(
            f"{address} accepts connections but does not answer within {timeout:g} s in either framing. "
            f"Check that it is the {'plain' if tls is None else 'TLS'} port of a TubeMQ master or broker "
            f"({', '.join(map(str, ports))} by default)",
            is_silence=True,
        )
    FRAMINGS()[address] = found.framing
    _log.debug("%s speaks the %s framing", address, found.framing.value)
    return found


def _first_answered(probes: dict[Connection, int], deadline: Deadline) -> Connection | None:
    while not deadline.passed:
        for connection, serial_no in probes.items():
            connection.poll(min(_PROBE_POLL, deadline.left))
            if connection.answered(serial_no):
                connection.reply(serial_no)
                return connection
    return None


def wait_for_any(connections: Iterable[Connection], seconds: float) -> None:
    """Wait up to `seconds` until one of `connections` can read, or can write what is queued; `flush` does either."""
    with system.SelectorForOneWait() as selector:
        for connection in connections:
            selector.register(connection._stream.socket, connection._stream.wanted_events)
        selector.select(seconds)
