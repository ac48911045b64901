# SPDX-License-Identifier: Apache-2.0
"""Plays histories by name, and shrinks those that fail."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.util import Finalize
from pathlib import Path

from tests.sink_histories.generate import generate
from tests.sink_histories.jobs import Begin
from tests.sink_histories.judge import Case, judge
from tests.sink_histories.play import Pace, Player
from tests.sink_histories.real_world import RealServer
from tests.sink_histories.script import Event, History
from tests.sink_histories.world import EmbeddedWorld, World
from tests.sink_histories.zygote import Zygote
from tubemq_spark.client.timings import DEFAULT_TIMINGS

_SOON = replace(DEFAULT_TIMINGS, task_settling=0.15, closed_connection_settling=0.1)  # embedded servers are quick
_PACES = {
    "embedded": Pace(retry=2.0, rpc=0.4, begin=Begin(_SOON), limit=300.0),
    "real": Pace(retry=40.0, rpc=3.0, begin=Begin(), limit=600.0),
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a history, correct without `problem`. `calls` are the methods of requests, by batch, role and
    task."""

    history: History
    problem: str | None = None
    stats: dict[str, int] = field(default_factory=dict)
    calls: dict[tuple[int, str, int], tuple[str, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.history}\n{self.problem or 'correct'}"


class Stage:
    """Plays histories, one at a time. A `blind` sink finds no stored rows, to test that histories detect that."""

    def __init__(
        self, server: str = "embedded", *, blind: bool = False, rpc: float | None = None, retry: float | None = None
    ) -> None:
        """`rpc` and `retry` replace the usual seconds of `Pace`."""
        self.server = server
        pace = _PACES[server]
        self._pace = replace(
            pace, begin=replace(pace.begin, blind=blind), rpc=rpc or pace.rpc, retry=retry or pace.retry
        )
        self._zygote: Zygote | None = None
        self._real: RealServer | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def release(self) -> str | None:
        """The release of the real server that has been started."""
        return None if self._real is None else self._real.cluster.release

    def prepare(self) -> None:
        """Start what all histories share. Raise `MissingTool` if Java or Maven is missing."""
        self._zygote = self._zygote or Zygote()
        if self.server == "real":
            self._real = self._real or RealServer()

    def close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
        if self._real is not None:
            self._real.close()

    def play_named(self, name: str, *, shrinks: bool = True) -> Outcome:
        history = generate(name, self.server)
        return self.play_shrunk(history) if shrinks else self.play(history)

    def play_shrunk(self, history: History) -> Outcome:
        """Play `history`; if it fails, return the smallest history found that fails the same way."""
        outcome = self.play(history)
        if outcome.problem is None:
            return outcome
        kind, last = _kind(outcome.problem), outcome

        def fails(history: History) -> bool:
            nonlocal last
            again = self.play(history)
            if again.problem is None or _kind(again.problem) != kind:
                return False
            last = again
            return True

        shrink(outcome.history, fails)
        return last

    def play(self, history: History) -> Outcome:
        self.prepare()
        assert self._zygote is not None
        player: Player | None = None
        try:
            with self._world(history) as world, tempfile.TemporaryDirectory() as folder:
                player = Player(history, world, self._zygote, self._pace, Path(folder))
                player.play()
                case = Case(
                    history.setting,
                    player.query,
                    player.committed,
                    world.messages(),
                    world.lost,
                    [*world.expired],
                    frozenset(world.accidents),
                    frozenset(player.exempt),
                    player.receipts,
                    frozenset(batch for batch, tries in player.commits.items() if tries > 1),
                    frozenset(player.changed_tasks),
                )
                judge(case)
                player.stats["doubles"] += case.doubles
                player.stats["messages"] += len(case.stored)
                player.stats["batches exempt"] += len(case.exempt)
                player.stats["messages lost"] += len(case.lost)
                player.stats["messages expired"] += len(case.expired)
        except Exception as error:
            problem = "".join(traceback.format_exception(error))
            return Outcome(history, problem, player.stats if player is not None else {})
        return Outcome(history, None, player.stats, player.calls)

    @contextmanager
    def _world(self, history: History) -> Iterator[World]:
        world: World
        if self._real is not None:
            world = self._real.world(history.setting)
        else:
            world = EmbeddedWorld(history.setting)
        try:
            yield world
        finally:
            world.close()


def shrink(history: History, fails: Callable[[History], bool], tries: int = 40) -> None:
    """Remove one event after the other, as long as the history `fails` without it."""
    number = 0
    while number < len(history.events) and tries > 0:
        events: list[Event] = [*history.events]
        del events[number]
        tries -= 1
        if fails(history.with_events(events)):
            history = history.with_events(events)
        else:
            number += 1


_stages: list[Stage] = []  # of this process


def play_alone(history: History, shrinks: bool) -> Outcome:
    """Play on an embedded server, in one of several processes."""
    if not _stages:
        _stages.append(Stage())
        Finalize(None, _stages[0].close, exitpriority=1)
    return _stages[0].play_shrunk(history) if shrinks else _stages[0].play(history)


def _kind(problem: str) -> str:
    """Return the error's class and the first words of its text."""
    lines = [line for line in problem.strip().splitlines() if line and not line[0].isspace()]
    return "".join(c for c in lines[-1] if not c.isdigit())[:40]
