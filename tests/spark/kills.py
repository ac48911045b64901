# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a Spark application that was started in a session of its own."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress

from tests.matrix.queries import wait_for
from tests.real.processes import members, parent, read


def kill(session: int, program: str | None = None) -> None:
    """Kill all processes of a session, or those of one program. (Python workers leave the process group.)"""

    def killed() -> bool:
        pids = [pid for pid in members(session) if program in (None, read(pid, "comm").decode().strip())]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_for(killed, f"the end of session {session}")


def runs_tasks(pid: int) -> bool:
    """Return True for the daemon of Spark's task workers and for the workers."""
    return b"pyspark.worker" in read(pid, "cmdline").split(b"\0")


def kill_a_worker(session: int, chance: random.Random) -> bool:
    """Kill one of the Python processes that run tasks. Return False if there is none."""
    daemons = {pid for pid in members(session) if runs_tasks(pid)}
    workers = sorted(pid for pid in daemons if parent(pid) in daemons)
    if workers:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
    return bool(workers)
