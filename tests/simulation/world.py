# SPDX-License-Identifier: Apache-2.0
"""The scheduler: virtual time, actors, processes, and the decisions that make one schedule differ from another.

Everything runs in one OS thread. An actor is a greenlet; it runs until it waits, and the hub, which runs in the
greenlet that made the world, chooses the next event by its time. Each choice is a decision: by default the quiet one,
and else one that a seed made or that a list of decisions names. So the same seed, or the same list, gives the same log.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

import greenlet

from tubemq_spark.client import runtime
from tubemq_spark.client.runtime import Runtime

T = TypeVar("T")

EPOCH = 1_764_000_000.0  # of the wall clocks when a world begins
_MOST_STEPS = 400_000  # of one schedule; more mean that something waits for nothing, again and again
_MOST_IDLE_STEPS = 20_000  # at one moment

Point = tuple[str, int]
"""What is decided, and how often that was decided before."""
Decisions = Mapping[Point, Any]


class Killed(BaseException):
    """Ends the code of a process that was killed. Nothing that it still does has an effect."""


class EnoughError(BaseException):
    """The world need not go on."""


class StuckError(AssertionError):
    """The world does not come to an end."""


class Signal:
    """Wakes all actors that wait for it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Actor, int]] = []

    def wait(self, until: float | None = None) -> bool:
        self.enter()
        return the_world().pause(until)

    def enter(self) -> None:
        """Let `set` end the next pause of the running actor."""
        self._waiting.append(the_world().ticket())

    def set(self) -> None:
        waiting, self._waiting = self._waiting, []
        for actor, number in waiting:
            actor.process.world.wake(actor, number)


class Call(Generic[T]):
    """A function that runs as an actor, and what became of it."""

    def __init__(self, world: World) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._world = world
        self._value: Any = None
        self._ended = Signal()

    def finish(self, value: Any, error: BaseException | None) -> None:
        if not self.done:
            self.done, self._value, self.error = True, value, error
            self._ended.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the function has returned. Return False if that takes longer than `timeout` seconds."""
        end = None if timeout is None else self._world.now + timeout
        while not self.done:
            if not self._ended.wait(end) and not self.done:
                return False
        return True

    def result(self) -> T:
        """Wait, and return the value or raise the error. Raise `Killed` if the process of the function was killed."""
        self.wait()
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value


class Actor(greenlet.greenlet):
    """One thread of one process."""

    def __init__(self, world: World, process: Process, name: str, function: Callable[[], Any], call: Call[Any]) -> None:
        super().__init__(self._run, world.hub)
        self.process = process
        self.name = name
        self.waits = 0  # how often it has waited: tells a late wake-up from the one that is meant
        self.is_waiting = True
        self.call = call
        self.context: Any = None  # Spark's task context, for the model of Spark
        self._function = function

    def _run(self, _: object) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._function()
        except Killed as killed:
            error = killed
        except SystemExit:  # the end of a process
            pass
        except Exception as failure:
            error = failure
        finally:
            self.process.actors.pop(self, None)
        self.call.finish(value, error)


class Process:
    """A process of a host: its own `Runtime`, its threads and sockets. A kill forgets them without closing anything."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world, self.name, self.host = world, name, host
        self.alive = True
        self.runtime = Runtime()
        self.actors: dict[Actor, None] = {}
        self.sockets: dict[Any, None] = {}
        self._state = "starts"
        self.did = ""  # the last request that a server has executed in this state
        self.number = world.count("process")
        world.processes[self] = None

    def __repr__(self) -> str:
        return self.name

    @property
    def role(self) -> str:
        """The last word of the name that is no number, for coverage."""
        return self.name.rstrip("0123456789 ").rpartition(" ")[2]

    @property
    def state(self) -> str:
        """What the process does, in the words of a story: `reads`."""
        return self._state

    @state.setter
    def state(self, text: str) -> None:
        self._state, self.did = text, ""
        self.world.entered(self, text)

    def start(self, name: str, function: Callable[..., T], *args: Any) -> Call[T]:
        """Run `function` in a thread of this process."""
        world = self.world
        call: Call[T] = Call(world)
        if not self.alive:
            call.finish(None, Killed())
            return call
        parent = world.running
        actor = Actor(world, self, name, lambda: function(*args), call)
        actor.context = parent.context if parent is not None and parent.process is self else None
        self.actors[actor] = None
        world.at(0.0, world.resume, actor, None)
        return call

    def kill(self) -> None:
        """End the process at once. The operating system closes its sockets: what was sent still arrives."""
        if not self.alive:
            return
        self.alive = False
        self.world.processes.pop(self, None)
        for socket in list(self.sockets):
            socket.close()
        self.world.at(0.0, self._bury)

    def interrupt(self) -> None:
        """Send SIGTERM: `SystemExit` ends what the process does, as the reader's handler of the signal wants it."""
        self.world.at(0.0, self._interrupt)

    def _interrupt(self) -> None:
        for actor in [one for one in self.actors if one.name == "call" and not one.dead]:
            actor.waits += 1  # nothing else wakes it
            self.world.resume(actor, SystemExit(0))

    def _bury(self) -> None:
        for actor in list(self.actors):
            if actor.gr_frame is None and not actor.dead:  # it has not begun
                self.actors.pop(actor, None)
                actor.call.finish(None, Killed())
            elif not actor.dead:
                self.world.resume(actor, None)


class World:
    """One schedule. `replay` are decisions that replace those of the seed."""

    def __init__(self, seed: int, replay: Decisions | None = None) -> None:
        self.seed = seed
        self.replay = replay
        self.random = random.Random(seed)
        self.now = 0.0
        self.hub = greenlet.getcurrent()
        self.running: Actor | None = None
        self.processes: dict[Process, None] = {}
        self.numbers: Counter[str] = Counter()
        self.randoms: dict[str, random.Random] = {}  # by the name of the process that uses it
        self.decisions: dict[Point, Any] = {}
        self.log: list[tuple[float, str, str]] = []
        self.wall_steps: dict[str, float] = {}  # how far the clock of each host is off
        self.over = self.has_enough = False
        self.network: Any = None  # of `network`
        self.unrest: Any = None  # of `spark`
        self.files: dict[Any, str] = {}
        self.truth: Any = None  # of `servers`
        self.serving: Any = None  # the connection whose bytes a server handles now
        self.executed: Callable[[Any, Any], None] = lambda request, reply: None  # called for each request
        self.reported: Callable[[Process, Any], None] = lambda process, loss: None  # for each loss that is tolerated
        self.skipped: Callable[..., None] = lambda process, store, first, end: None  # for a range that is logged
        self.delivered: Callable[[Any, str], None] = lambda partition, client_id: None  # for each batch of a reader
        self.entered: Callable[[Process, str], None] = lambda process, state: None  # called for each state
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._idle_steps = 0
        self._system = Process(self, "system", "nowhere")

    # -- decisions ------------------------------------------------------------------------------------------------

    @overload
    def decide(self, what: str, chance: float) -> bool | None: ...

    @overload
    def decide(self, what: str, chance: float, make: Callable[[random.Random], T]) -> T | None: ...

    def decide(self, what: str, chance: float, make: Callable[[random.Random], Any] | None = None) -> Any:
        """Return None, or with probability `chance` a value that `make` makes; True without `make`."""
        if chance <= 0.0:
            return None
        number = self.count(what)
        if self.replay is not None:
            return self.replay.get((what, number))
        if self.random.random() >= chance:
            return None
        value: Any = True if make is None else make(self.random)
        self.decisions[what, number] = value
        return value

    def count(self, what: str) -> int:
        """Return how often this was called for `what`."""
        self.numbers[what] += 1
        return self.numbers[what]

    def hash(self, *what: object) -> int:
        """Return a number that depends on the seed and `what` alone."""
        return zlib.crc32(repr((self.seed, *what)).encode())

    # -- time and actors ------------------------------------------------------------------------------------------

    def at(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Call `function` in the hub, `seconds` from now."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds if seconds > 0.0 else self.now, self._count, function, args))

    def run(self, until: Callable[[], object], patience: float = 3600.0) -> None:
        """Let the world go on until `until` is true. Raise `StuckError` if nothing is left to do before, or if it takes
        longer than `patience` seconds."""
        end = self.now + patience
        while not until():
            if not self._events or self.now > end:
                raise StuckError(f"the world stands still at {self.now:.1f} s, and waits")
            self._step()

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self._step()
        self.now = max(self.now, end)

    def _step(self) -> None:
        time, _, function, args = heapq.heappop(self._events)
        if time > self.now:
            self.now = time
            self._idle_steps = 0
        else:
            self._idle_steps += 1
            if self._idle_steps > _MOST_IDLE_STEPS:
                raise StuckError(f"{self._idle_steps} events without any time between them, at {self.now:.3f} s")
        if self.has_enough:
            raise EnoughError
        if self._count > _MOST_STEPS:
            raise StuckError(f"more than {_MOST_STEPS} events")
        function(*args)

    def start(self, name: str, function: Callable[..., T], *args: Any) -> Call[T]:
        """Run `function` as an actor that belongs to no process of the connector."""
        return self._system.start(name, function, *args)

    def resume(self, actor: Actor, value: Any) -> None:
        """Let `actor` run until it waits. For the hub alone."""
        if actor.dead:
            return
        self.running = actor
        before = runtime.enter(actor.process.runtime)
        actor.is_waiting = False
        actor.switch(value)
        runtime.enter(before)
        self.running = None

    def ticket(self) -> tuple[Actor, int]:
        """Return what `wake` needs to end the next pause of the running actor."""
        assert self.running is not None
        return self.running, self.running.waits + 1

    def wake(self, actor: Actor, number: int) -> None:
        """End pause `number` of `actor`, if it has not ended."""
        if actor.waits == number:
            self.at(0.0, self._wake, actor, number, True)

    def _wake(self, actor: Actor, number: int, value: bool) -> None:
        if actor.is_waiting and actor.waits == number:
            self.resume(actor, value)

    def pause(self, until: float | None = None) -> bool:
        """Wait. Return True if `wake` ended it, False at the time `until`."""
        me = self.running
        assert me is not None, "only an actor can wait"
        self.check_alive()
        me.waits += 1
        me.is_waiting = True
        if until is not None:
            self.at(until - self.now, self._wake, me, me.waits, False)
        woken = self.hub.switch()
        self.check_alive()
        if isinstance(woken, SystemExit):
            raise woken
        return bool(woken)

    def sleep(self, seconds: float) -> None:
        if self.running is None:  # the hub, for the servers
            self.pass_time(seconds)
            return
        end = self.now + seconds
        while self.now < end:
            self.pause(end)

    def check_alive(self) -> None:
        """Raise `Killed` in a process that was killed, so that it has no effect any more."""
        if self.over or (self.running is not None and not self.running.process.alive):
            raise Killed

    def wall_time(self) -> float:
        host = self.running.process.host if self.running is not None else "servers"
        return EPOCH + self.now + self.wall_steps.get(host, 0.0)

    def end(self) -> None:
        """End all actors, so that nothing of this world is left."""
        self.over = True
        for process in [*self.processes]:
            process.kill()
        while self._events:
            _, _, function, args = heapq.heappop(self._events)
            if getattr(function, "__func__", None) is Process._bury:
                function(*args)

    # -- the log --------------------------------------------------------------------------------------------------

    def tell(self, who: object, what: str) -> None:
        self.log.append((self.now, str(who), what))


WORLD: World | None = None
"""The world that the primitives of `machine` and `network` belong to. There is one at a time."""


def the_world() -> World:
    assert WORLD is not None, "no world was made"
    return WORLD


def enter(world: World | None) -> None:
    global WORLD
    WORLD = world
