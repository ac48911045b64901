# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback: a master and two workers, each with one core and 1 GB."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.proc import tree
from tests.real.processes import Ports, Processes, is_listening

_HOST = "127.0.0.1"
_WORKERS = 2
_START = 60.0  # seconds
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class StandaloneSpark:
    """The cluster, as a context manager. `python` runs the Python workers; its pyspark has the servers."""

    def __init__(self, python: Path, folder: Path) -> None:
        (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
        self._ports = Ports()
        self._port = self._ports.free()
        self._folder = folder
        self._processes = Processes(folder, remove=False)
        self._launcher = [
            "env",
            f"SPARK_HOME={home}",
            f"PYSPARK_PYTHON={python}",
            "SPARK_DAEMON_MEMORY=512m",
            str(home / "bin" / "spark-class"),
        ]
        self.url = f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> StandaloneSpark:
        try:
            self._start("master", "master.Master", "--host", _HOST, "--port", str(self._port), "--webui-port", "0")
            _wait(lambda: is_listening(_HOST, self._port), "Spark's master")
            for number in range(_WORKERS):
                # Hosts of their own, because Spark starts no second attempt of a task on the host of the first one.
                arguments = ["--host", f"127.0.0.{number + 2}", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                arguments += ["--work-dir", str(self._folder / f"work-{number}"), self.url]
                self._start(_worker(number), "worker.Worker", *arguments)
            log = self._processes.log("master")
            _wait(lambda: log.read_text(errors="replace").count("Registering worker") == _WORKERS, "Spark's workers")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill master, workers and executors."""
        executors = self.executors()
        self._processes.close()
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ports.close()

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        workers = [pid for name, pid in self._processes.pids().items() if name != "master"]
        return [pid for worker in workers for pid in tree(worker) if _EXECUTOR in _command(pid)]

    def _start(self, name: str, main: str, *arguments: str) -> None:
        self._processes.start(name, [*self._launcher, f"org.apache.spark.deploy.{main}", *arguments])


def _worker(number: int) -> str:
    return f"worker-{number}"


def _command(pid: int) -> bytes:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
    return command if command.split(b"\0")[0].endswith(b"java") else b""


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start within {_START:g} s")
        time.sleep(0.1)
