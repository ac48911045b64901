# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.spark_cluster`: the installed wheel on a standalone Spark cluster, with a real TubeMQ.

    python -m tests.spark_cluster                     all scenarios, as `make cluster`
    python -m tests.spark_cluster --only batch        one; may be given more than once

The wheel is installed into an environment of its own, which is kept. The output folder has the logs of Spark, its
executors and the programs. The status is 1 if a scenario is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.matrix import FOLDER, Environment, StepError, build_wheel, install
from tests.messages import partitions, send
from tests.real.cluster import RealTubeMQ
from tests.spark_cluster.application import IDLE, RESULT
from tests.spark_cluster.scenarios import SCENARIOS, Scenario
from tests.spark_cluster.standalone import StandaloneSpark
from tests.stored import stored_in
from tubemq_spark.client import forget_servers

_ENVIRONMENT = Environment("cluster", "pyspark==4.3.*", "protobuf", "pyarrow", needs=(3, 11))
_APPLICATION = Path(__file__).with_name("application.py")
_READING_FOR = 3.0  # seconds that executors are busy before one is killed
_LIMIT = 600.0  # seconds of one scenario


class Trial:
    """Runs one scenario after the other on the same servers."""

    def __init__(self, tubemq: RealTubeMQ, spark: StandaloneSpark, python: Path, folder: Path) -> None:
        self._tubemq = tubemq
        self._spark = spark
        self._python = python
        self._folder = folder

    def run(self, scenario: Scenario) -> list[str]:
        """Return what is wrong."""
        folder = self._folder / scenario.name
        folder.mkdir()
        numbers = range(scenario.count)
        half = numbers[: scenario.count // 2] if scenario.program == "scale" else numbers
        if scenario.sends:
            self._send(scenario, half)
        given = {
            "scenario": scenario.name,
            "program": scenario.program,
            "spark": self._spark.url,
            "tubemq": self._tubemq.master,
            "topic": scenario.input,
            "output": scenario.output,
            "folder": str(folder),
            "count": scenario.count,
            "config": dict(scenario.config),
        }
        with open(folder / "program.log", "w") as log:
            process = subprocess.Popen(
                [str(self._python), str(_APPLICATION), json.dumps(given)],
                cwd=folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        told = folder / "program.log"
        killed = 0
        deadline = time.monotonic() + _LIMIT
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return [f"not within {_LIMIT:g} s"]
                if scenario.kills and not killed:
                    killed = self._kill_an_executor(scenario, folder)
                if half is not numbers and IDLE in told.read_text(errors="replace"):
                    self._send(scenario, numbers[scenario.count // 2 :])
                    half = numbers
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            return [f"the program ended with status {process.returncode}: {told.read_text(errors='replace')[-1500:]}"]
        if scenario.kills and not killed:
            return ["no executor was killed"]
        return scenario.problems(_result(told), self._stored(scenario))

    def _kill_an_executor(self, scenario: Scenario, folder: Path) -> int:
        """Return the process id of the killed executor, 0 if it is too early."""
        executors = self._spark.executors()
        if len(executors) < 2:
            return 0
        if scenario.kills == "writes":
            if not self._stored(scenario):
                return 0
        elif not _has_worker(executors[0]):
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

    def _environment(self) -> dict[str, str]:
        """Return the variables of the program, without those that would replace the installed wheel or its Spark."""
        ours = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        return {**inherited, "PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}


def _has_worker(executor: int) -> bool:
    """Return True if an executor runs a task in Python."""
    from benchmarks.proc import task_workers

    return any(True for _ in task_workers(executor))


def _result(told: Path) -> dict[str, Any]:
    lines = [line for line in told.read_text(errors="replace").splitlines() if line.startswith(RESULT)]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT)) if lines else {}
    return found


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that it started
    chosen = [one for one in SCENARIOS if not given.only or one.name in given.only]
    folder: Path = given.output.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "spark").exists():
        sys.exit(f"{folder} has files that are not of such a run: name another folder with --output")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spark").mkdir(parents=True)
    interpreter = _ENVIRONMENT.interpreter
    if interpreter is None:
        sys.exit("make cluster needs Python 3.11 or later")
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        python = install(_ENVIRONMENT, interpreter, build_wheel(), sys.stdout)
    except StepError as problem:
        sys.exit(f"the wheel cannot be installed: {problem}")
    topics = {name: spec for one in chosen for name, spec in one.topics.items()}
    wrong = 0
    with RealTubeMQ(topics=topics, brokers=2) as tubemq, StandaloneSpark(python, folder / "spark") as spark:
        print(f"TubeMQ {tubemq.release} at {tubemq.master}, Spark at {spark.url}", flush=True)
        trial = Trial(tubemq, spark, python, folder)
        for scenario in chosen:
            begun = time.monotonic()
            problems = trial.run(scenario)
            verdict = f"WRONG: {'; '.join(problems)}" if problems else "exact"
            print(f"{scenario.what:<60} {time.monotonic() - begun:>4.0f} s  {verdict}", flush=True)
            wrong += bool(problems)
        forget_servers()
    print(f"{len(chosen) - wrong} of {len(chosen)} scenarios are exact", flush=True)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[one.name for one in SCENARIOS], help="this scenario")
    parser.add_argument("--output", type=Path, default=Path("build/cluster"), help="folder, emptied first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
