# SPDX-License-Identifier: Apache-2.0
"""The processes of a query: workers that live on between batches, and one process for each plan and each commit."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

from tests.sink_histories.jobs import Begin, Done, Job
from tests.sink_histories.world import World
from tests.sink_histories.zygote import Child, Zygote

_TICK = 0.02  # seconds after which the world is tended again


class Processes:
    """The processes of one driver after the other. All must do their jobs within `limit` seconds."""

    def __init__(self, zygote: Zygote, begin: Begin, world: World, folder: Path, limit: float) -> None:
        self.drivers = 0
        self._zygote = zygote
        self._begin = begin
        self._world = world
        self._folder = folder
        self._deadline = time.monotonic() + limit
        self._workers: list[Child] = []
        self._alive: set[Child] = set()

    def new_driver(self) -> None:
        """End all processes, and give the next ones another driver's local folder."""
        self.end_all()
        self.drivers += 1
        self._local_folder().mkdir()

    def worker(self, busy: list[Child], chance: random.Random) -> Child:
        """Return a worker that is not `busy`, a new one if there is none."""
        self._workers = [worker for worker in self._workers if worker in self._alive]
        idle = [worker for worker in self._workers if worker not in busy]
        if idle:
            return chance.choice(idle)
        worker = self._new()
        self._workers.append(worker)
        return worker

    def run(self, job: Job) -> Done | None:
        """Run `job` in a process of its own, and return the result; None if the process died."""
        process = self._new()
        try:
            process.start(job)
            self.wait_for_any([process])
            return process.outcome()
        finally:
            self.end(process)

    def wait_for_any(self, processes: list[Child]) -> list[Child]:
        """Wait for processes that have finished or died, and return them. Let servers crash as processes ask."""
        while True:
            assert time.monotonic() < self._deadline, "the history takes too long"
            self._world.tend()
            ready = wait([process.connection for process in processes], _TICK)
            ended = [process for process in processes if process.connection in ready and self._has_ended(process)]
            if ended:
                return ended

    def _has_ended(self, process: Child) -> bool:
        crash = process.receive()
        if crash is not None:
            self._world.change("crash_peer", {"address": crash.address})
            process.go_on()
        return crash is None

    def kill_all(self) -> None:
        """Kill all processes from any thread; `end` has to follow."""
        for process in list(self._alive):
            process.kill()

    def end_workers(self) -> None:
        for worker in self._workers:
            self.end(worker)

    def end_all(self) -> None:
        for process in list(self._alive):
            self.end(process)

    def end(self, process: Child) -> None:
        if process in self._alive:
            self._alive.discard(process)
            process.close()

    def _new(self) -> Child:
        process = self._zygote.child(replace(self._begin, folder=str(self._local_folder())))
        self._alive.add(process)
        return process

    def _local_folder(self) -> Path:
        return self._folder / f"driver {self.drivers}"
