# SPDX-License-Identifier: Apache-2.0
"""Runners that work in turns, because the speed of a machine changes with time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import CPU, JVM, RATE, START, Key, Row


@dataclass(frozen=True)
class Sample:
    """``count`` messages took ``seconds``, and ``cpu_seconds`` of the processes that the runner counts.

    ``start_seconds`` is what a streaming query needed besides its micro-batches, ``jvm_cpu_seconds`` what Spark's JVM
    used.
    """

    count: int
    seconds: float
    cpu_seconds: float | None = None
    start_seconds: float | None = None
    jvm_cpu_seconds: float | None = None


@dataclass(frozen=True)
class Runner:
    """Does the same work each time it is called."""

    name: str
    run: Callable[[], Sample]


class Recorder:
    """Collects the rows of one part and prints each of them."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rows: list[Row] = []

    def add(self, runner: str, quantity: str, values: Sequence[float], layout: str = "", size: int = 0) -> None:
        row = Row(Key(self.part, runner, quantity, layout, size), tuple(values))
        self.rows.append(row)
        shown = ", ".join(f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in row.values)
        median = f"{row.median:,.4g}" if row.median < 1000 else f"{row.median:,.0f}"
        print(f"  {row.key!s:90}{median:>12}   ({shown})", flush=True)

    def add_samples(self, runner: str, samples: Sequence[Sample], layout: str = "", size: int = 0) -> None:
        self.add(runner, RATE, [one.count / one.seconds for one in samples], layout, size)
        costs = [one.cpu_seconds / one.count * 1e6 for one in samples if one.cpu_seconds is not None]
        if costs:
            self.add(runner, CPU, costs, layout, size)
        costs = [one.jvm_cpu_seconds / one.count * 1e6 for one in samples if one.jvm_cpu_seconds is not None]
        if costs:
            self.add(runner, JVM, costs, layout, size)
        starts = [one.start_seconds * 1000 for one in samples if one.start_seconds is not None]
        if starts:
            self.add(runner, START, starts, layout, size)


def alternate(runners: Sequence[Runner], rounds: int, warm_up: int = 1) -> dict[str, list[Sample]]:
    """Run all runners in turn, ``warm_up`` rounds that do not count and then ``rounds``. Return samples by name."""
    samples: dict[str, list[Sample]] = {runner.name: [] for runner in runners}
    for number in range(warm_up + rounds):
        for runner in runners:
            sample = runner.run()
            if number >= warm_up:
                samples[runner.name].append(sample)
    return samples


def timed(count: int, work: Callable[[], object]) -> Sample:
    """Run ``work``, which moves ``count`` messages in this process."""
    begin, processor = time.perf_counter(), time.process_time()
    work()
    return Sample(count, time.perf_counter() - begin, time.process_time() - processor)
