"""One TCP connection to a master or broker, plain or over TLS; with `tls_socket` the only module that touches sockets.

A connection belongs to one thread at a time (the pool sees to it). It may have any number of requests unanswered: they
are written together, and read while writing, so that neither side can block the other.
"""

from __future__ import annotations

import logging
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from google.protobuf.message import Message

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.net.tls_socket import TlsSocket, over_tls
from tubemq_spark.client.process_caches import close_with_servers
from tubemq_spark.client.tls import TlsSettings, tls_context
from tubemq_spark.errors import ConfigError, ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address
from tubemq_spark.protocol.rpc import RpcProtocol

if sys.platform != "win32":
    import fcntl
    import termios

_log = logging.getLogger(__name__)

_READ_SIZE = 1 << 18
_WRITE_SIZE = 1 << 18
_GRACE = 1.0  # seconds
_SLOWEST = 16 * 1024  # bytes a second; a peer that sends fewer is given up at the timeout
_HANDSHAKE_WITHIN = 5.0  # seconds; a plain port is silent for ever to one that begins TLS
_LEAST_WAIT = 0.1  # seconds; the steps of connecting share their time, and the last ones need some
_AT_ONCE = struct.pack("ii", 1, 0)  # a linger of no time: unsent bytes are dropped
_TLS_ALERT = b"\x15\x03"  # begins the record in which a TLS server says what is wrong
_SECOND_FRAMING_AFTER = 0.3  # seconds of silence before the other framing is tried beside the first

# A call no server knows: it is answered with an exception at once, and changes nothing.
_PROBE = Request(ServiceType.MASTER, 0, 10_000, b"")


class Connection:
    """Calls over one socket. After any error it is closed, for its place in the stream is unknown then."""

    def __init__(
        self, address: Address, framing: Framing, connect_timeout: float, tls: TlsSettings | None = None
    ) -> None:
        """`TransportError` when nobody answers at `address` within `connect_timeout` seconds, `ProtocolError` when who
        answers over TLS is not to be trusted.
        """
        self.address = address
        self.framing = framing
        self.idle_since = time.monotonic()
        self._rpc = RpcProtocol(framing)
        self._deadlines: dict[int, float] = {}
        self._replies: dict[int, Response | Failure] = {}
        self._to_write: deque[bytes] = deque()
        self._written = 0  # of the first of them
        self._queued = self._given = 0  # bytes of all requests, and how many of them the system has taken
        self._received = 0  # bytes
        self._broke: TransportError | ProtocolError | None = None  # why it was closed, unless its user did that
        self._chunk = memoryview(bytearray(_READ_SIZE))
        # A read of less has emptied a plain socket. One over TLS gives records, which are short, one by one.
        self._whole_read = _READ_SIZE if tls is None else 0
        self._socket = _open(address, connect_timeout, tls)
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

    @property
    def queued(self) -> int:
        """How many bytes all requests have, whether they were written or not."""
        return self._queued

    @property
    def delivered(self) -> int:
        """How many of these bytes the peer's host has, as far as this system tells; on some it does not, then how many
        the system has taken. Over TLS it may be a little less, as long as more bytes are on their way."""
        return self._given - (0 if self.closed else _on_the_way(self._socket))

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
        self._queued += len(data)
        self._deadlines[serial_no] = time.monotonic() + request.timeout_ms / 1000
        return serial_no

    def reply(self, serial_no: int) -> Response | Failure:
        """Waits for the reply to `serial_no` until its request's timeout. Bytes that come in prolong that by the time
        that they take over a link of 16 KiB/s.

        `TransportError` when it does not come in time or the connection breaks, `ProtocolError` when the peer speaks
        something else; either way the connection is closed.
        """
        # A busy reader may find replies in the socket that came long ago, so it looks for a moment at the least. Bytes
        # that come in buy time at the rate of a slow link, and not more: a peer that trickles must not hold anybody.
        began, had = time.monotonic(), self._received
        while serial_no not in self._replies:
            deadline = self._deadlines.get(serial_no)
            if deadline is None:
                raise self._broke or TransportError(f"the connection to {self.address} is closed")
            wait = self._latest(deadline, began, had) - time.monotonic()
            try:
                self._pump(max(0.0, wait))
            except (TransportError, ProtocolError):
                if serial_no in self._replies:  # it may have come in just before the end
                    break
                raise
            now = time.monotonic()
            if serial_no not in self._replies and now >= self._latest(deadline, began, had):
                self.close()
                _framings.pop(self.address, None)  # a server may be back as another release
                raise TransportError(f"{self.address} did not answer in time; {self._silence()}")
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
            if self._deadlines:
                # What the peer has not got yet it shall not get later, when somebody has drawn conclusions.
                with suppress(OSError):
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self._socket.close()
            self._deadlines.clear()
            self._to_write.clear()

    def still_open(self) -> bool:
        """Whether an unused connection may be used again: nothing, not even an end, came in since."""
        if self.closed or self._deadlines:
            return False
        return not self._selector.select(0) or (isinstance(self._socket, TlsSocket) and self._socket.is_quiet())

    def _latest(self, deadline: float, began: float, had: int) -> float:
        """When to stop waiting for a reply with this `deadline`. Its reader `began` to listen when it `had` so many
        bytes.
        """
        return max(deadline, began + _GRACE) + (self._received - had) / _SLOWEST

    def _silence(self) -> str:
        return f"if its port is right, is 'tubemq.rpc.framing' ({self.framing.value} was used), or is the server stuck?"

    def _pump(self, wait: float) -> None:
        """Writes and reads once, after waiting up to `wait` seconds for either to be possible."""
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
            if any(mask & selectors.EVENT_READ for _, mask in ready):
                self._read()
        except OSError as cause:
            question = self._question()
            self.close()
            self._broke = TransportError(f"the connection to {self.address} broke: {_reason(cause)}{question}")
            raise self._broke from None
        except ProtocolError as cause:
            question = self._question() if self._chunk[:2] == _TLS_ALERT else ""
            self.close()
            self._broke = ProtocolError(
                f"{self.address} does not speak TubeMQ's protocol ({self.framing.value}): {cause}{question}"
            )
            raise self._broke from None

    def _question(self) -> str:
        """What may be the matter with a peer that never answered: a port with TLS ends what does not begin so."""
        never_answered = next(iter(self._deadlines), None) == 1
        if not never_answered or isinstance(self._socket, TlsSocket):
            return ""
        return "; it never answered: does the port speak TLS? Then set option 'tubemq.tls.enabled' to true"

    def _write(self) -> None:
        while self._to_write:
            if len(self._to_write) > 1 and len(self._to_write[0]) < _WRITE_SIZE:
                self._gather()
            data = memoryview(self._to_write[0])[self._written :]
            try:
                written = self._socket.send(data)
            except BlockingIOError:
                return
            self._written += written
            self._given += written
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
            self._received += size
            for serial_no, reply in self._rpc.receive(self._chunk[:size]):
                del self._deadlines[serial_no]
                self._replies[serial_no] = reply
            self._rpc.receive(b"")  # raises now what is wrong behind those replies: no byte may follow to tell
            if size < self._whole_read:
                return


def wait_for_any(connections: Iterable[Connection], seconds: float) -> None:
    """Waits up to `seconds` until one of `connections` can read, or write what is queued; `flush` does either."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection._to_write else 0)
            selector.register(connection._socket, events)
        selector.select(seconds)


def _on_the_way(opened: socket.socket) -> int:
    """How many bytes the system has taken, and the peer's host has not acknowledged."""
    if sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # not every system tells that of sockets
        return 0


_framings: dict[Address, Framing] = {}  # what was found out in this process


def connect(address: Address, framing: Framing | None, timeout: float, tls: TlsSettings | None = None) -> Connection:
    """A connection with `framing`, or with the one that `address` answers to.

    A server is silent to the framing it does not know, so the standard one is tried first and the other one, over a
    connection of its own, soon beside it. Raises as `Connection`, and `TransportError` when neither is answered within
    `timeout` seconds.
    """
    known = framing or _framings.get(address)
    if known is not None:
        return Connection(address, known, timeout, tls)
    deadline = Deadline(timeout)
    standard = Connection(address, Framing.STANDARD, timeout, tls)
    probes = {standard: standard._submit(_PROBE)}
    try:
        found = _first_answer(probes, min(_SECOND_FRAMING_AFTER, timeout / 2))
        if found is None:
            prefixed = Connection(address, Framing.PREFIXED, max(deadline.left, _LEAST_WAIT), tls)
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
            f"is it the {'plain' if tls is None else 'TLS'} port of a TubeMQ master or broker "
            f"({'8715, 8123' if tls is None else '8716, 8124'} by default)?"
        )
    _framings[address] = found.framing
    _log.debug("%s speaks the %s framing", address, found.framing.value)
    return found


close_with_servers(_framings.clear)  # the next server at an address may speak the other framing


def _first_answer(probes: dict[Connection, int], seconds: float) -> Connection | None:
    deadline = Deadline(seconds)
    while not deadline.passed:
        for connection, serial_no in probes.items():
            connection._pump(min(0.02, deadline.left))
            if connection.answered(serial_no):
                connection.reply(serial_no)
                return connection
    return None


# Sockets, plain or over TLS


def _open(address: Address, seconds: float, tls: TlsSettings | None) -> socket.socket:
    """A socket that does not block. Raises as `Connection`."""
    try:
        context = None if tls is None else tls_context(tls)
        deadline = Deadline(seconds)
        opened = _reach(address, deadline)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                opened = over_tls(opened, context, address, max(_LEAST_WAIT, min(deadline.left, _HANDSHAKE_WITHIN)))
            opened.setblocking(False)
        except BaseException:
            opened.close()
            raise
    except ConfigError as cause:  # the driver has checked it, but files may differ here, or just be replaced
        raise TransportError(f"cannot connect to {address}: {cause}; each executor needs the file") from None
    except (OSError, UnicodeError) as cause:  # the latter for a name that cannot be a host's
        raise TransportError(f"cannot connect to {address}: {_reason(cause)}") from None
    return opened


def _reach(address: Address, deadline: Deadline) -> socket.socket:
    """A connected socket. A name may stand for several hosts: they share the time that is left, the last one has the
    rest.
    """
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    problem = OSError(f"{address.host} is no host's name")
    for number, (family, kind, protocol, _, host) in enumerate(found):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(max(_LEAST_WAIT, deadline.left / (len(found) - number)))
            opened.connect(host)
            return opened
        except OSError as cause:
            opened.close()
            problem = cause
    raise problem


def _reason(cause: OSError | ValueError) -> str:
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
