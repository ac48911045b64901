# SPDX-License-Identifier: Apache-2.0
"""Run all decoders on random and damaged input, print a table, and end with status 1 if one of them is wrong.

python -m tests.fuzz --count 1000000 --seed 1 --only frames
"""

from __future__ import annotations

import argparse
import logging
import resource

from tests.fuzz.decoders import DECODERS
from tests.fuzz.run import Outcome, run

_ADDRESS_SPACE = 6 << 30  # bytes; a decoder that wants gigabytes gets a MemoryError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs of all decoders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[decoder.name for decoder in DECODERS], help="the only decoder")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    logging.disable(logging.WARNING)  # damaged files are logged, one by one
    chosen = [decoder for decoder in DECODERS if given.only in (None, decoder.name)]
    total = sum(decoder.share for decoder in chosen)
    outcomes = []
    print(f"{'decoder':<20}{'inputs':>10}{'accepted':>10}{'refused':>10}{'seconds':>9}")
    for decoder in chosen:
        outcomes.append(run(decoder, max(1, round(given.count * decoder.share / total)), given.seed))
        _print(outcomes[-1])
    everything = Outcome("total")
    for outcome in outcomes:
        everything.accepted += outcome.accepted
        everything.refused += outcome.refused
        everything.seconds += outcome.seconds
        everything.problems += outcome.problems
    _print(everything)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"seed {given.seed}, {len(everything.problems)} problems, peak memory of this process {peak:.0f} MB")
    for problem in everything.problems:
        print(problem)
    if everything.problems:
        raise SystemExit(1)


def _print(outcome: Outcome) -> None:
    print(
        f"{outcome.name:<20}{outcome.inputs:>10}{outcome.accepted:>10}{outcome.refused:>10}{outcome.seconds:>9.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
