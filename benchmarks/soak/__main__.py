# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.soak`: run queries on a real TubeMQ under faults. Nothing may be lost, doubled or grow.

    python -m benchmarks.soak --minutes 60                 as `make soak`
    python -m benchmarks.soak --minutes 3 --rate 100       tries the programs out; too short to judge what grows

The release is 1.2.0, or the one whose server jars are in the folder TUBEMQ_SERVER_JARS. The output folder has the
samples, the faults, the logs, the verdict and the report. The status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.soak import report
from benchmarks.soak.clock import SteppedClock
from benchmarks.soak.faults import Faults, wait_for
from benchmarks.soak.flatness import compare
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.outputs import OutputReader
from benchmarks.soak.programs import Program, Query, producer
from benchmarks.soak.samples import QUANTITIES, Sampler, unclaimed
from benchmarks.soak.servers import INPUT, OUTPUTS, SoakTubeMQ
from benchmarks.soak.timetable import Timetable, timetable
from tests.matrix.queries import TOO_LATE
from tests.spark_jvm import quick_start

_TRIGGER = 4.0  # seconds
_SIZE = 120  # bytes of a body
_MOST_UNKNOWN = 0.02  # sends whose outcome is unknown: a broker restarts in seconds
_TOKENS = 5  # the least that a run of half an hour must see


class Run:
    """One run: starts everything, lets the faults happen, and ends with a verdict."""

    def __init__(self, given: argparse.Namespace, plan: Timetable, folder: Path) -> None:
        self._given = given
        self._plan = plan
        self._folder = folder
        self._problems: list[str] = []
        self._happened: Counter[str] = Counter()
        self._ledger = Ledger(OUTPUTS)
        self._chance = random.Random(given.seed)
        self._begun = time.monotonic()

    def __call__(self) -> report.Verdict:
        with ExitStack() as stack:
            tubemq = SoakTubeMQ(self._folder / "servers", self._given.rate, self._plan.is_trial)
            stack.enter_context(tubemq)
            clock = SteppedClock(self._folder / "clock")
            queries = {name: Query(name, tubemq, self._folder, clock, _TRIGGER) for name in OUTPUTS}
            source = producer(tubemq, self._folder, self._given.rate, _SIZE)
            outputs = OutputReader(tubemq, self._ledger, self._folder / "sent.jsonl")
            samples = self._folder / report.SAMPLES
            sampler = Sampler(tubemq, queries.values(), outputs, self._ledger, samples, self.now)
            programs: list[Program] = [source, *queries.values()]
            for program in programs:
                stack.callback(program.kill)
                program.start()
            self._begun = time.monotonic()
            self._say(f"TubeMQ {tubemq.release}, {self._given.minutes:g} minutes, seed {self._given.seed}")
            for thread in (outputs, sampler):
                stack.enter_context(thread)

            def check_threads() -> None:
                for thread in (outputs, sampler):
                    if thread.problem is not None:
                        raise RuntimeError(f"{type(thread).__name__} failed: {thread.problem!r}") from thread.problem

            def is_copied() -> bool:
                check_threads()
                with outputs.lock:
                    return self._ledger.has_all()

            faults = Faults(tubemq, source, queries["killed"], clock, is_copied, self._chance)
            try:
                self._live(faults, programs, check_threads)
                sampler.stop()
                self._finish(source, queries, outputs, is_copied)
            except Exception:
                self._problems.append(traceback.format_exc())
            return self._verdict(tubemq, queries, outputs)

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._begun

    def _live(self, faults: Faults, programs: list[Program], check_threads: Callable[[], None]) -> None:
        planned, next_at = list(self._plan.faults), 0.0
        while self.now() < self._plan.seconds:
            check_threads()
            for program in programs:
                if not program.is_running:
                    raise RuntimeError(f"program {program.name} ended by itself")
            if planned and self.now() >= max(planned[0].moment, next_at):
                self._let_happen(faults, planned.pop(0).kind)
                next_at = self.now() + self._plan.pause
            if self.now() >= self._plan.faults_end:  # those that slow ones have delayed do not happen
                planned.clear()
            time.sleep(0.2)

    def _let_happen(self, faults: Faults, kind: str) -> None:
        begun = self.now()
        told = faults.happen(kind)
        self._happened[kind] += 1
        self._say(told)
        with open(self._folder / report.FAULTS, "a") as file:
            print(json.dumps({"at": round(begun, 1), "until": round(self.now(), 1), "what": told}), file=file)

    def _finish(
        self, source: Program, queries: dict[str, Query], outputs: OutputReader, is_copied: Callable[[], bool]
    ) -> None:
        """End the producer, wait until the queries have copied everything, and end them."""
        if (status := source.end()) != 0:
            self._problems.append(f"the producer ended with status {status}")
        wait_for(is_copied, "the copies of all messages after the producer's end")
        for query in queries.values():
            if (status := query.end()) != 0:
                self._problems.append(f"query {query.name} ended with status {status}")
        outputs.stop()
        outputs.read()

    def _verdict(self, tubemq: SoakTubeMQ, queries: dict[str, Query], outputs: OutputReader) -> report.Verdict:
        plan = self._plan
        samples = report.read_lines(self._folder / report.SAMPLES)
        comparisons = compare(samples, QUANTITIES, plan.first, plan.last)
        self._problems += unclaimed(samples, report.read_lines(self._folder / report.FAULTS))
        findings = {name: self._ledger.finding(name) for name in OUTPUTS}
        ends = {name: query.own_ends() for name, query in queries.items()}
        removed = tubemq.removed(INPUT)
        for name, finding in findings.items():
            if not finding.is_exact:
                self._problems.append(f"the output of {name} is not exact: {finding}")
            if not plan.is_trial and finding.unknown > _MOST_UNKNOWN * finding.acknowledged:
                self._problems.append(f"the outcome of {finding.unknown} sends is unknown")
        for name, errors in ends.items():
            # On a busy machine, a Python worker of Spark may not start within the 10 s that Spark waits.
            own = [error for error in errors if TOO_LATE not in error]
            self._problems += [f"query {name} ended by itself: {error[:2000]}" for error in own]
        if not plan.is_trial:
            self._problems += [f"not flat: {one}" for one in comparisons if not one.is_flat]
            if removed == 0:
                self._problems.append("retention removed nothing")
            if len(outputs.tokens) < _TOKENS:
                self._problems.append(f"the visit token changed only {len(outputs.tokens) - 1} times")
            if missing := {kind for _, kind in plan.faults} - self._happened.keys():
                self._problems.append(f"faults that did not happen: {sorted(missing)}")
        return report.Verdict(
            release=tubemq.release,
            minutes=self._given.minutes,
            rate=self._given.rate,
            seed=self._given.seed,
            first=plan.first,
            last=plan.last,
            faults=dict(self._happened),
            driver_starts=queries["killed"].starts,
            query_ends=ends,
            tokens=len(outputs.tokens),
            removed=removed,
            batches={name: query.committed() for name, query in queries.items()},
            findings=findings,
            comparisons=comparisons,
            problems=self._problems,
        )

    def _say(self, what: str) -> None:
        print(f"{self.now() / 60:6.1f} min  {what}", flush=True)


def main() -> int:
    given = _arguments()
    folder: Path = given.output.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "clock").exists():
        sys.exit(f"{folder} has files that are not of such a run: name another folder with --output")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that it started
    plan = timetable(given.minutes, random.Random(given.seed))
    quick_start()  # makes the archive of Spark's classes now, if there is none yet
    verdict = Run(given, plan, folder)()
    (folder / report.VERDICT).write_text(verdict.to_json())
    told = report.report(verdict)
    (folder / report.REPORT).write_text(f"{told}\n")
    print(told)
    print("passed" if not verdict.problems else "FAILED", flush=True)
    return 1 if verdict.problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (default: 60)")
    parser.add_argument("--rate", type=float, default=300.0, help="messages per second (default: 300)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="of the faults")
    parser.add_argument("--output", type=Path, default=Path("build/soak"), help="folder, emptied first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
