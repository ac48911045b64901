# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios on a cluster: sends the input, starts the program, kills executors, compares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.proc import task_workers
from tests.messages import partitions, send
from tests.real.cluster import RealTubeMQ
from tests.spark_cluster.application import IDLE, RESULT, TOLD
from tests.spark_cluster.cluster import SparkCluster
from tests.spark_cluster.scenarios import Scenario
from tests.stored import stored_in

_APPLICATION = Path(__file__).with_name("application.py")
_READING_FOR = 3.0  # seconds that executors are busy before one is killed
_LIMIT = 600.0  # seconds of one scenario


class Trial:
    """Runs one scenario after the other on the same servers."""

    def __init__(self, tubemq: RealTubeMQ, spark: SparkCluster, folder: Path) -> None:
        self._tubemq = tubemq
        self._spark = spark
        self._folder = folder

    def run(self, scenario: Scenario) -> list[str]:
        """Return what is wrong."""
        folder = self._folder / scenario.name
        folder.mkdir()
        numbers = range(scenario.count)
        half = numbers[: scenario.count // 2] if scenario.program == "scale" else numbers
        if scenario.sends:
            self._send(scenario, half)
        argument = scenario.write_argument(folder, self._spark.url, self._tubemq.master)
        variables = dict(self._spark.variables())
        if scenario.ships:
            variables["PYSPARK_PYTHON"] = str(self._spark.bare_python())
        log = folder / "program.log"
        with open(log, "w") as output:
            process = subprocess.Popen(
                self._spark.command(_APPLICATION, argument),
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        killed = 0
        deadline = time.monotonic() + _LIMIT
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return [f"not within {_LIMIT:g} s"]
                if scenario.kills and not killed:
                    killed = self._kill_an_executor(scenario)
                if half is not numbers and IDLE in told_in(folder):
                    self._send(scenario, numbers[scenario.count // 2 :])
                    half = numbers
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._spark.end_applications()
        if process.returncode:
            return [f"the program ended with status {process.returncode}: {log.read_text(errors='replace')[-1500:]}"]
        if scenario.kills and not killed:
            return ["no executor was killed"]
        return scenario.problems(result_in(folder), self._stored(scenario))

    def _kill_an_executor(self, scenario: Scenario) -> int:
        """Return the process id of the killed executor, 0 if it is too early."""
        executors = self._spark.executors()
        if len(executors) < 2:
            return 0
        if scenario.kills == "writes":
            if not self._stored(scenario):
                return 0
        elif not any(True for _ in task_workers(executors[0])):
            return 0
        else:
            time.sleep(_READING_FOR)
        os.kill(executors[0], signal.SIGKILL)
        return executors[0]

    def _send(self, scenario: Scenario, numbers: Sequence[int]) -> None:
        targets = partitions(self._tubemq, scenario.input)  # type: ignore[arg-type]
        send(self._tubemq, [(targets[n % len(targets)], b"%d" % n) for n in numbers])  # type: ignore[arg-type]

    def _stored(self, scenario: Scenario) -> list[int]:
        if not scenario.copies:
            return []
        return [int(one.body) for one in stored_in(self._tubemq, scenario.output)]  # type: ignore[arg-type]


def told_in(folder: Path) -> list[str]:
    """Return the lines that the program has told."""
    path = folder / TOLD
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def result_in(folder: Path) -> dict[str, Any]:
    """Return the program's result, empty without one."""
    lines = [line for line in told_in(folder) if line.startswith(RESULT)]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT)) if lines else {}
    return found
