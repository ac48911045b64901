# SPDX-License-Identifier: Apache-2.0
"""Play many histories of the sink.

python -m tests.sink_histories --count 200 --seed X [--server embedded|real] [--only N] [--jobs N]
python -m tests.sink_histories --play file.json           one that was printed
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.sink_histories.generate import generate
from tests.sink_histories.run import Outcome, Stage, play_alone
from tests.sink_histories.script import History


def main() -> int:
    parser = argparse.ArgumentParser(description="Play random histories of the sink.")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default=None, help="of all histories; by default a new one")
    parser.add_argument("--server", choices=["embedded", "real"], default="embedded")
    parser.add_argument("--jobs", type=int, default=3, help="processes side by side")
    parser.add_argument("--only", type=int, default=None, help="the number of one history of this seed")
    parser.add_argument("--play", type=Path, default=None, help="a file with a history that was printed")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    if given.play is not None:
        with Stage(given.server) as stage:
            outcome = stage.play(History.from_json(given.play.read_text()))
        print(outcome)
        return int(outcome.problem is not None)
    seed = given.seed or f"{random.SystemRandom().getrandbits(32):x}"
    numbers = range(given.count) if given.only is None else [given.only]
    chosen = [generate(f"{seed}:{number}", given.server) for number in numbers]
    print(f"seed {seed}")
    print(f"{len(chosen)} histories, {given.server}", flush=True)
    begun = time.monotonic()
    stats: Counter[str] = Counter()
    failed = 0
    for outcome in outcomes(chosen, given.server, not given.no_shrink, given.jobs):
        stats.update(outcome.stats)
        print(f"{time.monotonic() - begun:7.1f} s {outcome.history.name}", file=sys.stderr, flush=True)
        if outcome.problem is not None:
            failed += 1
            print(f"\n{outcome}\n{outcome.history.to_json()}\n", flush=True)
    took = time.monotonic() - begun
    print(f"{len(chosen) - failed} of {len(chosen)} correct, {took:.1f} s, {len(chosen) / took:.1f} a second")
    print(", ".join(f"{name} {count}" for name, count in sorted(stats.items())))
    return int(failed > 0)


def outcomes(chosen: Sequence[History], server: str, shrinks: bool, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes in order. Histories on embedded servers run in parallel."""
    if jobs == 1 or len(chosen) == 1 or server == "real":
        with Stage(server) as stage:
            for history in chosen:
                yield stage.play_shrunk(history) if shrinks else stage.play(history)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(play_alone, shrinks=shrinks), chosen)


if __name__ == "__main__":
    sys.exit(main())
