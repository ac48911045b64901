# SPDX-License-Identifier: Apache-2.0
"""One schedule: a small world with a seed, its users, its disturbances, and the promises that hold all the while."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar, NamedTuple
from unittest import mock

from tests.simulation import world as worlds
from tests.simulation.choices import change, shape
from tests.simulation.network import Network, Weather
from tests.simulation.promises import BrokenError
from tests.simulation.servers import SimulatedTubeMQ
from tests.simulation.spark import Unrest
from tests.simulation.world import Decisions, EnoughError, Process, StuckError, World
from tubemq_spark.protocol.constants import Method
from tubemq_spark.testing import ServerConfig

CALM = Weather()
_STEERED = 0.4  # of the disturbances, if states are wanted


@dataclass(frozen=True)
class Moment:
    """When a disturbance comes: at a time, after a number of requests, or when a process enters a state."""

    kind: str  # "time", "request", "state"
    value: Any
    after: float = 0.0  # seconds behind that


@dataclass(frozen=True)
class Disturbance:
    """An event that comes once. `number` chooses among brokers, topics, workers; `strength` is between 0 and 1."""

    kind: str
    moment: Moment
    number: int
    strength: float


@dataclass
class Setting:
    """What a schedule is about, apart from its disturbances. A seed makes it."""

    brokers: int = 1
    masters: int = 1
    partitions: int = 2
    stores: int = 1
    horizon: float = 20.0
    interval: float = 0.0
    weather: Weather = field(default_factory=Weather)
    unrest: Unrest = field(default_factory=Unrest)
    options: Mapping[str, str] = field(default_factory=dict)
    config: ServerConfig = field(default_factory=ServerConfig)
    kinds: tuple[str, ...] = ()  # of disturbances that may come in this schedule
    knobs: tuple[tuple[str, str, Any], ...] = ()  # module, name and value of tunables of the product
    rate: float = 0.5  # how likely each of the possible disturbances comes
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Breach:
    """A promise that was broken, and when."""

    invariant: str
    text: str
    at: float


class Exchange(NamedTuple):
    """A request that a server has executed. `held_for` are the seconds since it was sent, `from_alive` tells whether
    its sender lived then."""

    at: float
    process: Process
    server: str
    held_for: float
    from_alive: bool
    request: Any
    reply: Any


Wanted = Callable[[str, random.Random], str | None]
"""Returns a state that a disturbance of this kind shall meet; None if any will do."""


@dataclass
class Outcome:
    """The result of a schedule."""

    seed: int
    decisions: dict[worlds.Point, Any]
    cells: set[tuple[str, str]]
    states: set[str]
    kinds: list[str]  # of the disturbances that came
    batches: int
    breaches: list[Breach]  # the first of each shape
    restarts: int  # of streaming queries


class Schedule:
    """A world that is played once. Subclasses say who acts in it (`begin`, `rest`) and what is possible (`KINDS`)."""

    # Of disturbances; each is a method.
    KINDS: ClassVar[tuple[str, ...]] = (
        *("stop broker", "hang server", "part network", "switch master", "stop master", "step clock"),
    )
    SLOTS: ClassVar[int] = 8  # how many disturbances may come

    def __init__(
        self,
        seed: int,
        *,
        replay: Decisions | None = None,
        changes: Mapping[str, Any] | None = None,
        cells: Wanted | None = None,
        enough: Callable[[BrokenError], bool] | None = None,
        records: bool = False,
    ) -> None:
        """`replay` and `changes` are the decisions and the changes of the setting in `choices.Choices`. `cells` returns
        a wanted state for a kind of disturbance. The world ends with the first breach for which `enough` is true.
        `records` keeps all requests in `exchanges`."""
        self.seed = seed
        self.world = World(seed, replay)
        self.setting = self.make_setting(random.Random(f"setting {type(self).__name__} {seed}"))
        change(self.setting, changes or {})
        self.network = Network(weather=self.setting.weather)
        self.world.network, self.world.unrest = self.network, self.setting.unrest
        self.requests = 0
        self.batches = 0
        self.cells: set[tuple[str, str]] = set()
        self.states: set[str] = set()
        self.came: list[str] = []
        self.is_calm = False  # after the last disturbance
        self.held_until = 0.0
        self.troubles: list[tuple[float, str]] = []  # what could explain an error of a user, and its end
        self.crashes: dict[int, list[float]] = defaultdict(list)  # of brokers
        self._wanted = cells
        self._enough = enough
        self.exchanges: list[Exchange] | None = [] if records else None
        self._at_request: dict[int, list[Disturbance]] = {}
        self._at_state: dict[str, list[tuple[int, Disturbance]]] = {}
        self.breaches: dict[str, Breach] = {}

    # -- for subclasses -------------------------------------------------------------------------------------------

    def make_setting(self, r: random.Random) -> Setting:
        raise NotImplementedError

    def begin(self) -> None:
        """Start the actors."""
        raise NotImplementedError

    def rest(self) -> None:
        """All disturbances are over: let the actors come to an end, and check what must hold then."""
        raise NotImplementedError

    def always(self) -> None:
        """Check what must hold at any moment; called after each request that may have changed it."""

    # -- playing --------------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        world = self.world
        worlds.enter(world)
        setting = self.setting
        world.executed = self._executed
        world.entered = self._entered
        self.tubemq = SimulatedTubeMQ.within(
            world, self.network, brokers=setting.brokers, masters=setting.masters, config=setting.config
        )
        self.truth = world.truth
        knobs = ExitStack()
        try:
            for module, name, value in setting.knobs:
                knobs.enter_context(mock.patch.object(import_module(f"tubemq_spark.{module}"), name, value))
            self._plan_disturbances()
            self.begin()
            world.pass_time(setting.horizon)
            self.calm_down()
            self.rest()
        except BrokenError as error:
            if error.invariant != "comes_to_rest" or not self.breaches:  # another breach may be why
                self.breaks(error)
        except EnoughError:
            pass
        except StuckError as error:
            if not self.breaches:
                self.breaks(BrokenError("comes_to_rest", str(error)))
        finally:
            world.end()
            self.tubemq.close()
            worlds.enter(None)
            knobs.close()
        return Outcome(
            self.seed,
            world.decisions,
            self.cells,
            self.states,
            self.came,
            self.batches,
            list(self.breaches.values()),
            sum(count - 1 for name, count in world.numbers.items() if name.startswith("runs of ")),
        )

    def breaks(self, error: BrokenError) -> None:
        """Record that a promise was broken. The schedule goes on, because it may break others as well."""
        known = shape(str(error))
        if known in self.breaches:
            return
        self.breaches[known] = Breach(error.invariant, str(error), self.world.now)
        self.world.tell("promise", str(error))
        if self._enough is not None and self._enough(error):
            self.world.has_enough = True

    def guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except BrokenError as error:
            self.breaks(error)

    def calm_down(self) -> None:
        """End all disturbances that last."""
        self.is_calm = True
        self.world.tell("world", "calms down")
        self.network.weather = CALM
        self.held_until = max(self.network.hangs.values(), default=0.0)  # a hang goes on: requests stay in order
        self.network.unreachable.clear()
        self.world.unrest = self.setting.unrest = Unrest()
        for number in range(1, self.setting.masters + 1):
            self.tubemq.start_master(number)
        for broker_id in self.tubemq.broker_ids:
            self.tubemq.start_broker(broker_id)

    # -- disturbances ---------------------------------------------------------------------------------------------

    def _plan_disturbances(self) -> None:
        setting, world = self.setting, self.world
        if not setting.kinds and world.replay is None:
            return
        for slot in range(self.SLOTS):
            planned = world.decide(f"disturbance {slot}", setting.rate, self._make_disturbance)
            if planned is None:
                continue
            moment = planned.moment
            if moment.kind == "time":
                world.at(moment.value, self._fire, planned)
            elif moment.kind == "request":
                self._at_request.setdefault(moment.value, []).append(planned)
            else:
                self.when(moment.value[0], planned, moment.value[1])

    def when(self, state: str, planned: Disturbance, nth: int = 1) -> None:
        """Let a disturbance come when a process enters a state."""
        self._at_state.setdefault(state, []).append((nth, planned))

    def _make_disturbance(self, r: random.Random) -> Disturbance:
        setting = self.setting
        kind = r.choice(setting.kinds)
        choice = r.random()
        after = 0.0 if r.random() < 0.7 else r.random() ** 2 * setting.horizon / 4
        wanted = self._wanted(kind, r) if self._wanted is not None else None
        if wanted is not None:  # it may never come: most disturbances come at other moments
            choice = (choice - _STEERED) / (1.0 - _STEERED)
        if wanted is not None and choice < 0.0:
            moment = Moment("state", (wanted, r.choice((1, 1, 2, 3))), after)
        elif choice < 0.45:
            moment = Moment("time", r.random() * setting.horizon)
        else:
            moment = Moment("request", int(1 + r.random() ** 2 * 250), after)
        return Disturbance(kind, moment, r.randrange(1000), r.random())

    def _fire(self, planned: Disturbance) -> None:
        if self.is_calm:
            return
        met = set(self._states_now())
        if getattr(self, planned.kind.replace(" ", "_"))(planned) is not False:  # some find nothing to do
            self.came.append(planned.kind)
            self.cells.update((planned.kind, state) for state in met)
            self.states |= met

    def _states_now(self) -> Iterator[str]:
        """Yield what each process and server does, each process also with the last request of this work."""
        for process in self.world.processes:
            if process.host != "nowhere":
                yield f"{process.role} {process.state}"
                if process.did:
                    yield f"{process.role} {process.state}: {process.did}"
        for port in self.network.ports.values():
            role = port.name.rstrip("0123456789 ")
            if role not in {"broker", "master"}:
                continue
            hangs = self.network.hang_of(port.name, self.world.now) > 0
            yield f"{role} {'hangs' if hangs else 'runs' if port.is_open else 'is away'}"

    def _executed(self, request: Any, reply: Any) -> None:
        self.requests += 1
        method = _METHODS.get(request.method, "a request")
        serving = self.world.serving
        if serving is not None:
            process = serving.process
            if process.alive:
                process.did = method
                state = f"{process.role} {process.state}: {method}"
                if not self.is_calm:
                    self.states.add(state)
                if self._at_state:
                    self._reach(state)
            if self.exchanges is not None:
                self.exchanges.append(
                    Exchange(self.world.now, process, serving.server, serving.held_for, process.alive, request, reply)
                )
        for planned in self._at_request.pop(self.requests, ()):
            self.world.at(planned.moment.after, self._fire, planned)
        if self.truth.moved:
            self.truth.moved = False
            self.guarded(self.always)

    def _entered(self, process: Process, state: str) -> None:
        self.truth.moved = True
        name = f"{process.role} {state}"
        if not self.is_calm:
            self.states.add(name)
        if self._at_state:
            self._reach(name)

    def _reach(self, state: str) -> None:
        waiting = self._at_state.get(state)
        if not waiting:
            return
        left = []
        for nth, planned in waiting:
            if nth <= 1:
                self.world.at(planned.moment.after, self._fire, planned)
            else:
                left.append((nth - 1, planned))
        self._at_state[state] = left

    # -- disturbances of servers and network, for all schedules ----------------------------------------------------

    def trouble(self, what: str, lasts: float = 0.0) -> None:
        """Record, with its end, what may explain that a user's work fails."""
        self.troubles.append((self.world.now + lasts, what))

    def broker_of(self, planned: Disturbance) -> int:
        ids = self.tubemq.broker_ids
        return ids[planned.number % len(ids)]

    def _server_of(self, number: int) -> str:
        servers = [f"broker {n}" for n in self.tubemq.broker_ids] + ["master 1"]
        return servers[number % len(servers)]

    def stop_broker(self, planned: Disturbance) -> None:
        broker_id = self.broker_of(planned)
        self.world.tell(f"broker {broker_id}", "stops cleanly")
        seconds = 0.2 + planned.strength**2 * 20
        self.trouble("stop", seconds)
        self.tubemq.stop_broker(broker_id)
        self.world.at(seconds, self.start_broker, broker_id)

    def start_broker(self, broker_id: int) -> None:
        self.world.tell(f"broker {broker_id}", "starts")
        self.tubemq.start_broker(broker_id)

    def hang_server(self, planned: Disturbance) -> None:
        server = self._server_of(planned.number)
        seconds = 0.3 + planned.strength**3 * 40
        self.world.tell(server, f"hangs for {seconds:.1f} s")
        self.trouble("hang", seconds)
        hangs = self.network.hangs  # a second hang does not end the first one
        if hangs.get(server, 0.0) > self.world.now:
            self.trouble("long hang", seconds)
        hangs[server] = max(hangs.get(server, 0.0), self.world.now + seconds)

    def part_network(self, planned: Disturbance) -> None:
        hosts = sorted({process.host for process in self.world.processes if process.host != "nowhere"})
        if not hosts:
            return
        host = hosts[planned.number % len(hosts)]
        server = self._server_of(planned.number // 7)
        seconds = 0.5 + planned.strength**2 * 20
        self.world.tell(host, f"cannot reach {server} for {seconds:.1f} s")
        self.trouble("network", seconds)
        self.network.unreachable[host, server] = self.world.now + seconds

    def switch_master(self, planned: Disturbance) -> None:
        self.world.tell("master", "fails over to the next one")
        self.trouble("master")
        self.tubemq.switch_master(planned.strength * 5 if planned.number % 2 else 0.0)

    def stop_master(self, planned: Disturbance) -> None:
        seconds = 0.5 + planned.strength**2 * 30
        self.world.tell("master 1", f"is away for {seconds:.1f} s")
        self.trouble("master", seconds)
        self.tubemq.stop_master(1)
        self.world.at(seconds, self.tubemq.start_master, 1)

    def step_clock(self, planned: Disturbance) -> None:
        drivers = sorted({process.host for process in self.world.processes if process.role == "driver"})
        hosts = ["servers", *drivers, *drivers, *sorted({process.host for process in self.world.processes})]
        host = hosts[planned.number % len(hosts)]
        seconds = (planned.strength - 0.5) * 30
        self.world.tell(host, f"sets its clock by {seconds:+.1f} s")
        self.trouble("clock")
        self.world.wall_steps[host] = self.world.wall_steps.get(host, 0.0) + seconds

    def note_losses(self, how: str) -> None:
        self.truth.note_losses(how)


_METHODS = {method.value: method.name.lower() for method in Method}


def some(r: random.Random, chance: float, low: float, high: float) -> float:
    """Return 0, or with `chance` a number in this range, small ones more often."""
    return low + (high - low) * r.random() ** 2 if r.random() < chance else 0.0


def make_weather(r: random.Random) -> Weather:
    if r.random() < 0.4:
        return Weather()
    return Weather(
        late=some(r, 0.4, 0.005, 0.2),
        late_reply=some(r, 0.3, 0.005, 0.2),
        cut=some(r, 0.3, 0.002, 0.05),
        cut_reply=some(r, 0.3, 0.002, 0.05),
        lost=some(r, 0.15, 0.001, 0.01),
        refused=some(r, 0.2, 0.01, 0.2),
        slow_start=some(r, 0.2, 0.02, 0.3),
        longest=r.choice((0.3, 1.0, 3.0, 8.0)),
        late_after_hang=r.choice((0.0, 0.5)),
    )


def turn_knobs(
    r: random.Random, possible: Sequence[tuple[str, str, Sequence[Any]]]
) -> tuple[tuple[str, str, Any], ...]:
    """Return small values for some tunables, so that rare branches are common."""
    return tuple((module, name, r.choice(values)) for module, name, values in possible if r.random() < 0.25)


def make_unrest(r: random.Random) -> Unrest:
    return Unrest(
        speculation=some(r, 0.25, 0.1, 0.6),
        repeated_stage=some(r, 0.25, 0.1, 0.6),
        slow_task=some(r, 0.3, 0.05, 0.3),
        survives_driver=r.random() < 0.4,
    )


def small_servers(r: random.Random) -> ServerConfig:
    """Return settings with small buffers, so that rare branches are common."""
    return replace(
        ServerConfig(),
        transfer_size=r.choice((300, 2_000, 512 * 1024)),
        mem_cache_msg_count=r.choice((5, 40, 5_120)),
        max_index_segment_entries=r.choice((8, 40, 786_432)),
        message_id_phase=r.choice((300.0, 300.0, 2_190.0, 2_500.0, 4_390.0)),
    )
