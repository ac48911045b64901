# SPDX-License-Identifier: Apache-2.0
"""HDFS: a real NameNode and a DataNode, as a process of this machine."""

from __future__ import annotations

import getpass
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tests.real import jars
from tests.real.processes import Ports, Processes

_POM = Path(__file__).with_name("poms") / "hadoop-minicluster.xml"
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"  # runs until it is killed
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx512m")
_START_TIMEOUT = 120.0


class RealHdfs:
    """Hadoop's mini cluster, best used as a context manager.

    Raises:
        MissingTool: Java 17 or Maven is missing.
        RuntimeError, TimeoutError: it ended or was not ready in time; the message ends with its log.
    """

    def __init__(self) -> None:
        self._java = jars.tool("java")
        self._class_path = ":".join(map(str, jars.libraries(_POM)))
        self._folder = Path(tempfile.mkdtemp(prefix="hdfs-"))
        self._processes = Processes(self._folder, remove=True)
        self._ports = Ports()
        self.rpc_port, self.http_port = self._ports.free(), self._ports.free()

    def __enter__(self) -> RealHdfs:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    @property
    def webhdfs(self) -> str:
        """The URI of the root, as the user who may write everywhere: the one that runs the NameNode."""
        return f"webhdfs://{getpass.getuser()}@127.0.0.1:{self.http_port}"

    @property
    def hdfs(self) -> str:
        return f"hdfs://127.0.0.1:{self.rpc_port}"

    @property
    def class_path(self) -> str:
        return self._class_path

    def close(self) -> None:
        self._processes.close()
        self._ports.close()

    def _start(self) -> None:
        ready = self._folder / "ready.json"
        self._processes.start(
            "hdfs",
            [
                *(self._java, *_JVM, f"-Dtest.build.data={self._folder}/data", "-cp", self._class_path, _MAIN),
                *("-format", "-datanodes", "1", "-nnport", str(self.rpc_port), "-httpport", str(self.http_port)),
                *("-writeDetails", str(ready)),
            ],
        )
        deadline = time.monotonic() + _START_TIMEOUT
        while not ready.exists():
            if not self._processes.is_running("hdfs"):
                raise RuntimeError(f"HDFS ended\n{self._processes.tail('hdfs')}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"HDFS was not ready in {_START_TIMEOUT:.0f} s\n{self._processes.tail('hdfs')}")
            time.sleep(0.2)
