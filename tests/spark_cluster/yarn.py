# SPDX-License-Identifier: Apache-2.0
"""Hadoop YARN on loopback: a resource manager and two node managers, from their published jars.

An application is submitted in cluster mode, as docs/howto/deployment.md shows it: driver and executors run in
containers, and the environment with the wheel comes to them as an archive.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tests.real.jars import libraries, tool
from tests.spark_cluster.cluster import HOST, WORKER_HOSTS, SparkCluster, wait

_POM = Path(__file__).parent / "poms" / "yarn-servers-3.5.0.xml"
_MANAGER = "resourcemanager"
_SCHEDULER = f"org.apache.hadoop.yarn.server.{_MANAGER}.scheduler.fifo.FifoScheduler"
_ADDRESSES = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
_NODE_ADDRESSES = ("", "localizer.", "webapp.", "collector-service.")
# A driver's container takes 896 MB, an executor's 1024: a node has room for one executor, beside a driver or not.
_NODE_MEMORY = 1950  # MB
_DRIVER_MEMORY = "512m"
_LOG = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
_REGISTERED = "registered with capability"


class Yarn(SparkCluster):
    title = "YARN"
    url = "yarn"

    def __init__(self, python: Path, folder: Path) -> None:
        super().__init__(python, folder)
        self._archive = folder / "env.tar"
        self._java_home = str(Path(tool("java")).resolve().parents[1])
        self._jars = os.pathsep.join(map(str, libraries(_POM)))
        manager = {f"yarn.resourcemanager.{name}address": f"{HOST}:{self.ports.free()}" for name in _ADDRESSES}
        self._settings = {
            **manager,
            "fs.defaultFS": "file:///",
            "yarn.resourcemanager.hostname": HOST,
            "yarn.resourcemanager.scheduler.class": _SCHEDULER,
            "yarn.scheduler.minimum-allocation-mb": "128",
        }

    def command(self, application: Path, argument: Path) -> list[str]:
        python = "./env/bin/python"
        settings = {
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.yarn.jars": f"local:{self.home}/jars/*",  # faster than sending Spark to each container
            "spark.yarn.maxAppAttempts": "1",
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        begin = [str(self.home / "bin" / "spark-submit"), "--master", self.url, "--deploy-mode", "cluster"]
        memory = ["--driver-memory", _DRIVER_MEMORY]
        return [*begin, *memory, *options, "--archives", f"{self._archive}#env", str(application), str(argument)]

    def variables(self) -> Mapping[str, str]:
        own = {"HADOOP_CONF_DIR": str(self._configuration(_MANAGER)), "PYSPARK_PYTHON": "./env/bin/python"}
        return {**super().variables(), **own, "JAVA_HOME": self._java_home, "SPARK_LOCAL_IP": HOST}

    def start(self) -> None:
        self._pack()
        self._start(_MANAGER, "ResourceManager", {})
        log = self.processes.log(_MANAGER)
        wait(lambda: "Transitioned to active state" in log.read_text(errors="replace"), "YARN's resource manager")
        for number, host in enumerate(WORKER_HOSTS):
            name = f"nodemanager-{number}"
            addresses = {f"yarn.nodemanager.{one}address": f"{host}:{self.ports.free()}" for one in _NODE_ADDRESSES}
            settings = {
                **addresses,
                "yarn.nodemanager.hostname": host,
                "yarn.nodemanager.local-dirs": str(self.folder / name / "local"),
                "yarn.nodemanager.log-dirs": str(self.folder / name / "logs"),
                "yarn.nodemanager.resource.memory-mb": str(_NODE_MEMORY),
                "yarn.nodemanager.resource.cpu-vcores": "4",
                "yarn.nodemanager.pmem-check-enabled": "false",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.disk-health-checker.enable": "false",  # it refuses disks that are 90 % full
            }
            self._start(name, "NodeManager", settings)
        wait(lambda: log.read_text(errors="replace").count(_REGISTERED) == len(WORKER_HOSTS), "YARN's node managers")

    def workers(self) -> list[int]:
        return [pid for name, pid in self.processes.pids().items() if name != _MANAGER]

    def _start(self, name: str, main: str, settings: Mapping[str, str]) -> None:
        configuration = self._configuration(name)
        configuration.mkdir()
        text = _site({**self._settings, **settings})
        for site in ("core-site.xml", "yarn-site.xml"):
            (configuration / site).write_text(text, encoding="utf-8")
        (configuration / "log4j.properties").write_text(_LOG, encoding="utf-8")
        package = "org.apache.hadoop.yarn.server." + name.partition("-")[0]
        java = [f"{self._java_home}/bin/java", "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-Xmx512m"]
        java += [f"-Dyarn.log.dir={self.folder}", f"-Dhadoop.log.dir={self.folder}"]
        variables = ["env", f"HADOOP_CONF_DIR={configuration}", f"JAVA_HOME={self._java_home}"]
        class_path = os.pathsep.join((str(configuration), self._jars))
        self.processes.start(name, [*variables, *java, "-cp", class_path, f"{package}.{main}"])

    def _configuration(self, name: str) -> Path:
        return self.folder / f"conf-{name}"

    def _pack(self) -> None:
        """Put the environment into an archive, without Spark, which YARN's containers get from `spark-submit`."""
        environment = self.python.parents[1]
        left_out = (self.home.relative_to(environment).as_posix(), "work")

        def chosen(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            is_left_out = entry.name in left_out or entry.name.endswith("__pycache__")
            return None if is_left_out else entry

        with tarfile.open(self._archive, "w") as archive:
            for path in sorted(environment.iterdir()):
                archive.add(path, path.name, filter=chosen)


def _site(settings: Mapping[str, str]) -> str:
    """Return a configuration file of Hadoop."""
    properties = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{''.join(properties)}</configuration>\n"
