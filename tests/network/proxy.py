# SPDX-License-Identifier: Apache-2.0
"""TCP proxies whose network tests disturb: latency, jitter, resets, half-open connections, a low rate, an outage.

All proxies of a `Network` run in one thread. Tests change `Way`s at any time; the change counts from the next bytes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Failure, Response, decode_reply
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.metadata import Address

T = TypeVar("T")

Reply = Response | Failure
Edit = Callable[[int, Reply], Iterable[bytes] | None]
"""The bytes to send instead of a reply, given its serial number; None leaves it as it is."""

_READ = 1 << 16  # bytes
_TICK = 0.02  # seconds between two looks at a condition that holds bytes back
_QUEUED = 64  # pieces that wait for their moment; then the proxy reads no more
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@dataclass
class Way:
    """The network in one direction. Times are in seconds.

    Bytes arrive `latency` later, and up to `jitter` more, but in their order. `rate` limits the bytes per second of a
    connection. While `is_down`, bytes wait, as they do when a network fails for a while. While `swallows`, bytes are
    lost, and the peer is never told: its connections are half open.
    """

    latency: float = 0.0
    jitter: float = 0.0
    rate: float | None = None
    is_down: bool = False
    swallows: bool = False


class Proxy:
    """Listens at `address` and relays connections to `target`. `up` leads to the server, `down` to the client.

    With `edit`, replies are decoded, and `edit` may replace them. Both may be changed at any time.
    """

    def __init__(self, network: Network, target: Address, framing: Framing = Framing.STANDARD) -> None:
        self.target = target
        self.up, self.down = Way(), Way()
        self.edit: Edit | None = None
        self.connections = 0
        self._network = network
        self._framing = framing
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server((target.host, 0))
        self.address = Address(target.host, self._listener.getsockname()[1])
        self._server = network.run(asyncio.start_server(self._relay, sock=self._listener))

    def disturb(self, **changes: Any) -> None:
        """Change both directions."""
        for way in (self.up, self.down):
            for name, value in changes.items():
                assert hasattr(way, name), name
                setattr(way, name, value)

    def calm(self) -> None:
        """Undo all disturbances. Half-open connections are reset, because what was lost of them stays lost."""
        self.up, self.down = Way(), Way()
        self.edit = None
        self.reset()

    def reset(self) -> None:
        """Reset all connections."""
        self._network.run(self._reset())

    def close(self) -> None:
        self._network.run(self._close())

    async def _reset(self) -> None:
        for link in list(self._links):
            for writer in link:
                _abort(writer)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while self.up.is_down:
                await asyncio.sleep(_TICK)
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, either side has broken the connection, or the test ends
        finally:
            _abort(writer)
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_server = await asyncio.open_connection(*self.target)
        link = (writer, to_server)
        self._links.add(link)
        try:
            for one in link:
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = self._pump(reader, to_server, is_up=True), self._pump(there, writer, is_up=False)
            await _until_one(asyncio.FIRST_COMPLETED, *ways)
        finally:
            self._links.discard(link)
            _abort(to_server)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool) -> None:
        """Relay one direction until either side ends."""
        pieces: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(_QUEUED)
        sending = self._send(pieces, writer, is_up=is_up)
        await _until_one(asyncio.FIRST_EXCEPTION, sending, self._receive(reader, pieces, is_up=is_up))

    async def _receive(
        self, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes] | None], *, is_up: bool
    ) -> None:
        decoder = FrameDecoder(self._framing)
        clock = asyncio.get_running_loop().time
        due = 0.0
        while data := await reader.read(_READ):
            way = self.up if is_up else self.down
            due = max(due, clock() + way.latency + random.random() * way.jitter)
            for piece in [data] if is_up or self.edit is None else self._edited(decoder, data):
                await pieces.put((due, piece))
        await pieces.put(None)

    def _edited(self, decoder: FrameDecoder, data: bytes) -> Iterable[bytes]:
        for serial_no, body in decoder.feed(data):
            changed = None if self.edit is None else self.edit(serial_no, decode_reply(body))
            if changed is None:
                yield encode_frame(serial_no, body, self._framing)
            else:
                yield from changed

    async def _send(
        self, pieces: asyncio.Queue[tuple[float, bytes] | None], writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        clock = asyncio.get_running_loop().time
        while (piece := await pieces.get()) is not None:
            due, data = piece
            await asyncio.sleep(max(0.0, due - clock()))
            left = memoryview(data)
            while left:
                way = self.up if is_up else self.down
                while way.is_down:
                    await asyncio.sleep(_TICK)
                    way = self.up if is_up else self.down
                if way.swallows:
                    break
                if way.rate is None:
                    part, pause = left, 0.0
                else:
                    part = left[: max(1, int(way.rate * 0.05))]
                    pause = len(part) / way.rate
                writer.write(part)
                await writer.drain()
                left = left[len(part) :]
                await asyncio.sleep(pause)


class Network:
    """The thread of the proxies; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._proxies: list[Proxy] = []

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self._proxies:
            proxy.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def proxy(self, target: Address) -> Proxy:
        """Return a new proxy before `target`, on the same host."""
        self._proxies.append(Proxy(self, target))
        return self._proxies[-1]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


async def _until_one(moment: str, *works: Coroutine[Any, Any, None]) -> None:
    """Run `works` until one of them ends, or fails, as `moment` says; then end the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=moment)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a reset."""
    with contextlib.suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
