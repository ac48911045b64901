"""One TCP connection to a master or broker; the only module that touches sockets.

A connection belongs to one thread at a time (the pool sees to it). It may have any number of requests unanswered: they
are written together, and read while writing, so that neither side can block the other.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable

from google.protobuf.message import Message

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.rpc import RpcProtocol

_log = logging.getLogger(__name__)

_READ_SIZE = 1 << 18
_WRITE_SIZE = 1 << 18
_GRACE = 1.0  # seconds
_SECOND_FRAMING_AFTER = 0.3  # seconds of silence before the other framing is tried beside the first

# A call no server knows: it is answered with an exception at once, and changes nothing.
_PROBE = Request(ServiceType.MASTER, 0, 10_000, b"")


class Connection:
    """Calls over one socket. After any error it is closed, for its place in the stream is unknown then."""

    def __init__(self, address: Address, framing: Framing, connect_timeout: float) -> None:
        """`TransportError` when nobody answers at `address` within `connect_timeout` seconds."""
        self.address = address
        self.framing = framing
        self.idle_since = time.monotonic()
        self._rpc = RpcProtocol(framing)
        self._deadlines: dict[int, float] = {}
        self._replies: dict[int, Response | Failure] = {}
        self._to_write: deque[bytes] = deque()
        self._written = 0  # of the first of them
        self._broke: TransportError | ProtocolError | None = None  # why it was closed, unless its user did that
        self._chunk = memoryview(bytearray(_READ_SIZE))
        try:
            self._socket = socket.create_connection(address, timeout=connect_timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setblocking(False)
        except (OSError, UnicodeError) as cause:  # the latter for a name that cannot be a host's
            raise TransportError(f"cannot connect to {address}: {_reason(cause)}") from cause
        self._selector = selectors.DefaultSelector()
        self._events = selectors.EVENT_READ
        self._selector.register(self._socket, self._events)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._deadlines)} unanswered"
        return f"<Connection to {self.address}, {self.framing.value}, {state}>"

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    @property
    def unanswered(self) -> int:
        return len(self._deadlines)

    def submit(self, service: ServiceType, method: Method, message: Message, timeout: float) -> int:
        """Queues a request for the next write; the number to ask for its reply. `timeout` is in seconds."""
        return self.submit_bytes(service, method, message.SerializeToString(), timeout)

    def submit_bytes(self, service: ServiceType, method: Method, message: bytes, timeout: float) -> int:
        """As `submit`, for a message that was encoded before. `ProtocolError` when it does not fit into a frame."""
        return self._submit(Request(service, method, max(1, int(timeout * 1000)), message))

    def _submit(self, request: Request) -> int:
        if self.closed:
            raise TransportError(f"the connection to {self.address} is closed")
        serial_no, data = self._rpc.request(request)
        self._to_write.append(data)
        self._deadlines[serial_no] = time.monotonic() + request.timeout_ms / 1000
        return serial_no

    def reply(self, serial_no: int) -> Response | Failure:
        """Waits for the reply to `serial_no`.

        `TransportError` when it does not come in time or the connection breaks, `ProtocolError` when the peer speaks
        something else; either way the connection is closed.
        """
        # Replies may wait in the socket for longer than the timeout when their reader was busy: as long as bytes come
        # in, and for a moment after the first look, nobody is late.
        patience = time.monotonic() + _GRACE
        while serial_no not in self._replies:
            deadline = self._deadlines.get(serial_no)
            if deadline is None:
                raise self._broke or TransportError(f"the connection to {self.address} is closed")
            left = max(deadline, patience) - time.monotonic()
            if left <= 0:
                self.close()
                _framings.pop(self.address, None)  # a server may be back as another release
                raise TransportError(f"{self.address} did not answer in time; {self._silence()}")
            try:
                if self._pump(left):
                    patience = time.monotonic() + _GRACE
            except (TransportError, ProtocolError):
                if serial_no not in self._replies:  # it may have come in just before the end
                    raise
        return self._replies.pop(serial_no)

    def call(self, service: ServiceType, method: Method, message: Message, timeout: float) -> Response | Failure:
        return self.reply(self.submit(service, method, message, timeout))

    def flush(self) -> None:
        """Writes what is queued and reads what is there, as far as possible without waiting."""
        self._pump(0)

    def answered(self, serial_no: int) -> bool:
        """Whether `reply(serial_no)` would not wait."""
        return serial_no in self._replies

    def take(self) -> dict[int, Response | Failure]:
        """All replies that came in and were not asked for yet, by number."""
        replies, self._replies = self._replies, {}
        return replies

    def close(self) -> None:
        if not self.closed:
            self._selector.close()
            self._socket.close()
            self._deadlines.clear()
            self._to_write.clear()

    def still_open(self) -> bool:
        """Whether an unused connection may be used again: nothing, not even an end, came in since."""
        return not self.closed and not self._deadlines and not self._selector.select(0)

    def _silence(self) -> str:
        return f"if its port is right, is 'tubemq.rpc.framing' ({self.framing.value} was used), or is the server stuck?"

    def _pump(self, wait: float) -> bool:
        """Writes and reads once, after waiting up to `wait` seconds for either to be possible; whether bytes came
        in.
        """
        if self.closed:
            raise TransportError(f"the connection to {self.address} is closed")
        try:
            try:
                self._write()
            except OSError:
                self._read()  # what the peer said before it went
                raise
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_write else 0)
            if events != self._events:
                self._selector.modify(self._socket, events)
                self._events = events
            ready = self._selector.select(wait)
            readable = any(mask & selectors.EVENT_READ for _, mask in ready)
            if readable:
                self._read()
            return readable
        except OSError as cause:
            self.close()
            self._broke = TransportError(f"the connection to {self.address} broke: {_reason(cause)}")
            raise self._broke from cause
        except ProtocolError as cause:
            self.close()
            self._broke = ProtocolError(
                f"{self.address} does not speak TubeMQ's protocol ({self.framing.value}): {cause}"
            )
            raise self._broke from cause

    def _write(self) -> None:
        while self._to_write:
            if len(self._to_write) > 1 and len(self._to_write[0]) < _WRITE_SIZE:
                self._gather()
            data = memoryview(self._to_write[0])[self._written :]
            try:
                self._written += self._socket.send(data)
            except BlockingIOError:
                return
            if self._written == len(self._to_write[0]):
                self._to_write.popleft()
                self._written = 0

    def _gather(self) -> None:
        """Joins small requests, for one write costs more than copying them."""
        parts, size = [], 0
        while self._to_write and size < _WRITE_SIZE:
            parts.append(self._to_write.popleft())
            size += len(parts[-1])
        self._to_write.appendleft(b"".join(parts))

    def _read(self) -> None:
        while True:
            try:
                size = self._socket.recv_into(self._chunk)
            except BlockingIOError:
                return
            if size == 0:
                raise ConnectionError("the peer closed it")
            for serial_no, reply in self._rpc.receive(self._chunk[:size]):
                del self._deadlines[serial_no]
                self._replies[serial_no] = reply
            self._rpc.receive(b"")  # raises now what is wrong behind those replies: no byte may follow to tell
            if size < len(self._chunk):
                return


def wait_for_any(connections: Iterable[Connection], seconds: float) -> None:
    """Waits up to `seconds` until one of `connections` can read, or write what is queued; `flush` does either."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection._to_write else 0)
            selector.register(connection._socket, events)
        selector.select(seconds)


_framings: dict[Address, Framing] = {}  # what was found out in this process


def connect(address: Address, framing: Framing | None, timeout: float) -> Connection:
    """A connection with `framing`, or with the one that `address` answers to.

    A server is silent to the framing it does not know, so the standard one is tried first and the other one, over a
    connection of its own, soon beside it. `TransportError` when neither is answered within `timeout` seconds.
    """
    known = framing or _framings.get(address)
    if known is not None:
        return Connection(address, known, timeout)
    deadline = Deadline(timeout)
    standard = Connection(address, Framing.STANDARD, timeout)
    probes = {standard: standard._submit(_PROBE)}
    try:
        found = _first_answer(probes, min(_SECOND_FRAMING_AFTER, timeout / 2))
        if found is None:
            prefixed = Connection(address, Framing.PREFIXED, max(deadline.left, 0.1))
            probes[prefixed] = prefixed._submit(_PROBE)
            found = _first_answer(probes, deadline.left)
    except (TransportError, ProtocolError):
        for probe in probes:
            probe.close()
        raise
    for probe in probes:
        if probe is not found:
            probe.close()
    if found is None:
        raise TransportError(
            f"{address} accepts connections but answers nothing within {timeout:g} s in either framing; "
            "is it the plain port of a TubeMQ master (8715) or broker (8123)?"
        )
    _framings[address] = found.framing
    _log.debug("%s speaks the %s framing", address, found.framing.value)
    return found


def forget_framings() -> None:
    """What listens at an address next may speak the other one."""
    _framings.clear()


def _first_answer(probes: dict[Connection, int], seconds: float) -> Connection | None:
    deadline = Deadline(seconds)
    while not deadline.passed:
        for connection, serial_no in probes.items():
            connection._pump(min(0.02, deadline.left))
            if connection.answered(serial_no):
                connection.reply(serial_no)
                return connection
    return None


def _reason(cause: OSError | UnicodeError) -> str:
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
