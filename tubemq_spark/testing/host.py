# SPDX-License-Identifier: Apache-2.0
"""What the servers of a cluster need from outside: one thread of control, real time, and a network.

`event_loop.EventLoopThread` gives them a thread and sockets. Another host can run them without both: a subclass of
`EmbeddedTubeMQ` overrides `_new_host`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from tubemq_spark.testing.clock import RealTime

if TYPE_CHECKING:
    from tubemq_spark.testing.port import Port

T = TypeVar("T")


class Transport(Protocol):
    """The sending side of one connection, as a server uses it; a part of `asyncio.Transport`."""

    def write(self, data: bytes | bytearray) -> None: ...

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        """Return True when the server has closed or aborted the connection, or has seen its end."""
        ...

    def close(self) -> None:
        """End the connection when all written bytes are sent."""

    def abort(self) -> None:
        """Reset the connection now."""


class Host(RealTime, Protocol):
    """The place where the servers of one cluster run.

    All functions run one after the other, also those of `after` and the connections' methods. The host drives a
    connection as asyncio does: `port.connect()` when a client arrives at an open port, `connection_made(transport)`,
    `data_received(data)` any number of times, and `connection_lost(error)` once after the end or an abort.
    """

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` and return its result; also within another call. `RuntimeError` after `close`."""
        ...

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run `function` once when `seconds` of real time have passed, unless `close` comes first."""

    def listen(self, port: Port) -> None:
        """Let connections to `port` begin. The host sets `port.port` if it is 0; `OSError` when it is in use."""

    def stop_listening(self, port: Port) -> None:
        """Refuse connections to `port`, and keep its number for the next `listen`; the port ends the open ones."""

    def close(self, last: Callable[[], None]) -> None:
        """Run `last`, and no function after it; a second call does nothing."""
