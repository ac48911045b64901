# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.differential`` plays thousands of random scripts on the embedded TubeMQ and on a real one.

It prints the number of scripts and replies, and each kind of difference with its shortest script. The release is 1.2.0,
or that of the server jars in the folder TUBEMQ_SERVER_JARS. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import get_args

from tests.differential.bench import Bench, Results
from tests.differential.findings import findings, report
from tests.differential.generate import FAMILIES, scripts
from tests.differential.script import Script
from tests.differential.servers import MAX_STORES, Server, embedded, real
from tests.real import jars


def main() -> int:
    given = _arguments()
    with _pair(given.release, given.framing, given.against) as (one, other):
        print(f"{one.target.name} and {other.target.name}, seed {given.seed}", flush=True)
        bench = Bench(one, other, given.stores)
        total = Results()
        for names, together in _waiting_together(scripts(given.seed, given.scripts, given.family or tuple(FAMILIES))):
            begin = time.monotonic()
            results = bench.run(together)
            print(f"{', '.join(names)}: {_counts(results)}, {time.monotonic() - begin:.0f} s", flush=True)
            total += results
        print(f"all: {_counts(total)}; {bench.stores} stores")
        found = findings(bench, total.differences)
    for finding in found:
        print(f"\n{report(finding)}")
    return 1 if found or total.abandoned else 0


def _waiting_together(by_family: Mapping[str, Sequence[Script]]) -> Iterator[tuple[list[str], list[Script]]]:
    """Yield the scripts that wait for the same, with the names of their families."""
    together: dict[tuple[str, ...], list[tuple[str, Script]]] = defaultdict(list)
    for name, family in by_family.items():
        for script in family:
            together[script.barriers].append((name, script))
    for group in together.values():
        yield sorted({name for name, _ in group}), [script for _, script in group]


def _counts(results: Results) -> str:
    return (
        f"{results.played} scripts played, {results.calls} calls, {len(results.differences)} differences, "
        f"{results.disturbed} plays disturbed by a flush, {results.abandoned} scripts given up"
    )


@contextmanager
def _pair(release: jars.Release, framing: jars.Framing, against: str) -> Iterator[tuple[Server, Server]]:
    with real(release, framing) as one:
        if against == "real":
            with real(release, framing) as second:
                yield one, second
        else:
            with embedded(one.release, framing) as other:
                yield one, other


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--scripts", type=int, default=2000, help="number of scripts (2000)")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="seed of the scripts (a new one)")
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="only this family; may be repeated")
    parser.add_argument("--release", choices=get_args(jars.Release), default="1.2.0")
    parser.add_argument("--framing", choices=get_args(jars.Framing), default="standard", help="of release 1.2.0")
    parser.add_argument(
        "--against", choices=["embedded", "real"], default="embedded", help="real: show unsteady replies"
    )
    parser.add_argument("--stores", type=int, default=MAX_STORES // 6, help="stores of each topic")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
