# SPDX-License-Identifier: Apache-2.0
"""Let each fault happen at each request of a query that reads and of one that writes, and print what follows.

python -m tests.every_call [--job source|sink] [--jobs N]               all on the embedded server
python -m tests.every_call --sample 200 --seed X                        some of them
python -m tests.every_call --keep FILE                                  store the results there, and play only the rest
python -m tests.every_call --server real --sample 100 [--seed X]        on a real server; its release is 1.2.0, or that
                                                                        of the jars in folder TUBEMQ_SERVER_JARS
--table docs/reliability.md also writes the table into the page.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.every_call.kept import Kept
from tests.every_call.run import STAGES, play_embedded, sample
from tests.every_call.table import markdown, summary, write
from tests.every_call.trials import BROKEN, MISSED, SINK, SOURCE, Result

_REAL_SAMPLE = 100


def main() -> int:
    parser = argparse.ArgumentParser(description="Let each fault happen at each request of two queries.")
    parser.add_argument("--server", choices=["embedded", "real"], default="embedded")
    parser.add_argument("--job", choices=[SOURCE, SINK], default=None, help="only the query that reads, or writes")
    parser.add_argument("--sample", type=int, default=None, help="play so many; by default all, on a real server 100")
    parser.add_argument("--seed", default=None, help="of the sample; random by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side, on embedded servers")
    parser.add_argument("--keep", type=Path, default=None, help="a file with results of the embedded server")
    parser.add_argument("--table", type=Path, default=None, help="a page with markers for the table")
    given = parser.parse_args()
    seed = given.seed or f"{random.SystemRandom().getrandbits(32):x}"
    count = given.sample or (_REAL_SAMPLE if given.server == "real" else None)
    jobs = [SOURCE, SINK] if given.job is None else [given.job]
    if given.keep is not None and given.server == "real":
        parser.error("--keep is for the embedded server")
    kept = Kept(given.keep)
    print(f"{given.server}, seed {seed}", flush=True)
    begun = time.monotonic()
    results: list[Result] = []
    releases: set[str | None] = set()
    for number, job in enumerate(jobs):
        share = None if count is None else (count + number) // len(jobs)
        for result, release in _results(given.server, job, share, seed, given.jobs, kept):
            results.append(result)
            releases.add(release)
            kept.add(result)
            shown = ", ".join([result.outcome, *result.errors])
            print(f"{time.monotonic() - begun:7.1f} s {result.trial}: {shown}", file=sys.stderr, flush=True)
            if result.outcome == BROKEN:
                print(f"\n{result}\n{result.trial.history.to_json()}\n", flush=True)
    name = " ".join([given.server, *(release.split("-")[0] for release in releases if release is not None)])
    date = datetime.date.today().isoformat()
    text = f"{date}, {summary(results)}\n\n{markdown(results)}"
    print(f"{name}, {time.monotonic() - begun:.0f} s\n{text}")
    if given.table is not None:
        write(given.table, name, text)
    bad = {BROKEN} if given.server == "real" else {BROKEN, MISSED}
    return int(any(result.outcome in bad for result in results))


def _results(
    server: str, job: str, count: int | None, seed: str, processes: int, kept: Kept
) -> Iterator[tuple[Result, str | None]]:
    """Yield each result with the release of the real server."""
    stage = STAGES[job](server)
    try:
        stage.prepare()
        trials = stage.trials()
        chosen = trials if count is None else sample(trials, count, f"{seed} {job}")
        print(f"{job}: {len(chosen)} of {len(trials)} trials", flush=True)
        if server == "embedded":
            yield from ((result, None) for result in map(kept.result, chosen) if result is not None)
            missing = [trial for trial in chosen if kept.result(trial) is None]
            yield from ((result, None) for result in play_embedded(missing, processes))
        else:
            yield from ((stage.play(trial), stage.release) for trial in chosen)
    finally:
        stage.close()


if __name__ == "__main__":
    sys.exit(main())
