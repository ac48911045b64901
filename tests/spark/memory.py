# SPDX-License-Identifier: Apache-2.0
"""The peak memory of Spark's Python processes while a test runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

from benchmarks.proc import peak_memory, tree

_INTERVAL = 0.1  # seconds between two looks


class PeakMemory:
    """Watches the Python processes below this one that Spark has started: task workers, and those of the driver.

    Some of them are older than the test, and have had more memory before. So an old one counts if its peak rises.
    """

    def __init__(self) -> None:
        self._before = {pid: peak_memory(pid) for pid in _spark_pythons()}
        self._peaks: dict[int, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory")

    @property
    def highest(self) -> float:
        """In MB of 10^6 bytes."""
        return max(self._peaks.values(), default=0.0)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_INTERVAL):
            for pid in _spark_pythons():
                peak = peak_memory(pid)
                if peak > self._before.get(pid, 0.0):
                    self._peaks[pid] = peak


def _spark_pythons() -> list[int]:
    return [pid for pid in tree(os.getpid()) if _is_spark_python(pid)]


def _is_spark_python(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"python" in command[0] and any(word.startswith(b"pyspark.") for word in command)
