"""A non-blocking socket with a send buffer. It reads while it writes, so that neither side can block the other."""

from __future__ import annotations

import selectors
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tubemq_spark.client.net.open_socket import TlsSocket

if sys.platform != "win32":
    import fcntl
    import termios

_READ_SIZE = 1 << 18
_WRITE_SIZE = 1 << 18
_DROP_UNSENT = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds


class SocketStream:
    """A connected, non-blocking socket with a send buffer. Its methods raise `OSError` if the peer or the network
    fails.
    """

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.received = 0  # bytes
        self.queued = 0  # bytes ever queued, sent or not
        self._sent = 0  # bytes that the operating system has taken
        self._to_write: deque[bytes] = deque()
        self._written = 0  # bytes of the first buffer in `_to_write`
        self._chunk = memoryview(bytearray(_READ_SIZE))
        # A shorter read has emptied a plain socket. TLS returns its records one by one, and they are short.
        self._full_read = 0 if self.is_tls else _READ_SIZE
        self._selector = selectors.DefaultSelector()
        self._events = selectors.EVENT_READ
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
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._to_write else 0)

    @property
    def delivered(self) -> int:
        """How many queued bytes the peer's host has acknowledged, as far as the operating system tells; else how many
        the system has taken. With TLS it may be slightly less while more bytes are in flight.
        """
        return self._sent - (0 if self.closed else _unacknowledged(self.socket))

    @property
    def last_bytes(self) -> memoryview:
        """The bytes of the last read, with unspecified bytes behind them."""
        return self._chunk

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
        if any(mask & selectors.EVENT_READ for _, mask in self._selector.select(wait)):
            self._read(receive)

    def is_quiet(self) -> bool:
        """Return True if nothing has come in, not even the end of the stream."""
        return not self._selector.select(0) or (isinstance(self.socket, TlsSocket) and self.socket.is_quiet())

    def close(self, *, drop_unsent: bool) -> None:
        """Close the socket. With `drop_unsent`, the system does not deliver what the peer has not got yet."""
        self._selector.close()
        if drop_unsent:
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
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
                size = self.socket.recv_into(self._chunk)
            except BlockingIOError:
                return
            if size == 0:
                raise ConnectionError("the peer closed it")
            self.received += size
            receive(self._chunk[:size])
            if size < self._full_read:
                return


def wait_for_any(streams: list[SocketStream], seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, stream.wanted_events)
        selector.select(seconds)


def _unacknowledged(opened: socket.socket) -> int:
    """Return how many bytes the system has taken and the peer's host has not acknowledged."""
    if sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # not every system tells this about sockets
        return 0
