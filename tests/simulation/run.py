# SPDX-License-Identifier: Apache-2.0
"""Plays many schedules of all families, in several processes, and shows what broke and what was never met.

Without `seed`, a run continues behind the seeds of the last one, and steers disturbances towards states that they never
met. With `seed`, it uses no coverage, so that the same seeds play the same schedules. Each breach is kept with all
decisions of its schedule in `build/simulation`, so that its reproduction needs neither.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice

from tests.simulation import coverage as coverages
from tests.simulation.choices import Choices, shape
from tests.simulation.coverage import Coverage, Towards
from tests.simulation.families import play, stage
from tests.simulation.schedule import Breach

_CHUNK = 20  # schedules
_CHUNKS_OF_A_PROCESS = 25  # greenlets that end with an error keep parts of their schedule alive, so processes grow
_stage = ExitStack()  # of a process of the pool


@dataclass
class Found:
    """A distinct breach: how often it was found, and the first schedule that has it."""

    family: str
    breach: Breach
    seed: int
    choices: Choices
    times: int = 1
    schedules: int = 0  # of its family, until it was found
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.family, shape(self.breach.text)


@dataclass
class Chunk:
    """What some schedules of a family have done."""

    family: str
    schedules: int = 0
    seconds: float = 0.0  # of CPU time
    decisions: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    found: dict[tuple[str, str], Found] = field(default_factory=dict)


@dataclass
class Report:
    """The result of a run."""

    chunks: dict[str, Chunk]
    found: dict[tuple[str, str], Found]
    seconds: float

    @property
    def most_often(self) -> list[Found]:
        return sorted(self.found.values(), key=lambda one: -one.times)


def play_chunk(family: str, seeds: range, towards: Towards | None) -> Chunk:
    """Play schedules in a `stage`."""
    chunk = Chunk(family)
    begun = time.process_time()
    for seed in seeds:
        played = play(family, seed, cells=towards)
        chunk.schedules += 1
        if played.outcome is not None:
            chunk.coverage.add(played.outcome)
            chunk.decisions += len(played.outcome.decisions)
        for breach in played.breaches:
            new = Found(family, breach, seed, Choices(played.schedule.world.decisions), schedules=chunk.schedules)
            old = chunk.found.setdefault(new.key, new)
            if old is not new:
                old.times += 1
    gc.collect()
    chunk.seconds = time.process_time() - begun
    return chunk


def run(
    families: list[str],
    *,
    minutes: float = 10.0,
    count: int | None = None,
    seed: int | None = None,
    jobs: int = 1,
    logs: bool = False,
) -> Report:
    """Play `count` schedules of each family, or as many as `minutes` allow."""
    known_before = coverages.load()
    begun = time.monotonic()
    report = Report({family: Chunk(family) for family in families}, {}, 0.0)
    first = {
        family: seed if seed is not None else known_before.get(family, Coverage()).next_seed for family in families
    }
    towards = {family: Towards(known_before[family]) for family in families if seed is None and family in known_before}
    until = begun + minutes * 60 if count is None else math.inf
    portions = _portions(first, count)
    spawn = multiprocessing.get_context("spawn")
    while time.monotonic() < until and (several := list(islice(portions, _CHUNKS_OF_A_PROCESS * jobs))):
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_enter, initargs=(logs,)) as executor:
            played = [executor.submit(play_chunk, family, seeds, towards.get(family)) for family, seeds in several]
            for one in as_completed(played):
                _take(report, one.result(), time.monotonic() - begun)
                if time.monotonic() > until:
                    executor.shutdown(cancel_futures=True)
                    break
    report.seconds = time.monotonic() - begun
    total = coverages.load()
    for family, chunk in report.chunks.items():
        total.setdefault(family, Coverage()).merge(chunk.coverage)
    coverages.save(total)
    return report


def _portions(first: Mapping[str, int], count: int | None) -> Iterator[tuple[str, range]]:
    """Yield portions of the seeds of each family in turn, without an end if there is no `count`."""
    at = dict(first)
    for family in cycle(first):
        begin = at[family]
        end = begin + _CHUNK if count is None else min(begin + _CHUNK, first[family] + count)
        if begin < end:
            yield family, range(begin, end)
        at[family] = end
        if count is not None and all(at[one] == first[one] + count for one in first):
            return


def _take(report: Report, new: Chunk, seconds: float) -> None:
    """Add to the report what a process did until `seconds` after the begin."""
    chunk = report.chunks[new.family]
    for key, found in new.found.items():
        found.schedules += chunk.schedules
        found.seconds = seconds
        old = report.found.setdefault(key, found)
        if old is not found:
            old.times += found.times
        else:  # a long run may be stopped before it ends
            print(f"{found.family} {found.seed}: {found.breach.text}", flush=True)
    chunk.schedules += new.schedules
    chunk.seconds += new.seconds
    chunk.decisions += new.decisions
    chunk.coverage.merge(new.coverage)


def _enter(logs: bool) -> None:
    _stage.enter_context(stage(logs=logs))


def keep(found: Found) -> str:
    """Write the decisions of a breach into a file, and return its name below the root of the repository."""
    path = coverages.FILE.parent / f"{found.family}-{found.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.choices.to_json() + "\n")
    return str(path.relative_to(coverages.ROOT))


def lines(report: Report) -> Iterator[str]:
    """Yield what a run shows."""
    for family, chunk in report.chunks.items():
        n, coverage = max(1, chunk.schedules), chunk.coverage
        yield (
            f"{family}: {chunk.schedules} schedules, {chunk.schedules / max(report.seconds, 0.001):.1f} a second, "
            f"{chunk.schedules / max(chunk.seconds, 0.001):.1f} a second of one core; on average "
            f"{coverage.batches / n:.1f} batches, {coverage.restarts / n:.1f} restarts, "
            f"{coverage.disturbances / n:.1f} disturbances, {chunk.decisions / n:.1f} decisions"
        )
    for found in report.most_often:
        yield (
            f"BROKEN {found.times} times, {found.family} {found.seed} first, after "
            f"{found.schedules} schedules and {found.seconds:.0f} s: {found.breach.text}"
        )
        yield f"    python -m tests.simulation --family {found.family} --seed {found.seed} --only {keep(found)} --story"
