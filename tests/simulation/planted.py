# SPDX-License-Identifier: Apache-2.0
"""Planted faults: the proof that the invariants can fail. Each fault is a small change of the product's code that
breaks a promise; the schedules must find it. One that is not found shows a hole: a missing disturbance, or invariant.

    python -m tests.simulation.planted [NAME ...] [--most 3000] [--jobs 1] [--from SEED]

A process of its own plays the schedules of a fault. The fault is found by the first schedule that breaks an expected
invariant, with a text that the same schedule does not give without the fault.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module

from tests.simulation.planted_faults import FAULTS
from tests.simulation.planted_faults.fault import ROOT, Fault, plant

MOST = 3000
_LONGEST = 30.0  # seconds for one schedule
_MOST_STEPS = 30_000  # of one schedule: a fault may let the product run in circles, and some 5 000 are usual

FAMILIES = ("reading", "writing")


# In the process that plays the schedules


def _work(family: str, fault: Fault | None) -> None:
    """Play the schedule of each seed that comes in, and write out what it broke."""
    if fault is not None:
        plant(fault)
    vars(import_module("tests.simulation.world"))["_MOST_STEPS"] = _MOST_STEPS
    families = import_module("tests.simulation.families")
    expected = frozenset() if fault is None else frozenset(fault.invariants)

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nobody else writes answers
    with families.stage():
        for number, line in enumerate(sys.stdin):
            played = families.play(family, int(line), enough=lambda error: error.invariant in expected)
            answers.write(json.dumps({one.invariant: one.text for one in played.breaches}) + "\n")
            answers.flush()
            if number % 20 == 19:
                gc.collect()


# In the process that compares


class Player:
    """Plays schedules of a family in a process of its own, with `fault` or without any. Safe to use from threads."""

    def __init__(self, family: str, fault: Fault | None = None) -> None:
        self._command = [sys.executable, "-m", "tests.simulation.planted", "--work", family]
        if fault is not None:
            self._command += ["--fault", fault.name]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._known: dict[int, dict[str, str]] = {}

    def broken_by(self, seed: int) -> dict[str, str]:
        """Return what the schedule broke: the text of each breach, by invariant."""
        with self._lock:
            if seed not in self._known:
                self._known[seed] = self._ask(seed)
            return self._known[seed]

    def _ask(self, seed: int) -> dict[str, str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_LONGEST, process.kill)
        timer.start()
        try:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            self.close()
            return {"comes_to_rest": f"comes_to_rest: the process ended, or took longer than {_LONGEST:.0f} s"}
        found: dict[str, str] = json.loads(answer)
        return found

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


@dataclass(frozen=True)
class Finding:
    """How a fault was found, or that it was not. `others` are breaches of invariants that were not expected."""

    fault: Fault
    schedules: int
    seconds: float
    invariant: str | None = None
    text: str = ""
    others: tuple[str, ...] = ()


def pattern_of(text: str) -> str:
    return re.sub(r"[0-9]+", "#", text)


def find(fault: Fault, without: Player, most: int = MOST, first: int = 0) -> Finding:
    """Play schedules of the fault's family from seed `first` on, until one breaks an expected invariant. `without`
    plays them without the fault."""
    begun = time.monotonic()
    others: dict[str, str] = {}
    with contextlib.closing(Player(fault.family, fault)) as player:
        for seed in range(first, first + most):
            broken = player.broken_by(seed)
            if not broken:
                continue
            usual = {pattern_of(text) for text in without.broken_by(seed).values()}
            news = {kind: text for kind, text in broken.items() if pattern_of(text) not in usual}
            for kind, text in news.items():
                if kind in fault.invariants:
                    return Finding(fault, seed - first + 1, time.monotonic() - begun, kind, text)
                others.setdefault(kind, f"seed {seed}: {text}")
    return Finding(fault, most, time.monotonic() - begun, others=tuple(others.values()))


def _row(found: Finding) -> str:
    fault = found.fault
    how = found.invariant or "NOT FOUND"
    row = f"{fault.name:34} {how:24} {found.schedules:5} {found.seconds:6.1f} s   {fault.promise}"
    return row + "".join(f"\n    instead {text[:260]}" for text in found.others)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Plant faults in the product, and let the simulation find each of them."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults, or families; all by default")
    parser.add_argument("--most", type=int, default=MOST, help="schedules for one fault")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time")
    parser.add_argument("--show", action="store_true", help="show the breach that found each fault")
    parser.add_argument("--work", choices=FAMILIES, help=argparse.SUPPRESS)
    parser.add_argument("--fault", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    by_name = {fault.name: fault for fault in FAULTS}
    if given.work:
        _work(given.work, by_name[given.fault] if given.fault else None)
        return 0
    if unknown := set(given.names) - by_name.keys() - set(FAMILIES):
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}")
    wanted = [fault for fault in FAULTS if not given.names or {fault.name, fault.family} & set(given.names)]
    for fault in wanted:
        fault.tree()
    missed = 0
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(given.jobs) as threads:
        without = {family: stack.enter_context(contextlib.closing(Player(family))) for family in FAMILIES}
        tasks = [threads.submit(find, fault, without[fault.family], given.most, given.first) for fault in wanted]
        for task in tasks:
            found = task.result()
            missed += found.invariant is None
            print(_row(found), flush=True)
            if given.show and found.text:
                print(f"    {found.text[:300]}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
