# SPDX-License-Identifier: Apache-2.0
"""The producer and the queries as processes of sessions of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.soak.clock import SteppedClock
from benchmarks.soak.servers import INPUT, OUTPUTS, SoakTubeMQ
from tests.matrix.queries import numbers
from tests.real.processes import members
from tests.spark.kills import kill, kill_a_worker
from tests.spark_home import spark_home
from tests.spark_jvm import quick_start

_ROOT = Path(__file__).parents[2]
RETRY_MS = "180000"  # on a busy machine a broker may need more than the default to start
# A heap of one size and few retained results: Spark fills both within minutes, and a leak is what comes on top.
_HEAP = "512m"
_CONFIG = {
    "spark.driver.memory": _HEAP,
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "20",
}
_PATIENCE = 180.0  # seconds for a program that ends
_LEADER = 5.0  # seconds for a driver to notice that its Java process has died


class Program:
    """One program that is started, killed and started again. Its output goes to `<name>.log`."""

    def __init__(self, name: str, module: str, given: dict[str, Any], folder: Path, env: dict[str, str]) -> None:
        self.name = name
        self.starts = 0
        self._command = [sys.executable, "-m", module, json.dumps(given)]
        self._log = folder / f"{name}.log"
        self._env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(spark_home()), **env}
        self._process: subprocess.Popen[str] | None = None
        self._left: list[int] = []  # sessions whose Python workers may live

    def start(self) -> None:
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.name == "producer" else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, command: str) -> str:
        """Send a line and return the program's answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def end(self) -> int:
        """Close the program's input, wait for its end and return its status."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = self._process.wait(_PATIENCE)
        for session in (self._process.pid, *self._left):
            kill(session)  # what it left
        return status

    def kill(self) -> None:
        """Send SIGKILL to all processes of the program, those that `kill_java` left included."""
        assert self._process is not None
        for session in (self._process.pid, *self._left):
            kill(session)
        self._left.clear()
        self._process.wait()
        self._close_pipes()

    def kill_java(self) -> None:
        """Send SIGKILL to Spark's Java process only. The Python workers may live on for a while."""
        assert self._process is not None
        kill(self._process.pid, "java")
        self._left.append(self._process.pid)
        try:
            self._process.wait(_LEADER)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError, AttributeError):
                pipe.close()  # type: ignore[union-attr]

    def kill_a_worker(self, chance: random.Random) -> bool:
        """Kill one process that runs Spark's tasks. Return False if there is none."""
        return self.is_running and kill_a_worker(self.pid, chance)

    def pids(self) -> list[int]:
        return members(self.pid) if self.is_running else []


class Query(Program):
    """A query with its checkpoint."""

    def __init__(self, name: str, tubemq: SoakTubeMQ, folder: Path, clock: SteppedClock, seconds: float) -> None:
        self.checkpoint = folder / f"checkpoint-{name}"
        self.local = folder / f"local-{name}"
        self.ends = folder / f"{name}-ends.jsonl"
        self.group = f"soak_{name}"
        self._committed_at_start = 0
        given = {
            "source": {
                "tubemq.master": tubemq.master,
                "tubemq.group": self.group,
                "subscribe": INPUT,
                "startingOffsets": "earliest",
                "maxPartitionsPerTask": "2",
                "tubemq.retry.maxElapsedMs": RETRY_MS,
            },
            "sink": {
                "tubemq.master": tubemq.master,
                "topic": OUTPUTS[name],
                "effectivelyOnce": "true",
                "checkpointLocation": str(self.checkpoint),
                "tubemq.retry.maxElapsedMs": RETRY_MS,
            },
            "columns": ["value"],
            "config": {
                **_CONFIG,
                "spark.driver.extraJavaOptions": f"{quick_start()} -Xms{_HEAP}",
                "spark.local.dir": str(self.local),
            },
            "seconds": seconds,
            "ends": str(self.ends),
        }
        super().__init__(name, "tests.spark.endless_copy", given, folder, clock.environment())

    def start(self) -> None:
        self._committed_at_start = self.committed()
        super().start()

    @property
    def has_progressed(self) -> bool:
        """Whether it has committed a micro-batch since its last start, so that it holds its partitions."""
        return self.committed() > self._committed_at_start

    def committed(self) -> int:
        """Return how many micro-batches are committed, by the number of the last one."""
        return max(numbers(self.checkpoint / "commits"), default=-1) + 1

    def own_ends(self) -> list[str]:
        """Return the errors with which the query ended by itself."""
        if not self.ends.exists():
            return []
        return [json.loads(line)["error"] for line in self.ends.read_text().splitlines()]


def producer(tubemq: SoakTubeMQ, folder: Path, rate: float, size: int) -> Program:
    given = {"master": tubemq.master, "topic": INPUT, "rate": rate, "size": size, "log": str(folder / "sent.jsonl")}
    return Program("producer", "benchmarks.soak.producer", given, folder, {})
