# SPDX-License-Identifier: Apache-2.0
"""What the simulated processes get instead of the operating system: clocks, threads, locks, and random numbers.

`simulated` puts it in place of `tubemq_spark.client.system` and of the other seams. threading's locks would not do:
they belong to OS threads, and all actors share one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation import network
from tests.simulation.world import Actor, Call, Killed, Signal, the_world


class Thread:
    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._run = lambda: target(*args, **(kwargs or {}))
        self._call: Call[Any] | None = None

    def start(self) -> None:
        world = the_world()
        if world.running is None or not world.running.process.alive:
            raise Killed
        self._call = world.running.process.start(self.name, self._run)

    def join(self, timeout: float | None = None) -> None:
        if self._call is not None:
            self._call.wait(timeout)

    def is_alive(self) -> bool:
        return self._call is not None and not self._call.done


class RLock:
    """A lock that its owner may take again; as `Lock`, nobody else does it here."""

    __slots__ = ("_count", "_owner", "_released")

    def __init__(self) -> None:
        self._owner: Actor | None = None
        self._count = 0
        self._released = Signal()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = the_world()
        me = world.running
        if self._count == 0 or self._owner is me:
            self._owner = me
            self._count += 1
            return True
        if not blocking:
            return False
        if me is None:
            raise AssertionError("the servers wait for a lock of a client")
        end = None if timeout < 0 else world.now + timeout
        while self._count:
            if not self._released.wait(end) and self._count:
                return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None
            self._released.set()

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._notified = Signal()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        world = the_world()
        end = None if timeout is None else world.now + timeout
        self._notified.enter()
        self._lock.release()
        woken = False
        try:
            woken = world.pause(end)
        finally:
            self._lock.acquire()
        return woken

    def notify_all(self) -> None:
        self._notified.set()

    notify = notify_all


def _random_bytes(count: int) -> bytes:
    world = the_world()
    return random.Random(world.hash("random bytes", world.count("random bytes"))).randbytes(count)


class _Randomizer:
    """The random numbers of a process, a function of the seed and of its name."""

    def __getattr__(self, name: str) -> Any:
        world = the_world()
        process = world.running.process.name if world.running is not None else "hub"
        found = world.randoms.get(process)
        if found is None:
            found = world.randoms[process] = random.Random(world.hash("random", process))
        return getattr(found, name)


def _process_id() -> int:
    running = the_world().running
    return 1000 + (running.process.number if running is not None else 0)


def _is_running(process: int) -> bool:
    return any(one.alive for one in the_world().processes if one.number == process - 1000)


def _host_name() -> str:
    running = the_world().running
    return running.process.host if running is not None else "servers"


Replacement = tuple[Any, str, Any]
"""An object, the name of one of its attributes, and the value that it has in a simulated world."""


def replacements() -> list[Replacement]:
    """Return what puts the simulated machine in the place of the real one."""
    from tubemq_spark.client import admin_api, system
    from tubemq_spark.client.clock import SystemClock
    from tubemq_spark.client.net import connection

    return [
        (SystemClock, "monotonic", staticmethod(lambda: the_world().now)),
        (SystemClock, "time", lambda self: the_world().wall_time()),
        (SystemClock, "sleep", lambda self, seconds: the_world().sleep(seconds)),
        (system, "Thread", Thread),
        (system, "Lock", RLock),
        (system, "RLock", RLock),
        (system, "Condition", Condition),
        (system, "Selector", network.Selector),
        (system, "SelectorForOneWait", network.Selector),
        (system, "random_bytes", _random_bytes),
        (system, "randomizer", _Randomizer()),
        (system, "process_id", _process_id),
        (system, "is_running", _is_running),
        (system, "host_name", _host_name),
        (system, "host_address", lambda: "127.0.0.1"),
        (connection, "open_socket", network.open_socket),
        (connection, "_READ_SIZE", 1 << 12),  # a new buffer for each connection takes time
        (connection, "not_received", network.not_received),
        (admin_api, "post", network.post),
    ]
