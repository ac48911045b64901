# SPDX-License-Identifier: Apache-2.0
"""A streaming query that reads five micro-batches, stops, and reads the rest in a new run."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tests.every_call.hook import DRIVER, Call, CallHook, NumberedQuery
from tests.every_call.trials import BROKEN, MISSED, SOURCE, Result, Trial, faults_of, outcome_of
from tests.histories import world as embedded
from tests.histories.ledger import CRASH
from tests.histories.play import Pace, Player
from tests.histories.real_world import RealServer, RealWorld
from tests.histories.script import Event, History, Setting, TopicShape
from tests.histories.world import EmbeddedWorld
from tubemq_spark.protocol.metadata import Partition

_SHOWN_AFTER = 30.0  # seconds; 7 are usual
SOON = 0.05  # seconds after which a client of the embedded server gives up a missing reply

# The partitions are listed only when a run begins, so that the number of requests does not depend on the machine.
# Real servers have only topics of certain shapes.
SETTINGS = {
    server: Setting(
        brokers=2,
        masters=1,
        topics={"a": TopicShape(1, 1), "b": TopicShape(partitions, 1)},
        config={"transfer_size": 512},
        options={"startingOffsets": "earliest", "metadataIntervalMs": "600000"},
        retries=1,
    )
    for server, partitions in (("embedded", 2), ("real", 3))
}
_PACES = {
    "embedded": Pace(retry_for=20.0, rpc_timeout=10.0, claim_timeout=0.3, limit=120.0),
    "real": Pace(retry_for=20.0, rpc_timeout=10.0, claim_timeout=20.0, limit=300.0),
}


def _send(count: int, to: int, spread: int) -> Event:
    """Return an event that sends to `spread` partitions from number `to`. Numbers 0 and 1 are those of topic a, one on
    each broker. Those of topic b follow, which share a store on each broker."""
    return Event("send", {"count": count, "to": to, "spread": spread, "size": 60})


def _run(batches: int) -> Event:
    return Event("run", {"batches": batches, "available_now": False})


EVENTS = (
    *(_send(6, 0, 2), _run(1)),
    *(_send(6, 2, 2), _run(1)),
    *(_send(3, 0, 1), _run(1)),
    *(_send(4, 1, 2), _run(1)),
    *(_send(4, 4, 2), _run(1)),
    Event("stop"),
    *(_send(4, 0, 2), _run(50)),
    Event("stop"),
)


def history(server: str = "embedded") -> History:
    """Return the history without a fault."""
    return History("no fault", SETTINGS[server], EVENTS)


def with_fault(nth: int, how: str, role: str, server: str = "embedded") -> History:
    """Return the history with a fault at request number `nth`."""
    what = how.partition("_")[0]
    what = {"crash": "crash_peer", "kill": "kill" if role == DRIVER else "kill_worker"}.get(what, what)
    event = Event("at_call", {"nth": nth, "how": how, "what": what})
    return History(f"{how} at call {nth}", SETTINGS[server], (event, *EVENTS))


class World(embedded.World, Protocol):
    hook: CallHook


class EmbeddedCalls(EmbeddedWorld):
    """An embedded cluster. A broker that crashes at a request has flushed its messages. A crashed server starts again
    when the query has tried in vain to connect to it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.hook = CallHook(self._crash_peer, self._refused, SOON)

    def change(self, kind: str, args: dict[str, Any], types: Sequence[str]) -> None:
        if kind == "at_call":
            self.hook.arm(args["nth"], args["how"])
        else:
            super().change(kind, args, types)

    def end_troubles(self) -> None:
        self.hook.disarm()
        self.tubemq.start_master()
        super().end_troubles()

    def _crash_peer(self, address: str) -> None:
        broker = self._brokers().get(address)
        if broker is None:
            assert address == self.master
            self.tubemq.stop_master()
            return
        for topic in self.topics:
            self.tubemq.flush(topic, broker_id=broker)
        self.crash(broker)

    def _refused(self, address: str) -> None:
        broker = self._brokers().get(address)
        if broker is None:
            self.tubemq.start_master()
        else:
            self.start(broker)

    def _brokers(self) -> dict[str, int]:
        return {self.tubemq.broker_address(broker): broker for broker in self.broker_ids}


class RealCalls(RealWorld):
    """A real cluster. A killed server starts again at once. A broker may lose what it had not flushed, and the ledger
    checks that the query reports exactly that."""

    def __init__(self, server: RealServer) -> None:
        server.wait_until_ids_are_unambiguous()
        super().__init__(server.cluster, SETTINGS["real"])
        self.hook = CallHook(self._crash_peer, lambda address: None, None)

    def change(self, kind: str, args: dict[str, Any], types: Sequence[str]) -> None:
        if kind == "at_call":
            self.hook.arm(args["nth"], args["how"])
        else:
            super().change(kind, args, types)

    def end_troubles(self) -> None:
        self.hook.disarm()
        super().end_troubles()

    def group_offset(self, partition: Partition) -> int | None:
        """Return the group's position. A broker of release 2.5 shows a new group only after some seconds."""
        deadline = time.monotonic() + _SHOWN_AFTER
        while (position := super().group_offset(partition)) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return position

    def _crash_peer(self, address: str) -> None:
        for broker in self.broker_ids:
            if address == self._cluster.broker_address(broker):
                self._cluster.kill_broker(broker)
                self._cluster.start_broker(broker)
                self.sync(CRASH)
                return
        assert address == self.master
        self._cluster.kill_master()
        self._cluster.start_master()


class SourceStage:
    """Plays trials, one at a time. All share the real server."""

    def __init__(self, server: str = "embedded") -> None:
        self.server = server
        self._real: RealServer | None = None

    def prepare(self) -> None:
        """Start the real server. Raise `MissingTool` without Java or Maven."""
        if self.server == "real":
            self._real = self._real or RealServer()

    @property
    def release(self) -> str | None:
        return None if self._real is None else self._real.cluster.release

    def close(self) -> None:
        if self._real is not None:
            self._real.close()

    def calls(self) -> list[Call]:
        """Return the requests of the query if nothing happens. Raise the error of a broken promise."""
        calls, _, _ = self.play_history(history(self.server))
        return calls

    def trials(self) -> list[Trial]:
        """Return a trial for each request and each fault."""
        calls = self.calls()
        expected = Counter(calls)
        return [
            Trial(SOURCE, call.role, call.method, column, how, expected, with_fault(nth, how, call.role, self.server))
            for nth, call in enumerate(calls, 1)
            for column, how in faults_of(call.role)
        ]

    def play(self, trial: Trial) -> Result:
        try:
            calls, met, stats = self.play_history(trial.history)
        except Exception as error:
            return Result(trial, BROKEN, (), "".join(traceback.format_exception(error)))
        if met is None:
            return Result(trial, MISSED)
        errors = [name for name in stats if name.endswith("Error")]
        is_ended = bool(errors) or trial.column == "driver killed"
        is_repeated = trial.column == "worker killed"
        return Result(
            trial,
            outcome_of(Counter(calls), trial.expected, is_ended=is_ended, is_repeated=is_repeated),
            errors,
        )

    def play_history(self, history: History) -> tuple[list[Call], Call | None, dict[str, int]]:
        """Return the requests of a history, the one with the fault, and counts of events and errors. Raise the error
        of a broken promise."""
        with self._world() as world, world.hook.installed():
            hook, setting = world.hook, history.setting
            player = Player(
                history,
                world,
                lambda options, _: NumberedQuery(options, hook, retries=setting.retries, width=setting.width),
                _PACES[self.server],
                lambda: (),
            )
            player.play()
            return hook.calls, hook.met, player.stats

    @contextmanager
    def _world(self) -> Iterator[World]:
        self.prepare()
        world: World = EmbeddedCalls(SETTINGS[self.server]) if self._real is None else RealCalls(self._real)
        try:
            yield world
        finally:
            world.close()
