# SPDX-License-Identifier: Apache-2.0
"""The goals: what the medians of one run must reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.results import CORE, CPU, MEMORY, MILLISECONDS, RATE, Key, Results
from benchmarks.sizes import LAYOUTS, OWN, SIZES


@dataclass(frozen=True)
class Goal:
    """``measured``, divided by ``against`` if there is one, is at least or at most ``bound``."""

    what: str
    measured: Key
    against: Key | None
    bound: float
    at_least: bool

    def value(self, results: Results) -> float | None:
        """Return the ratio of the medians, or the median; None if a row was not measured."""
        upper = results.median(self.measured)
        lower = 1.0 if self.against is None else results.median(self.against)
        return None if upper is None or not lower else upper / lower

    def is_within_spread(self, results: Results) -> bool:
        """Return True if the rounds do not agree whether the bound is met."""
        uppers = results.values(self.measured)
        lowers = (1.0,) if self.against is None else results.values(self.against)
        return self.is_met(min(uppers) / max(lowers)) != self.is_met(max(uppers) / min(lowers))

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def _at_least(what: str, bound: float, measured: Key, against: Key) -> Goal:
    return Goal(what, measured, against, bound, at_least=True)


def _at_most(what: str, bound: float, measured: Key, against: Key | None = None) -> Goal:
    return Goal(what, measured, against, bound, at_least=False)


def _read(runner: str, layout: str, size: int, quantity: str = RATE) -> Key:
    return Key("read", runner, quantity, layout, size)


def _ceiling(runner: str, size: int, quantity: str = RATE) -> Key:
    return Key("ceiling", runner, quantity, OWN, size)


def _write(runner: str, layout: str, size: int) -> Key:
    return Key("write", runner, RATE, layout, size)


def _of_reads() -> Iterable[Goal]:
    limit = "limit: bare sockets, one partition after the other"
    for layout in LAYOUTS:
        for size in SIZES:
            arrow = _read("range to Arrow, one process", layout, size)
            what = f"range to Arrow against the limit, {size} B, {layout}"
            yield _at_least(what, 0.85, arrow, _read(limit, layout, size))
    for size in SIZES:
        values = _read("Spark batch read, three attributes a message, value alone", OWN, size)
        what = f"Spark read of values alone, three attributes, against messages without, {size} B"
        yield _at_least(what, 0.95, values, _read("Spark batch read", OWN, size))
    for kind in ("batch", "stream"):
        for size in SIZES:
            for tuning, bound in (("default", 1.5), ("tuned", 0.6)):
                ours, peer = f"Spark {kind} read", f"Spark-Kafka {kind} read, {tuning}"
                what = f"Spark {kind} read against Spark-Kafka {tuning}, {size} B"
                yield _at_least(what, bound, _read(ours, OWN, size), _read(peer, OWN, size))


def _of_decoders() -> Iterable[Goal]:
    """Of reads with decoders in Python and compiled."""
    python, compiled = "decoders in Python", "compiled decoders"
    bounds = {
        (python, 100): (1.6, 0.9),
        (python, 1024): (4.0, 0.8),
        (compiled, 100): (0.6, 1.3),
        (compiled, 1024): (2.0, 1.0),
    }
    for (way, size), (cpu, of_java) in bounds.items():
        batch, java, where = f"Spark batch read, {way}", "Java client, pull, fastest settings", f"{way}, {size} B"
        yield _at_most(f"CPU s per million of a Spark read's tasks, {where}", cpu, _ceiling(batch, size, CPU))
        what = f"Spark batch read against Java's fastest, {where}"
        yield _at_least(what, of_java, _ceiling(batch, size), _ceiling(java, size))
    for size, bound in zip(SIZES, (0.75, 0.7), strict=True):
        batch, most = f"Spark batch read, {compiled}", "ceiling of the cores: broker and pipe"
        what = f"Spark batch read against the ceiling, {compiled}, {size} B"
        yield _at_least(what, bound, _ceiling(batch, size), _ceiling(most, size))


def _of_writes() -> Iterable[Goal]:
    limit, java = "limit: bare sends, 2 connections", "Java client, asynchronous sends"
    for layout in LAYOUTS:
        for size, of_java in zip(SIZES, (1.4, 1.2), strict=True):
            where = f"{size} B, {layout}"
            producer, spark = _write("Producer, one process", layout, size), _write("Spark batch write", layout, size)
            yield _at_least(f"Producer against the limit of sends, {where}", 0.9, producer, _write(limit, layout, size))
            yield _at_least(
                f"Spark write against the limit of sends, {where}", 0.85, spark, _write(limit, layout, size)
            )
            yield _at_least(f"Spark write against Java's sends, {where}", of_java, spark, _write(java, layout, size))


def _of_packs() -> Iterable[Goal]:
    for size, bound in zip(SIZES, (1.2, 1.0), strict=True):
        ours, peer = (
            Key("packs", name, RATE, OWN, size) for name in ("Spark write of packs", "Spark-Kafka batch write, default")
        )
        yield _at_least(f"rows in packs: Spark write against Spark-Kafka default, {size} B", bound, ours, peer)
    for size in SIZES:
        ours, peer = (
            Key("packs", name, RATE, OWN, size) for name in ("Spark read of packs", "Spark-Kafka batch read, default")
        )
        yield _at_least(f"rows in packs: Spark read against Spark-Kafka default, {size} B", 1.0, ours, peer)


def _of_driver() -> Iterable[Goal]:
    yield _at_most(
        "a small batch against a source that does nothing",
        1.1,
        Key("small", "30 rows of 3 partitions", MILLISECONDS),
        Key("small", "30 rows of a source that does nothing", MILLISECONDS),
    )
    yield _at_most(
        "a small batch with a package that is shipped against one that is installed",
        1.05,
        Key("small", "30 rows of 3 partitions, the package is shipped", MILLISECONDS),
        Key("small", "30 rows of 3 partitions", MILLISECONDS),
    )
    for what, bound in (("nothing new", 35), ("batch planned", 150), ("stream end, all have news", 300)):
        yield _at_most(f"1000 partitions on the driver: {what}, ms", bound, Key("driver", what, MILLISECONDS))
    each = "read of one message in each of 1000 partitions"
    yield _at_most(f"Spark batch {each}, ms", 2000, Key("growth", each, MILLISECONDS))
    for what in ("messages of 1 KiB", "messages of 1 MiB", "packs"):
        yield _at_most(f"peak memory of a worker that reads {what}, MB", 200, Key("memory", what, MEMORY))
    yield _at_most("idle query, 10 brokers, 30 partitions, % of a core", 4, Key("idle", "idle query", CORE))
    yield _at_most(
        "added latency p99 at 1000/s against an empty batch",
        1.0,
        Key("latency", "added p99 at 1000/s", MILLISECONDS),
        Key("latency", "an empty batch", MILLISECONDS),
    )


def _of_faults() -> Iterable[Goal]:
    # One batch waits 10 of the 15 s for the silent broker. If a second one waited, too, nothing would be left.
    bounds = {"silent broker": 0.25, "full broker": 0.5, "broker that refuses the topic": 0.5, "stopped broker": 0.5}
    for fault, bound in bounds.items():
        before, during, after = (Key("faults", f"{fault}: {phase}") for phase in ("before", "during", "after"))
        yield _at_least(f"rows/s during the fault against before, {fault}", bound, during, before)
        yield _at_least(f"rows/s after the fault against before, {fault}", 0.7, after, before)


GOALS: tuple[Goal, ...] = (*_of_reads(), *_of_decoders(), *_of_writes(), *_of_packs(), *_of_driver(), *_of_faults())


def table(results: Results) -> str:
    """Return a line for each goal: the bound, the measured value, and whether it is met. GOALS.md says why some are
    not."""
    lines = ["", f"{'goal':92}{'bound':>8}{'measured':>10}"]
    met = 0
    for goal in GOALS:
        value = goal.value(results)
        bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g}"
        shown = "-" if value is None else f"{value:.3g}"
        verdict = "not measured" if value is None else "met" if goal.is_met(value) else "NOT MET"
        met += verdict == "met"
        if value is not None and goal.is_within_spread(results):
            verdict += " by the median; the rounds differ"
        lines.append(f"{goal.what:92}{bound:>8}{shown:>10}  {verdict}")
    return "\n".join([*lines, f"{met} of {len(GOALS)} goals are met"])
