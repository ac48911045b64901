# SPDX-License-Identifier: Apache-2.0
"""The simulated network: connections between processes and servers, with delays, cuts, and requests that outlive their
senders.

Bytes of one direction keep their order; those of different connections overtake each other freely. A chunk goes through
two stages: the network, where a reset can still drop it, and the server's queue, from where it is executed for certain,
even if its client has given up or has died. Only then the server sees the end of the connection.
"""

from __future__ import annotations

import json
import selectors
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from tests.simulation.world import Actor, Process, World, the_world
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Address

USUAL = 0.004  # seconds; the longest delay of a chunk that nothing disturbs
NAT = "nat"


@dataclass
class Weather:
    """How likely the network disturbs one chunk, in one schedule."""

    late: float = 0.0  # a request waits in the server's queue, up to `longest` seconds
    late_reply: float = 0.0
    cut: float = 0.0  # the connection is reset before the request arrives
    cut_reply: float = 0.0  # the request is executed, its reply is lost with the connection
    lost: float = 0.0  # the chunk disappears, and nobody notices
    refused: float = 0.0  # a connect fails
    longest: float = 1.0  # seconds
    slow_start: float = 0.0  # a connect takes up to a second
    late_after_hang: float = 0.0  # as `late`, for what came while the server hung


@dataclass
class Network:
    """The listeners of a world, and what happens between them and the processes."""

    weather: Weather = field(default_factory=Weather)
    ports: dict[int, Any] = field(default_factory=dict)
    next_port: int = 20_000
    behind_nat: bool = False  # the connector reaches brokers at host `NAT` only, Java clients at their own addresses
    hangs: dict[str, float] = field(default_factory=dict)  # until when a server does nothing, by its name
    unreachable: dict[tuple[str, str], float] = field(default_factory=dict)  # until when, by host and server
    handled: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # when, by server

    def hang_of(self, server: str, now: float) -> float:
        return max(0.0, self.hangs.get(server, 0.0) - now)


class Link:
    """One direction of a connection."""

    __slots__ = ("_name", "_state", "_world", "free_at")

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._state = world.hash(name)
        self.free_at = world.now

    def delay(self) -> float:
        """Return the time of arrival of a chunk that is sent now, in seconds from now."""
        self._state = state = (self._state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        self.free_at = max(self.free_at, self._world.now + USUAL * state / 0x7FFFFFFF)
        return self.free_at - self._world.now


class Socket:
    """The client's end of a connection."""

    def __init__(self, process: Process, listener: Any) -> None:
        world = process.world
        self.process, self._world = process, world
        self._net: Network = world.network
        pair = f"{process.name}→{listener.name}"
        self.name = f"{pair}#{world.count(pair)}"
        self._pair = pair
        self.server = self._server = listener.name
        self._out, self._back = Link(world, self.name + ">"), Link(world, self.name + "<")
        self._queue_free_at = world.now  # of the server's queue
        self.inbox = bytearray()
        self.eof = self._reset = self._closed = self._dropped = False
        self._sent = self._arrived = 0
        self._sent_at: deque[float] = deque()  # of the chunks that are not executed yet
        self.held_for = 0.0  # seconds between the send and the execution of the chunk that was executed last
        self.late_for = 0.0  # seconds since the server did anything for others after its client had given up
        self._closed_at = 0.0
        self._waiting: tuple[Actor, int] | None = None
        self._number = 100 + world.count("descriptor")
        process.sockets[self] = None
        self._transport = Transport(self)
        self._protocol: Any = listener.connect()
        self._protocol.connection_made(self._transport)

    def fileno(self) -> int:
        return -1 if self._closed else self._number

    def setsockopt(self, level: int, option: int, value: object) -> None:
        import socket

        if option == socket.SO_LINGER:  # to drop what has not arrived
            self._dropped = True

    def send(self, data: Any) -> int:
        self._world.check_alive()
        if self._closed:
            raise OSError(9, "Bad file descriptor")
        if self._reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        chunk = bytes(data)
        self._sent_at.append(self._world.now)
        self._sent += len(chunk)
        self._world.at(self._out.delay(), self._arrive, chunk)
        return len(chunk)

    def recv_into(self, view: memoryview) -> int:
        self._world.check_alive()
        if not self.inbox:
            if self._reset:
                raise ConnectionResetError(104, "Connection reset by peer")
            if self.eof:
                return 0
            raise BlockingIOError
        size = min(len(view), len(self.inbox))
        view[:size] = self.inbox[:size]
        del self.inbox[:size]
        return size

    def close(self) -> None:
        if not self._closed:
            self._closed, self._closed_at = True, self._world.now
            self.process.sockets.pop(self, None)
            self._world.at(self._out.delay(), self._end_at_server)

    @property
    def not_received(self) -> int:
        return self._sent - self._arrived

    @property
    def is_ready(self) -> bool:
        return bool(self.inbox) or self.eof or self._reset

    def hold(self, seconds: float) -> None:
        """Let the server handle nothing of this connection for a while."""
        self._queue_free_at = max(self._queue_free_at, self._world.now + seconds)

    def wait_with(self, ticket: tuple[Actor, int] | None) -> None:
        self._waiting = ticket

    # -- what the hub does ----------------------------------------------------------------------------------------

    def _arrive(self, chunk: bytes) -> None:
        """A chunk has reached the server's host."""
        world, net = self._world, self._net
        if self._closed and self._dropped:
            return
        if (until := net.unreachable.get((self.process.host, self._server), 0.0)) > world.now:
            self._out.free_at = max(self._out.free_at, until)
            world.at(until - world.now, self._arrive, chunk)
            return
        weather = net.weather
        if world.decide(f"lost {self._pair}", weather.lost):
            world.tell(self.name, "loses a request")
            self._sent -= len(chunk)
            self._transport.lose()
            return
        self._arrived += len(chunk)
        if world.decide(f"cut {self._pair}", weather.cut):
            world.tell(self.name, "is cut before a request")
            self._transport.reset()
            return
        hang = net.hang_of(self._server, world.now)
        chance = weather.late_after_hang if hang else weather.late
        late = world.decide(f"late {self._pair}", chance, lambda r: r.random() * weather.longest)
        due = max(world.now + hang, self._queue_free_at) + (late or 0.0)
        if late:
            world.tell(self.name, f"holds a request for {late:.2f} s")
        self._queue_free_at = due
        if due > world.now:
            world.at(due - world.now, self._execute, chunk)
        else:
            self._execute(chunk)

    def _execute(self, chunk: bytes) -> None:
        world, net = self._world, self._net
        if (hang := net.hang_of(self._server, world.now)) > 0:  # it began meanwhile
            self._queue_free_at = max(self._queue_free_at, world.now + hang)
            world.at(hang, self._execute, chunk)
            return
        sent_at, handled = self._sent_at.popleft(), net.handled[self._server]
        self.held_for = world.now - sent_at
        after = bisect_right(handled, max(sent_at, self._closed_at))
        self.late_for = world.now - handled[after] if after < len(handled) else 0.0
        handled.append(world.now)
        if not self._transport.closing:
            world.serving = self
            self._protocol.data_received(chunk)
            world.serving = None

    def _end_at_server(self) -> None:
        due = max(self._world.now, self._queue_free_at)
        self._world.at(due - self._world.now, self._transport.close_by_peer)

    def answer(self, data: bytes) -> None:
        """The server has written `data`."""
        world, weather = self._world, self._net.weather
        if world.decide(f"cut reply {self._pair}", weather.cut_reply):
            world.tell(self.name, "is cut after a request")
            self._transport.reset()
            return
        late = world.decide(f"late reply {self._pair}", weather.late_reply, lambda r: r.random() * weather.longest)
        if late:
            world.tell(self.name, f"holds a reply for {late:.2f} s")
            self._back.free_at = max(self._back.free_at, world.now) + late
        world.at(self._back.delay(), self._receive, bytes(data))

    def end(self, *, reset: bool) -> None:
        """The server's end is closed: the client learns it behind what was answered; a reset drops that."""
        self._world.at(self._back.delay(), self._receive_end, reset)

    def _receive(self, data: bytes) -> None:
        if self._closed or self._reset:
            return
        self.inbox += data
        self._wake()

    def _receive_end(self, reset: bool) -> None:
        if self._closed:
            return
        self.eof = True
        if reset:
            self._reset = True
            self.inbox.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._world.wake(*waiting)


class Transport:
    """The server's end of a connection, as its protocol sees it."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._world = socket._world
        self.closing = False
        self._lost = False

    def write(self, data: bytes | bytearray) -> None:
        if not self.closing and not self._lost:
            self._socket.answer(bytes(data))

    def lose(self) -> None:
        """Deliver nothing more in either direction, and tell nobody."""
        self._lost = True
        self.closing = True
        self._world.at(60.0, self._socket._protocol.connection_lost, None)

    def reset(self) -> None:
        if not self.closing:
            self._connection_lost()
            self._socket.end(reset=True)

    def close_by_peer(self) -> None:
        if not self.closing:
            self._connection_lost()

    abort = reset

    def close(self) -> None:
        if not self.closing:
            self._connection_lost()
            self._socket.end(reset=False)

    def write_eof(self) -> None:
        if not self._lost:
            self._socket.end(reset=False)

    def _connection_lost(self) -> None:
        self.closing = True
        self._world.at(0.0, self._socket._protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Selector:
    """Waits until one of its sockets can be read. Writing never waits."""

    def __init__(self) -> None:
        self._sockets: list[Socket] = []

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self._sockets = []

    def register(self, socket: Socket, events: int) -> None:
        self._sockets.append(socket)

    def unregister(self, socket: Socket) -> None:
        self._sockets.remove(socket)

    def modify(self, socket: Socket, events: int) -> None:
        pass

    def select(self, timeout: float | None = None) -> list[tuple[Socket, int]]:
        world = the_world()
        world.check_alive()
        ready = self._ready()
        if ready or (timeout is not None and timeout <= 0.0):
            return ready
        end = None if timeout is None else world.now + timeout
        ticket = world.ticket()
        for socket in self._sockets:
            socket.wait_with(ticket)
        world.pause(end)
        for socket in self._sockets:
            socket.wait_with(None)
        return self._ready()

    def _ready(self) -> list[tuple[Socket, int]]:
        return [(socket, selectors.EVENT_READ) for socket in self._sockets if socket.is_ready]


def open_socket(address: Address, seconds: float, tls: object, timings: Timings) -> Socket:
    """In place of the product's function of this name."""
    world = the_world()
    running = world.running
    assert running is not None
    assert tls is None
    net: Network = world.network
    process = running.process
    listener = net.ports.get(address.port)
    name = f"{process.name}→{listener.name if listener is not None else address.port}"
    server = listener.name if listener is not None else ""
    if net.behind_nat and server.startswith("broker") and address.host != NAT and not process.name.startswith("java"):
        raise TransportError(f"cannot connect to {address}: No route to host")
    slow = world.decide(f"slow connect {name}", net.weather.slow_start, lambda r: r.random())
    world.sleep(USUAL / 2 + (slow or 0.0))
    if net.unreachable.get((process.host, server), 0.0) > world.now:
        world.sleep(seconds)
        raise TransportError(f"cannot connect to {address}: timed out")
    if listener is None or not listener.is_open or world.decide(f"refuse {name}", net.weather.refused):
        raise TransportError(f"cannot connect to {address}: Connection refused")
    return Socket(process, listener)


def post(url: str, form: bytes, timeout: float) -> bytes:
    """In place of the product's function of this name: a call of a master's HTTP API."""
    world = the_world()
    assert world.running is not None
    net: Network = world.network
    process = world.running.process
    listener = net.ports.get(int(url.split(":")[2].split("/")[0]))
    if listener is None:
        raise ConnectionRefusedError("Connection refused")
    server = listener.name.removeprefix("the HTTP port of ")
    world.sleep(USUAL)
    hang = net.hang_of(server, world.now)
    world.sleep(min(hang, timeout))
    if hang >= timeout or net.unreachable.get((process.host, server), 0.0) > world.now:
        raise TimeoutError("timed out")
    if not listener.is_open or world.decide(f"refuse {process.name}→{listener.name}", net.weather.refused):
        raise ConnectionRefusedError("Connection refused")
    answer = listener.api(dict(parse_qsl(form.decode())))
    world.sleep(USUAL)
    if not isinstance(answer, dict):
        raise ConnectionError(f"a redirect to {answer.address}")
    return json.dumps(answer).encode()


def not_received(socket: Socket) -> int:
    """In place of the product's function of this name."""
    return socket.not_received
