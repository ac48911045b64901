# SPDX-License-Identifier: Apache-2.0
"""What the queries and the servers use, sampled every few seconds: from Linux's /proc, jcmd and TubeMQ's HTTP API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks.soak.flatness import Quantity, Sample
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.outputs import OutputReader
from benchmarks.soak.programs import Query
from benchmarks.soak.servers import PARTITIONS, SoakTubeMQ
from tests.real.admin import AdminError
from tests.real.jars import tool
from tests.rounds import Rounds
from tests.spark.kills import runs_tasks
from tubemq_spark.client.timings import DEFAULT_TIMINGS

PERIOD = 5.0  # seconds
_HEAP_PERIOD = 10.0  # seconds between two garbage collections of a Java process: enough values in a short window
_JCMD = 60.0  # seconds
_MB = 1e6
_CLAIMED_AGAIN = DEFAULT_TIMINGS.heartbeat_period + DEFAULT_TIMINGS.reader_close_timeout + PERIOD  # s after a start
_ESTABLISHED = "01"
_USED = re.compile(r"(?:generation|heap|region\w*).*?used (\d+)K")

JAVA, DRIVER, WORKERS = "java", "driver", "workers"
GROUPS = {
    JAVA: "Java process",
    DRIVER: "Python processes of the driver",
    WORKERS: "Python processes of the tasks",
}

QUANTITIES = (
    *(
        Quantity(f"{query}.{group}.{what}", unit, f"`{query}`: {GROUPS[group]}, {label}", is_count)
        for query in ("steady", "killed")
        for group in GROUPS
        for what, unit, label, is_count in (
            ("memory", "MB", "resident memory", False),
            ("files", "", "file descriptors", True),
            ("threads", "", "threads", True),
        )
    ),
    *(Quantity(f"{query}.heap", "MB", f"`{query}`: Java heap after a collection") for query in ("steady", "killed")),
    Quantity("connections", "", "connections to master and brokers", True),
    # Tasks hold claims only while they read, beside those of the drivers.
    Quantity("claims", "", "claims at the brokers, mean", is_count=True, is_mean=True),
    Quantity("registrations", "", "consumers registered at the master", True),
    Quantity("steady.checkpoint", "", "`steady`: files of the checkpoint", True),
    Quantity("steady.local", "", "`steady`: files in Spark's local folder", True),
)


class Sampler(Rounds):
    """A thread that writes a sample as a line of JSON every few seconds."""

    def __init__(
        self,
        tubemq: SoakTubeMQ,
        queries: Iterable[Query],
        outputs: OutputReader,
        ledger: Ledger,
        file: Path,
        since: Callable[[], float],
    ) -> None:
        super().__init__(PERIOD, self._write)
        self._tubemq = tubemq
        self._queries = list(queries)
        self._outputs = outputs
        self._ledger = ledger
        self._file = file
        self._since = since
        self._collected: dict[str, float] = {}  # when each query's heap was measured last

    def _write(self) -> None:
        found: dict[str, float] = {"at": round(self._since(), 1)}
        # The claims come first, because the time of the sample says whether a broker was stopped. A server that
        # restarts answers nothing, and the sample has no values of it.
        with suppress(OSError, HTTPException, AdminError):
            claims = self._tubemq.claims()
            found["claims"] = claims.total()
            for query in self._queries:
                if query.has_progressed and not query.own_ends():
                    found[f"{query.name}.held"] = claims[query.group]
            found["registrations"] = self._tubemq.registrations()
            found["connections"] = connections(self._tubemq.ports())
        for query in self._queries:
            found |= self._of_query(query)
        with self._outputs.lock:
            found["acknowledged"] = self._ledger.acknowledged
            for query in self._queries:
                found[f"{query.name}.copies"] = self._ledger.copies(query.name)
        with open(self._file, "a") as file:
            print(json.dumps(found), file=file)

    def _of_query(self, query: Query) -> dict[str, float]:
        found: Counter[str] = Counter()
        java = None
        for pid in query.pids():
            with suppress(OSError):
                group = _group(pid)
                java = pid if group == JAVA else java
                used = _used(pid)
                for what, value in used.items():
                    found[f"{query.name}.{group}.{what}"] += value  # type: ignore[assignment]
        values: dict[str, float] = dict(found)
        if java is not None and time.monotonic() - self._collected.get(query.name, 0.0) > _HEAP_PERIOD:
            self._collected[query.name] = time.monotonic()
            if (heap := heap_in_use(java)) is not None:
                values[f"{query.name}.heap"] = heap
        for folder, what in ((query.checkpoint, "checkpoint"), (query.local, "local")):
            values[f"{query.name}.{what}"] = sum(len(files) for _, _, files in os.walk(folder))
        values[f"{query.name}.batches"] = query.committed()
        return values


def unclaimed(samples: Iterable[Sample], faults: Iterable[Mapping[str, Any]]) -> list[str]:
    """Describe the samples in which a query that runs does not hold all partitions of its group, unless a broker
    was stopped or its queries have not sent the next heartbeat, or a driver was just being killed."""
    away = [
        (fault["at"], fault["until"] + (_CLAIMED_AGAIN if fault["what"].startswith("broker") else 0.0))
        for fault in faults
        if fault["what"].startswith(("broker", "driver"))
    ]
    return [
        f"{name.partition(chr(46))[0]} holds {one[name]:g} of {PARTITIONS} partitions at {one['at']:g} s"
        for one in samples
        for name in one
        if name.endswith(".held") and one[name] != PARTITIONS
        if not any(begin <= one["at"] <= end for begin, end in away)
    ]


def _group(pid: int) -> str:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if arguments[0].endswith(b"java"):
        return JAVA
    return WORKERS if runs_tasks(pid) else DRIVER


def _used(pid: int) -> dict[str, float]:
    """Return what a process uses: memory in MB, and the numbers of its file descriptors and threads."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        if ":" in line
    )
    if "VmRSS" not in fields:  # it is ending
        raise ProcessLookupError(pid)
    return {
        "memory": int(fields["VmRSS"].split()[0]) * 1024 / _MB,
        "threads": int(fields["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "count": 1,
    }


def heap_in_use(pid: int) -> float | None:
    """Collect a Java process's garbage and return what is left in its heap in MB; None if the process has ended."""
    jcmd = str(Path(tool("java")).resolve().with_name("jcmd"))
    for command in ("GC.run", "GC.heap_info"):
        try:
            done = subprocess.run([jcmd, str(pid), command], capture_output=True, text=True, timeout=_JCMD)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
    return heap_in(done.stdout)


def heap_in(text: str) -> float | None:
    """Return the sum of what the generations use, in MB, from the output of `GC.heap_info`."""
    lines = [line for line in text.splitlines() if " total " in line and "etaspace" not in line]
    used = [int(found[1]) for line in lines if (found := _USED.search(line))]
    return sum(used) * 1024 / _MB if used else None


def connections(ports: frozenset[int]) -> int:
    """Return how many connections are established at these local ports."""
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) in ports
    return count
