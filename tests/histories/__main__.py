# SPDX-License-Identifier: Apache-2.0
"""Play many histories.

python -m tests.histories --count 300 --seed X [--server embedded|real] [--engine calls|spark] [--jobs N]
python -m tests.histories --play file.json     a history that an earlier run printed
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.histories.run import Outcome, Stage, play_alone
from tests.histories.script import History


def main() -> int:
    parser = argparse.ArgumentParser(description="Play random histories.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default=None, help="the seed of all histories; random by default")
    parser.add_argument("--server", choices=["embedded", "real"], default="embedded")
    parser.add_argument("--engine", choices=["calls", "spark"], default="calls")
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side")
    parser.add_argument("--only", type=int, default=None, help="play only the history with this number")
    parser.add_argument("--play", type=Path, default=None, help="a file with a history that an earlier run printed")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    if given.play is not None:
        with Stage(given.server, given.engine) as stage:
            outcome = stage.play(History.from_json(given.play.read_text()))
        print(outcome)
        return int(outcome.problem is not None)
    seed = given.seed or f"{random.SystemRandom().getrandbits(32):x}"
    numbers = range(given.count) if given.only is None else [given.only]
    names = [f"{seed}:{number}" for number in numbers]
    print(f"seed {seed}, {len(names)} histories, {given.server}, {given.engine}", flush=True)
    begun = time.monotonic()
    stats: Counter[str] = Counter()
    failed = 0
    for outcome in outcomes(names, given.server, given.engine, not given.no_shrink, given.jobs):
        stats.update(outcome.stats)
        print(f"{time.monotonic() - begun:7.1f} s {outcome.history.name}", file=sys.stderr, flush=True)
        if outcome.problem is not None:
            failed += 1
            print(f"\n{outcome}\n{outcome.history.to_json()}\n", flush=True)
    took = time.monotonic() - begun
    print(f"{len(names) - failed} of {len(names)} passed, {took:.1f} s, {len(names) / took:.1f} a second")
    print(", ".join(f"{name} {count}" for name, count in sorted(stats.items())))
    return int(failed > 0)


def outcomes(names: list[str], server: str, engine: str, shrinks: bool, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes in order. Only histories without Spark on embedded servers run in parallel."""
    if jobs == 1 or len(names) == 1 or (server, engine) != ("embedded", "calls"):
        with Stage(server, engine) as stage:
            for name in names:
                yield stage.play_named(name, shrinks=shrinks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(play_alone, shrinks=shrinks), names)


if __name__ == "__main__":
    sys.exit(main())
