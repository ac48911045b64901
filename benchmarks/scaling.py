# SPDX-License-Identifier: Apache-2.0
"""How the cost of a streaming query grows with its partitions: `python -m benchmarks.scaling`.

10 to 10 000 partitions, each with a store of its own, on 1 to 100 embedded brokers in another process. The client is in
a process of its own too, so its CPU time and memory are those of a query's driver and tasks, without Spark. With
`--store` (needs the extra `bench`) the figures are stored in benchmarks/results/scaling, drawn in
docs/images/scaling.png and listed in docs/scaling.md.

An exponent is the slope between two neighbours in the plot: 1 is linear growth. The program ends with status 1 if a
figure grows faster.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import proc, results
from benchmarks.page import with_figures
from benchmarks.png import save
from benchmarks.processes import SPAWN, in_a_process
from benchmarks.results import Key, PartResult, Row
from scripts.markdown import table
from tests.counting import METHODS, TOPIC, Stream, send_to_all
from tubemq_spark.client import forget_servers
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.testing import EmbeddedTubeMQ

PAGE = Path(__file__).parents[1] / "docs/scaling.md"
FOLDER = results.FOLDER / "scaling"
PLOT = PAGE.parent / "images/scaling.png"
POINTS = (10, 30, 100, 300, 1000, 3000, 10_000)
LIMIT = 1.2  # of an exponent; above 1, because full garbage collections begin near 1000 partitions, and figures vary
_PER_BROKER = 100  # partitions
_IDLE = 20.0  # seconds
_SETTLE = 12.0  # seconds until an idle query polls once a second
_SPARK_ASKS_EVERY = 0.012  # seconds
_MEASURED = 10_000  # partitions in all batches together, but
_BATCHES = (6, 20)  # not fewer than that, so that each store has all its fingerprints, and not more

_AT_MASTER = ("consumer_register_v2", "consumer_heartbeat_v2", "get_partition_meta", "consumer_close")


@dataclass(frozen=True)
class Figure:
    name: str
    unit: str


IDLE_BROKERS = Figure("idle: calls at the brokers", "a second")
IDLE_MASTER = Figure("idle: calls at the master", "a second")
IDLE_CPU = Figure("idle: CPU of the driver", "% of a core")
BUSY_CALLS = Figure("micro-batch: calls at the brokers", "a batch")
BUSY_DRIVER = Figure("micro-batch: CPU of the driver", "ms")
BUSY_TASKS = Figure("micro-batch: CPU of the tasks", "ms")
CHECKPOINT = Figure("micro-batch: offset in the checkpoint", "kB")
PLAN = Figure("micro-batch: plan that Spark sends to tasks", "kB")
MEMORY = Figure("memory of the driver's process", "MB more than before")
COLLECTOR = Figure("micro-batch: garbage collections in it", "ms")
FIGURES = (IDLE_BROKERS, IDLE_MASTER, IDLE_CPU, BUSY_CALLS, BUSY_DRIVER, BUSY_TASKS, CHECKPOINT, PLAN, MEMORY)
LISTED = (*FIGURES[:5], COLLECTOR, *FIGURES[5:])

Measured = dict[str, float]


def brokers_for(partitions: int) -> int:
    return max(1, partitions // _PER_BROKER)


def batches_for(partitions: int) -> int:
    fewest, most = _BATCHES
    return min(max(fewest, _MEASURED // partitions), most)


def exponents(points: Mapping[int, float]) -> list[float]:
    """Return the slope between neighbours on logarithmic axes. A figure of 0 has none."""
    known = [(count, value) for count, value in sorted(points.items()) if value > 0]
    pairs = itertools.pairwise(known)
    return [math.log(b / a) / math.log(m / n) for (n, a), (m, b) in pairs]


def overall(points: Mapping[int, float]) -> float:
    """Return the exponent of the largest power of ten: from a tenth of the most partitions to the most."""
    most = max(points)
    start = max((count for count in points if count * 10 <= most), default=min(points))
    found = exponents({count: points[count] for count in (start, most)})
    return found[0] if found else 0.0


# -- servers ---------------------------------------------------------------------------------------------------------


class Servers:
    """The servers of one measurement; their process makes and asks them."""

    def __init__(self, partitions: int) -> None:
        self._brokers = brokers_for(partitions)
        self._stores = partitions // self._brokers
        self._tubemq = EmbeddedTubeMQ(brokers=self._brokers)
        self._tubemq.create_topic(TOPIC, 1, self._stores)
        self._rules = {name: self._tubemq.on(name).count() for name in dict.fromkeys((*METHODS, *_AT_MASTER))}

    def master(self) -> str:
        return self._tubemq.master

    def send_to_all(self) -> None:
        send_to_all(self._tubemq, 1, self._stores, self._brokers)

    def calls(self) -> tuple[int, int]:
        """Return the calls at the brokers and at the master so far."""
        at_master = sum(self._rules[name].fired for name in _AT_MASTER)
        return sum(rule.fired for rule in self._rules.values()) - at_master, at_master


# -- client ----------------------------------------------------------------------------------------------------------


def measure(partitions: int) -> Measured:
    """Measure one number of partitions. To be called in a process of its own."""
    with in_a_process(Servers, partitions) as tubemq:
        memory = proc.peak_memory(os.getpid())
        try:
            found = {**_busy(tubemq, batches_for(partitions)), **_idle(tubemq)}
            found[MEMORY.name] = proc.peak_memory(os.getpid()) - memory
        finally:
            forget_servers()
        return found


@contextmanager
def streaming(tubemq: Servers, *, asks_always: bool) -> Iterator[Stream]:
    stream = Stream(tubemq.master(), asks_always=asks_always)
    try:
        yield stream
    finally:
        stream.driver.stop()


class Collector:
    """Counts the CPU time of Python's garbage collections, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._begin = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._begin

    @contextmanager
    def counting(self) -> Iterator[None]:
        gc.callbacks.append(self)
        try:
            yield
        finally:
            gc.callbacks.remove(self)


def _busy(tubemq: Servers, batches: int) -> Measured:
    """Measure micro-batches with one message in each partition. The first one has more calls and does not count."""
    with streaming(tubemq, asks_always=True) as stream:
        return _batches(tubemq, stream, batches)


def _batches(tubemq: Servers, stream: Stream, batches: int) -> Measured:
    driver, tasks, calls, offset, plan = [], [], [], 0, 0
    collector = Collector()
    for number in range(1 + batches):
        tubemq.send_to_all()
        before, _ = tubemq.calls()
        if number == 1:
            collector.seconds = 0.0
        begin = time.thread_time()
        with collector.counting():
            end = stream.driver.latest(stream.start)
            planned = pickle.dumps(stream.driver.plan(stream.start, end))
        driver.append(time.thread_time() - begin)
        offset, plan = len(json.dumps(end.to_json())), len(planned)
        begin = time.thread_time()
        read: list[TubeMQInputPartition] = pickle.loads(planned)
        rows = sum(batch.num_rows for task in read for batch in task.read())
        tasks.append(time.thread_time() - begin)
        calls.append(tubemq.calls()[0] - before)
        stream.start, stream.rows = end, stream.rows + rows
    return {
        BUSY_CALLS.name: _middle(calls[1:]),
        # Means, because full garbage collections happen in few of the batches.
        BUSY_DRIVER.name: 1000 * sum(driver[1:]) / batches,
        COLLECTOR.name: 1000 * collector.seconds / batches,
        BUSY_TASKS.name: 1000 * sum(tasks[1:]) / batches,
        CHECKPOINT.name: offset / 1000,
        PLAN.name: plan / 1000,
    }


def _idle(tubemq: Servers) -> Measured:
    """Ask as Spark does while no messages arrive, with the default intervals."""
    with streaming(tubemq, asks_always=False) as stream:
        stream.read()
        return _questions(tubemq, stream)


def _questions(tubemq: Servers, stream: Stream) -> Measured:
    def ask_for(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.ask()
            time.sleep(_SPARK_ASKS_EVERY)

    ask_for(_SETTLE)
    before, processor, begin = tubemq.calls(), time.process_time(), time.monotonic()
    ask_for(_IDLE)
    seconds, used = time.monotonic() - begin, time.process_time() - processor
    at_brokers, at_master = (now - then for now, then in zip(tubemq.calls(), before, strict=True))
    return {
        IDLE_BROKERS.name: at_brokers / seconds,
        IDLE_MASTER.name: at_master / seconds,
        IDLE_CPU.name: 100 * used / seconds,
    }


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


# -- results ---------------------------------------------------------------------------------------------------------


def layout(partitions: int) -> str:
    brokers = brokers_for(partitions)
    return f"{partitions} partitions, {brokers} broker{'s' * (brokers > 1)}"


def draw(found: Mapping[int, Measured], target: Path) -> None:
    """Draw each figure on logarithmic axes, beside a line of linear growth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 3, figsize=(10, 8), layout="constrained")
    for axis, one in zip(axes.flat, FIGURES, strict=True):
        points = [(count, values[one.name]) for count, values in sorted(found.items()) if values[one.name] > 0]
        if points:
            axis.loglog(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1, color="#3f51b5")
            (most, value) = points[-1]
            axis.loglog([points[0][0], most], [value * points[0][0] / most, value], color="0.75", linewidth=0.8)
        axis.set_title(f"{one.name}, {one.unit}", fontsize=7.5)
        axis.tick_params(labelsize=7)
        axis.grid(True, which="major", color="0.92")
    figure.supxlabel("partitions, each with a store of its own; a grey line is linear growth", fontsize=8)
    save(figure, target, dpi=160)
    pyplot.close(figure)


def figures(found: Mapping[int, Measured]) -> str:
    counts = sorted(found)
    rows = []
    for one in LISTED:
        points = {count: found[count][one.name] for count in counts}
        values = [f"{results.significant(points[count]):g}" for count in counts]
        rows.append([f"{one.name}, {one.unit}", *values, f"n^{overall(points):.2f}"])
    return table(["", *(f"{count:,}".replace(",", " ") for count in counts), "growth"], rows)


def too_fast(found: Mapping[int, Measured]) -> list[str]:
    """Return the figures that grow faster than the number of partitions."""
    grown = {one.name: overall({count: values[one.name] for count, values in found.items()}) for one in FIGURES}
    return [f"{name} grows as n^{exponent:.2f}" for name, exponent in grown.items() if exponent > LIMIT]


def _store(found: Mapping[int, Measured], seconds: float, date: str) -> None:
    rows = tuple(
        Row(Key("scaling", one.name, one.unit, layout(count)), (values[one.name],))
        for count, values in sorted(found.items())
        for one in LISTED
    )
    versions = results.versions()
    results.write(
        PartResult("scaling", date, round(seconds, 1), results.machine(), versions, {"batches": list(_BATCHES)}, rows),
        FOLDER,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default=",".join(map(str, POINTS)), help="numbers of partitions (%(default)s)")
    parser.add_argument("--store", action="store_true", help="store the figures and draw the plot")
    given = parser.parse_args()
    date, begin = results.now(), time.perf_counter()
    found = {}
    for count in map(int, given.points.split(",")):
        with ProcessPoolExecutor(1, SPAWN) as process:  # whose memory begins small
            found[count] = process.submit(measure, count).result()
        print(
            f"{layout(count)}: {json.dumps({name: round(value, 3) for name, value in found[count].items()})}",
            flush=True,
        )
    if given.store:
        _store(found, time.perf_counter() - begin, date)
        draw(found, PLOT)
        PAGE.write_text(with_figures(PAGE, f"\n{figures(found)}\n"), encoding="utf-8")
    print(figures(found))
    for problem in (problems := too_fast(found)):
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
