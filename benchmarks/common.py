# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks: a cluster, a Spark session, and runners that alternate, because machines are noisy."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tests.interop.java_client import Rate
from tests.real.cluster import RealTubeMQ, TopicSpec

SIZES = (100, 1024)  # bytes of a body
LAYOUTS = {"three": 3, "one": 1}  # partitions of the only store


@dataclass(frozen=True)
class Job:
    """The work of all runners of a table: move ``count`` messages with bodies of ``size`` bytes."""

    layout: str
    size: int
    count: int

    def __str__(self) -> str:
        return f"{self.count:,} messages of {self.size} bytes, partitions in the store: {self.partitions}"

    @property
    def topic(self) -> str:
        return f"bench_{self.layout}_{self.size}"

    @property
    def partitions(self) -> int:
        return LAYOUTS[self.layout]

    def timed(self, work: Callable[[], object], *, here: bool = True) -> Rate:
        """Run ``work`` and return its rate. ``here``: it runs in this process, so its CPU time is known."""
        begin, processor = time.perf_counter(), time.process_time()
        work()
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - processor
        return Rate(self.count, seconds, self.count * self.size / 1e6, cpu_seconds if here else None)


@dataclass(frozen=True)
class Runner:
    """Does a job each time it is called. The others are compared with the runners marked ``java``."""

    name: str
    run: Callable[[], Rate]
    java: bool = False


@dataclass(frozen=True)
class Cluster:
    master: str
    settle: Callable[[str], None]
    """Waits until a topic is in the broker's files, so that every runner reads from files."""


def arguments(description: str, count: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count, help=f"messages of one round ({count})")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each runner (3)")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds before them (3)")
    parser.add_argument("--size", type=int, action="append", help="bytes of a body; may be repeated (100, 1024)")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="partitions in the store; may be repeated")
    parser.add_argument(
        "--master", help="host:port of a cluster with empty topics bench_LAYOUT_SIZE, instead of one started here"
    )
    given = parser.parse_args()
    given.size = given.size or SIZES
    given.layout = given.layout or LAYOUTS
    return given


def jobs(given: argparse.Namespace) -> list[Job]:
    return [Job(layout, size, given.count) for layout in given.layout for size in given.size]


@contextlib.contextmanager
def cluster(given: argparse.Namespace) -> Iterator[Cluster]:
    """Start one broker with a topic per job, or use the cluster that the user names."""
    if given.master:
        yield Cluster(given.master, lambda topic: None)
        return
    topics = {job.topic: TopicSpec(job.partitions) for job in jobs(given)}
    with RealTubeMQ(topics=topics, quick_start=False) as tubemq:
        print(
            f"TubeMQ {tubemq.release}, 1 broker, on {os.cpu_count()} cores that clients and servers share", flush=True
        )
        yield Cluster(tubemq.master, tubemq.wait_flushed)


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def compare(title: str, runners: Sequence[Runner], given: argparse.Namespace) -> None:
    """Run the runners alternately; print medians, best rates, and the ratios of the medians to Java's.

    The client's CPU time per message depends less on other load than the rate does; Spark's is not measured.
    """
    rates: dict[str, list[Rate]] = {runner.name: [] for runner in runners}
    for number in range(given.warm_up + given.rounds):
        for runner in runners:
            rate = runner.run()
            if number >= given.warm_up:
                rates[runner.name].append(rate)
    java = [runner.name for runner in runners if runner.java]
    speed = {name: statistics.median(rate.count / rate.seconds for rate in those) for name, those in rates.items()}
    print(f"\n{title}")
    print(
        f"{'':36}{'messages/s':>12}{'best':>12}{'MB/s':>8}{'CPU µs':>8}",
        *(f"{'to ' + mark:>7}" for mark in _marks(java)),
    )
    for name, those in rates.items():
        best = max(rate.count / rate.seconds for rate in those)
        megabytes = statistics.median(rate.megabytes / rate.seconds for rate in those)
        costs = [rate.cpu_seconds / rate.count * 1e6 for rate in those if rate.cpu_seconds is not None]
        cpu = f"{statistics.median(costs):.1f}" if costs else "-"
        label = f"{_marks(java)[java.index(name)] if name in java else ' '} {name}"
        ratios = (f"{speed[name] / speed[other]:7.2f}" for other in java)
        print(f"{label:36}{speed[name]:12,.0f}{best:12,.0f}{megabytes:8.1f}{cpu:>8}", *ratios, flush=True)


def _marks(names: Sequence[str]) -> str:
    """Return a letter for each name."""
    return string.ascii_lowercase[: len(names)]
