# SPDX-License-Identifier: Apache-2.0
"""The scenarios: what is sent, which fault happens, and what must come out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.topics import FLUSH_SOON, TopicSpec

_USUAL = TopicSpec(partitions=3, settings=FLUSH_SOON)
_WIDE = TopicSpec(partitions=10, stores=10, settings=FLUSH_SOON)  # 200 partitions on two brokers

# Spark starts a second attempt of a task that takes longer than the others, soon.
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}
# Each row reaches the sink when it is given out.
_UNBUFFERED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "16",
}
_DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "5s",
}


@dataclass(frozen=True)
class Scenario:
    """`times` is how often each row must be in what the program returns, None if it returns no rows. `copies` says
    whether the output topic must have each row once. `kills` tells when an executor is killed: while the program
    "reads", or when the output topic has rows ("writes"). `needs` names other results of the program that must be
    true. If it `ships`, the Python of executors and planners lacks the package."""

    name: str
    program: str
    what: str
    times: int | None = 1
    copies: bool = False
    sends: bool = True
    count: int = 3000
    kills: str | None = None
    needs: tuple[str, ...] = ()
    ships: bool = False
    topic: TopicSpec = _USUAL
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def input(self) -> str:
        return f"{self.name}_in"

    @property
    def output(self) -> str:
        return f"{self.name}_out"

    @property
    def topics(self) -> dict[str, TopicSpec]:
        return {**({self.input: self.topic} if self.sends else {}), **({self.output: _USUAL} if self.copies else {})}

    def write_argument(self, folder: Path, spark: str, tubemq: str) -> Path:
        """Write the application's argument for the masters of Spark and TubeMQ into `folder`; return the file."""
        given = {
            "scenario": self.name,
            "program": self.program,
            "spark": spark,
            "tubemq": tubemq,
            "topic": self.input,
            "output": self.output,
            "folder": str(folder),
            "count": self.count,
            "config": dict(self.config),
        }
        argument = folder / "given.json"
        argument.write_text(json.dumps(given), encoding="utf-8")
        return argument

    def problems(self, found: Mapping[str, Any], stored: list[int]) -> list[str]:
        """Return what is wrong with what the program returned, and with the numbers in the output topic."""
        wrong = []
        if self.times is not None:
            each = {
                "rows": self.times * self.count,
                "distinct": self.count,
                "sum": self.times * self.count * (self.count - 1) // 2,
            }
            got = {name: found.get(name) for name in each}
            if got != each:
                wrong.append(f"{got} instead of {each}")
        wrong += [f"it is not true that {need}" for need in self.needs if found.get(need) is not True]
        if self.copies and sorted(stored) != list(range(self.count)):
            missing, extra = set(range(self.count)) - set(stored), len(stored) - len(set(stored))
            wrong.append(f"the output topic has {len(stored)} rows: {len(missing)} are missing, {extra} are copies")
        return wrong


SCENARIOS = (
    Scenario("batch", "read_batch", "batch read"),
    Scenario("union", "union", "union of a batch read with itself", times=2),
    Scenario("join", "join", "self-join of a batch read"),
    Scenario("stream", "read_stream", "stream into files, several micro-batches"),
    Scenario("streamUnion", "stream_union", "union of a stream with itself", times=2),
    Scenario("streamJoin", "stream_join", "self-join of a stream"),
    Scenario("sink", "write", "batch write", times=None, copies=True, sends=False),
    Scenario("copy", "copy_stream", "stream into a topic with `effectivelyOnce`", times=None, copies=True),
    Scenario(
        "shipped",
        "ship",
        "`register(spark, ship=True)`: batch read, and a copy",
        copies=True,
        needs=("travels", "counted"),
        ships=True,
    ),
    Scenario("killReading", "read_batch_slowly", "an executor dies during a batch read", count=1200, kills="reads"),
    Scenario(
        "killWriting",
        "copy_slowly",
        "an executor dies during a write with `effectivelyOnce`",
        times=None,
        copies=True,
        count=1200,
        kills="writes",
    ),
    Scenario(
        "repeatedStage",
        "repeat_stage",
        "a stage that writes with `effectivelyOnce` is repeated",
        times=None,
        copies=True,
        count=600,
        needs=("repeated", "fenced"),
        config=_UNBUFFERED,
    ),
    Scenario("wide", "read_and_copy", "200 partitions: batch read, and a copy", copies=True, topic=_WIDE),
    Scenario(
        "speculation",
        "speculate",
        "speculation: batch read and stream",
        config=_SPECULATION,
        count=900,
        needs=("same", "speculated"),
    ),
    Scenario(
        "dynamic", "scale", "dynamic allocation to zero executors and up again", config=_DYNAMIC, needs=("started",)
    ),
)
