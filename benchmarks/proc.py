# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of other processes, from Linux's /proc.

Spark forks its Python workers from one daemon for each kind of work: ``pyspark.daemon pyspark.worker`` for tasks, and
others for what the driver asks of a Python source. Workers live on between tasks, so the difference of their CPU times
before and after a query is the CPU time of its tasks in Python, start of the worker included.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_TASK_WORKER = b"pyspark.worker"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process without its children, 0 if it has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICK if fields else 0.0


def tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children[int(fields[1])].append(int(entry))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def tree_cpu_seconds(root: int) -> dict[int, float]:
    """Return the CPU time of a process and of each of its descendants, by process."""
    return {pid: cpu_seconds(pid) for pid in tree(root)}


def task_workers(root: int) -> Iterator[int]:
    """Yield the processes below ``root`` that run Spark's tasks in Python."""
    for pid in tree(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if _TASK_WORKER in command.split(b"\0"):
            yield pid


def task_cpu_seconds(root: int) -> dict[int, float]:
    """Return the CPU time by worker process."""
    return {pid: cpu_seconds(pid) for pid in task_workers(root)}


def peak_memory(pid: int) -> float:
    """Return the peak of a process's resident memory since its start, in MB (of 10^6 bytes); 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), 0.0)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name, from the state on; none if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
