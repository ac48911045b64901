# SPDX-License-Identifier: Apache-2.0
"""What the scenarios need of a Spark cluster, and what its kinds share."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.proc import tree
from tests.real.processes import Ports, Processes, read

HOST = "127.0.0.1"
# Hosts of their own, because Spark starts no second attempt of a task on the host of the first one.
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
_BARE = Path(__file__).parents[1] / "matrix" / "bare_python.py"
_START = 120.0  # seconds
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_OURS = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


class SparkCluster(ABC):
    """A cluster with two workers, as a context manager. `python` is that of the environment with wheel and pyspark."""

    title: str
    url: str
    can_ship = False  # whether drivers can run another Python than executors

    def __init__(self, python: Path, folder: Path) -> None:
        (self.home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
        self.python = python
        self.folder = folder
        self.ports = Ports()
        self.processes = Processes(folder, remove=False)

    @abstractmethod
    def command(self, application: Path, argument: Path) -> list[str]:
        """Return the command that runs an application until it ends, with status 0 if it succeeded."""

    @abstractmethod
    def start(self) -> None:
        """Start all servers and wait until executors can start."""

    @abstractmethod
    def workers(self) -> list[int]:
        """Return the ids of the processes that start executors."""

    def variables(self) -> Mapping[str, str]:
        """Return the environment of the command, without what would replace the installed wheel or its Spark."""
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        return {**inherited, "SPARK_HOME": str(self.home)}

    def bare_python(self) -> Path:
        """Return a Python with the Spark of the environment that lacks the wheel."""
        folder = self.folder / "bare"
        if not folder.exists():
            subprocess.run([self.python, _BARE, folder], check=True, stdout=subprocess.DEVNULL)
        return folder / "bin" / "python"

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        return [pid for pid in self._started() if _EXECUTOR in _command(pid)]

    def end_applications(self) -> None:
        """Kill all that the workers have started."""
        _kill(self._started())

    def close(self) -> None:
        """Kill the servers and all that they have started."""
        started = self._started()
        self.processes.close()
        _kill(started)
        self.ports.close()

    def __enter__(self) -> SparkCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> list[int]:
        return [pid for worker in self.workers() for pid in tree(worker)[1:]]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start within {_START:g} s")
        time.sleep(0.1)


def _command(pid: int) -> bytes:
    command = read(pid, "cmdline")
    return command if command.split(b"\0")[0].endswith(b"java") else b""
