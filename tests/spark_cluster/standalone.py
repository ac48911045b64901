# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback: a master and two workers, each with one core and 1 GB."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.real.processes import is_listening
from tests.spark_cluster.cluster import HOST, WORKER_HOSTS, SparkCluster, wait

_MASTER = "master"
_REGISTERED = "Registering worker"


class StandaloneSpark(SparkCluster):
    """The driver runs in client mode; driver and executors use the environment in its folder."""

    title = "standalone"
    can_ship = True

    def __init__(self, python: Path, folder: Path) -> None:
        super().__init__(python, folder)
        self._port = self.ports.free()
        self.url = f"spark://{HOST}:{self._port}"

    def command(self, application: Path, argument: Path) -> list[str]:
        return [str(self.python), str(application), str(argument)]

    def variables(self) -> Mapping[str, str]:
        return {**super().variables(), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": HOST}

    def start(self) -> None:
        self._start(_MASTER, "master.Master", "--host", HOST, "--port", str(self._port), "--webui-port", "0")
        wait(lambda: is_listening(HOST, self._port), "Spark's master")
        for number, host in enumerate(WORKER_HOSTS):
            arguments = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(self.folder / f"work-{number}"), self.url]
            self._start(f"worker-{number}", "worker.Worker", *arguments)
        log = self.processes.log(_MASTER)
        wait(
            lambda: log.read_text(errors="replace").count("Registering worker") == len(WORKER_HOSTS), "Spark's workers"
        )

    def workers(self) -> list[int]:
        return [pid for name, pid in self.processes.pids().items() if name != _MASTER]

    def _start(self, name: str, main: str, *arguments: str) -> None:
        own = [f"SPARK_HOME={self.home}", f"PYSPARK_PYTHON={self.python}", "SPARK_DAEMON_MEMORY=512m"]
        launcher = ["env", *own, str(self.home / "bin" / "spark-class")]
        self.processes.start(name, [*launcher, f"org.apache.spark.deploy.{main}", *arguments])
