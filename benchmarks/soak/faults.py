# SPDX-License-Identifier: Apache-2.0
"""The faults of a run. Each returns when the programs and servers that it stopped are started again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.soak.clock import SteppedClock
from benchmarks.soak.programs import Program, Query
from benchmarks.soak.servers import INPUT, OUTPUTS, SoakTubeMQ
from benchmarks.soak.timetable import CLOCK, CRASH, DRIVER, RESTART, WORKER

_FURTHEST_STEP = 1800.0  # seconds
_PATIENCE = 600.0  # seconds
_POLL = 0.5  # seconds
_OFFSETS_STORED = 10.0  # seconds: brokers store groups' positions every 5 s


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_PATIENCE:g} s: {what}")
        time.sleep(_POLL)


class Faults:
    """`is_copied` returns True if the outputs have everything that was sent so far."""

    def __init__(
        self,
        tubemq: SoakTubeMQ,
        producer: Program,
        killed: Query,
        clock: SteppedClock,
        is_copied: Callable[[], bool],
        chance: random.Random,
    ) -> None:
        self._tubemq = tubemq
        self._producer = producer
        self._killed = killed
        self._clock = clock
        self._is_copied = is_copied
        self._chance = chance

    def happen(self, kind: str) -> str:
        """Let a fault happen, and return a description."""
        return {
            DRIVER: self._kill_driver,
            WORKER: self._kill_worker,
            CLOCK: self._step_clock,
            RESTART: self._restart_broker,
            CRASH: self._crash_broker,
        }[kind]()

    def _kill_driver(self) -> str:
        """Only after a commit since the last start: else the query would fall behind retention."""
        wait_for(lambda: self._killed.has_progressed, "a micro-batch of the killed query")
        what = self._chance.choice(["all processes", "the Java process"])
        if what == "all processes":
            self._killed.kill()
        else:
            self._killed.kill_java()
        self._killed.start()
        return f"driver killed: {what}"

    def _kill_worker(self) -> str:
        return "Python worker killed" if self._killed.kill_a_worker(self._chance) else "no Python worker to kill"

    def _step_clock(self) -> str:
        """Step the clock of both queries' Python processes. A later start may then seem to be earlier."""
        shift = round(self._chance.uniform(-_FURTHEST_STEP, _FURTHEST_STEP))
        self._clock.step(shift)
        return f"clock stepped to {shift:+d} s"

    def _restart_broker(self) -> str:
        """With SIGTERM, in the middle of everything."""
        broker_id = self._chance.choice(self._tubemq.broker_ids)
        self._tubemq.stop_broker(broker_id)
        self._tubemq.start_broker(broker_id)
        return f"broker {broker_id} restarted"

    def _crash_broker(self) -> str:
        """With SIGKILL, when everything is flushed.

        A broker that crashes loses acknowledged messages that it has not flushed: TubeMQ promises no more. So the
        producer pauses until all messages and the groups' positions are in files.
        """
        self._producer.ask("pause")
        wait_for(self._is_copied, "the copies of all messages")
        for topic in (INPUT, *OUTPUTS.values()):
            self._tubemq.wait_flushed(topic)
        time.sleep(_OFFSETS_STORED)
        broker_id = self._chance.choice(self._tubemq.broker_ids)
        self._tubemq.kill_broker(broker_id)
        self._tubemq.start_broker(broker_id)
        self._producer.ask("resume")
        return f"broker {broker_id} killed"
