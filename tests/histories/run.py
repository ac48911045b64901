# SPDX-License-Identifier: Apache-2.0
"""Play histories by name, and shrink those that fail."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from zlib import crc32

from tests.histories import calls
from tests.histories.generate import generate
from tests.histories.play import Pace, Player, Query
from tests.histories.real_world import RealServer
from tests.histories.script import TYPES, History
from tests.histories.shrink import shrink
from tests.histories.spark import Driver, SparkQuery
from tests.histories.world import EmbeddedWorld, World
from tests.real.jars import tool
from tubemq_spark.client.consumer import broker_requests
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT

_PACES = {
    ("embedded", "calls"): Pace(retry_for=0.3, rpc_timeout=0.3, claim_timeout=0.2, limit=240.0),
    ("embedded", "spark"): Pace(retry_for=2.0, rpc_timeout=0.5, claim_timeout=0.5, limit=300.0),
    ("real", "calls"): Pace(retry_for=0.5, rpc_timeout=0.5, claim_timeout=20.0, limit=300.0),
    ("real", "spark"): Pace(retry_for=3.0, rpc_timeout=0.5, claim_timeout=20.0, limit=300.0),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a history. `problem` is None if it passed."""

    history: History
    problem: str | None = None
    stats: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.history}\n{self.problem or 'passed'}"


class Stage:
    """A place to play histories: `server` is embedded or real, `engine` is calls or spark. All histories share the real
    server and Spark's driver."""

    def __init__(self, server: str = "embedded", engine: str = "calls") -> None:
        self.server, self.engine = server, engine
        self._real: RealServer | None = None
        self._driver: Driver | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Start what all histories share. Raise `MissingTool` without Java or Maven."""
        if self.engine == "spark":
            tool("java")
            self._driver = self._driver or Driver()
        if self.server == "real":
            self._real = self._real or RealServer()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._real is not None:
            self._real.close()

    def play_named(self, name: str, *, shrinks: bool = True) -> Outcome:
        """Play the history of that name. If it fails, return the outcome of the shortest one that fails in the same
        way."""
        outcome = self.play(generate(name, self.server, self.engine))
        if outcome.problem is None or not shrinks:
            return outcome
        kind, last = _kind(outcome.problem), outcome

        def fails(history: History) -> bool:
            nonlocal last
            again = self.play(history)
            if again.problem is None or _kind(again.problem) != kind:
                return False
            last = again
            return True

        shrink(outcome.history, fails, tries=150 if (self.server, self.engine) == ("embedded", "calls") else 12)
        return last

    def play(self, history: History) -> Outcome:
        stats: dict[str, int] = {}
        # Replies are small here. In every second history they are decoded as columns.
        columns_from = broker_requests.COLUMNS_FROM * (crc32(history.name.encode()) & 1)
        try:
            with (
                mock.patch.object(broker_requests, "COLUMNS_FROM", columns_from),
                self._world(history) as world,
                tempfile.TemporaryDirectory() as folder,
            ):
                player = Player(
                    history,
                    world,
                    self._maker(history, Path(folder)),
                    _PACES[self.server, self.engine],
                    self._driver_output if self.engine == "spark" else lambda: (),
                )
                stats = player.stats
                player.play()
        except Exception as error:
            return Outcome(history, "".join(traceback.format_exception(error)), stats)
        return Outcome(history, None, stats)

    @contextmanager
    def _world(self, history: History) -> Iterator[World]:
        if self.server == "embedded":
            world: World = EmbeddedWorld(history.setting)
        else:
            self.prepare()
            assert self._real is not None
            world = self._real.world(history.setting)
        try:
            for number, (partition, at) in enumerate(zip(world.partitions(), history.setting.group_at, strict=False)):
                world.begin_group(partition, 40 if number % 2 else at, at * UNIT, TYPES)
            yield world
        finally:
            world.close()

    def _maker(self, history: History, folder: Path) -> Callable[[dict[str, str], Callable[[], bool]], Query]:
        setting = history.setting
        if self.engine == "calls":
            return lambda options, is_behind: calls.Query(
                options, retries=setting.retries, width=setting.width, scans=setting.scans
            )
        self.prepare()
        driver = self._driver
        assert driver is not None
        driver.new_output()
        return lambda options, is_behind: SparkQuery(driver, options, folder, is_behind)

    def _driver_output(self) -> list[str]:
        assert self._driver is not None
        return self._driver.new_output().splitlines()


def play_alone(name: str, shrinks: bool) -> Outcome:
    """Play a history without Spark on an embedded server, in a process of a pool."""
    return Stage().play_named(name, shrinks=shrinks)


def _kind(problem: str) -> str:
    """Return the error's class and the first words of its text."""
    line = problem.strip().splitlines()[-1]
    return "".join(c for c in line if not c.isdigit())[:60]
