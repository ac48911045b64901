# SPDX-License-Identifier: Apache-2.0
"""Play schedules of the simulated world.

python -m tests.simulation [--minutes 10 | --count 1000] [--seed 0] [--jobs 2] [--family reading] [--all]
python -m tests.simulation --family reading --seed 17 --count 1 --story          reduce it, and tell what broke
python -m tests.simulation --family reading --seed 17 --only '[…]' [--story]     the same schedule from its decisions
python -m tests.simulation --write-table                                         the coverage, for docs/reliability.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.simulation import coverage, stories
from tests.simulation.choices import Choices
from tests.simulation.families import FAMILIES, play, stage
from tests.simulation.reduce import Reduction
from tests.simulation.run import lines, run
from tests.simulation.story import tell


def main() -> int:
    parser = argparse.ArgumentParser(description="Play schedules of the simulated world.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=None, help="schedules of each family, in place of --minutes")
    parser.add_argument("--seed", type=int, default=None, help="the first; by default the one behind the last run's")
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--only", default=None, help="decisions, or a file that an earlier run wrote")
    parser.add_argument("--story", action="store_true", help="reduce each schedule that breaks a promise, and tell it")
    parser.add_argument("--reduce-seconds", type=float, default=60.0)
    parser.add_argument("--all", action="store_true", help="print all empty cells")
    parser.add_argument("--log", action="store_true", help="let the connector and the servers log")
    parser.add_argument("--keep", default=None, metavar="NAME", help="with --story: keep it in the folder stories")
    parser.add_argument("--breach", default="", help="with --story: only breaches whose text contains this")
    parser.add_argument("--write-table", action="store_true")
    given = parser.parse_args()
    families = given.family or sorted(FAMILIES)
    if given.write_table:
        coverage.write_table()
        return 0
    if given.only is not None or given.story:
        if given.seed is None or (given.only is not None and len(families) != 1):
            parser.error("--only needs --family and --seed, --story needs --seed")
        with stage(logs=given.log):
            return tell_all(families, given)
    report = run(families, minutes=given.minutes, count=given.count, seed=given.seed, jobs=given.jobs, logs=given.log)
    total = coverage.load()
    for family in families:
        print("\n".join(coverage.table(family, total[family], all_lines=given.all)), end="\n\n")
    print("\n".join(lines(report)), flush=True)
    if report.found:
        print("\nThe breaches, reduced:")
        with stage(logs=given.log):
            for found in report.most_often[:3]:
                reduced = Reduction(found.family, found.seed, found.breach, given.reduce_seconds).reduce(found.choices)
                print(f"\n{tell(found.family, found.seed, reduced, found.breach)}", flush=True)
    return int(bool(report.found))


def tell_all(families: list[str], given: argparse.Namespace) -> int:
    """Play the schedules one by one in this process, and tell those that break something."""
    choices = None
    if given.only is not None:
        path = Path(given.only) if not given.only.startswith("[") else None
        choices = Choices.from_json(given.only if path is None else path.read_text())
    failed = False
    for family in families:
        for seed in range(given.seed, given.seed + (given.count or 1)):
            played = play(family, seed, choices)
            if not played.breaches:
                print(f"{family} {seed}: no promise was broken")
            for breach in played.breaches:
                if given.breach not in breach.text:
                    continue
                failed = True
                kept = choices or Choices(played.schedule.world.decisions)
                if given.story:
                    kept = Reduction(family, seed, breach, given.reduce_seconds).reduce(kept)
                print(tell(family, seed, kept, breach), end="\n\n", flush=True)
                if given.keep is not None:
                    stories.write(given.keep, family, seed, kept, breach)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
