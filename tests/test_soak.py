# SPDX-License-Identifier: Apache-2.0
"""The parts of the soak that decide: the ledger and the comparison of windows can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.soak.clock import SteppedClock
from benchmarks.soak.flatness import FEWEST, Comparison, Quantity, Sample, compare
from benchmarks.soak.ledger import Ledger, body
from benchmarks.soak.report import table
from benchmarks.soak.samples import unclaimed
from benchmarks.soak.timetable import Window

MEMORY = Quantity("memory", "MB", "memory")
FILES = Quantity("files", "", "files", is_count=True)
FIRST, LAST = Window(0, 100), Window(900, 1000)


def copied(*numbers: int) -> list[bytes]:
    return [body(number, 40) for number in numbers]


def ledger(*found: int) -> Ledger:
    """Messages 0 to 3 are acknowledged, 4 and 5 are unknown, 6 and later were never sent."""
    made = Ledger(["output"])
    made.found("output", copied(*found))  # an output may be read before the producer's log
    made.sent([0, 1, 2, 3], [4, 5])
    return made


@pytest.mark.parametrize("found", [(0, 1, 2, 3), (3, 1, 0, 2, 4), (0, 1, 2, 3, 4, 5)])
def test_a_ledger_is_exact_whatever_became_of_unknown_sends(found: tuple[int, ...]) -> None:
    finding = ledger(*found).finding("output")
    assert finding.is_exact
    assert (finding.copies, finding.unknown, finding.unknown_found) == (len(found), 2, len(found) - 4)
    assert ledger(*found).has_all()


@pytest.mark.parametrize(
    ("found", "problem", "examples"),
    [
        ((0, 1, 3), "missing", ("missing: 2",)),
        ((0, 1, 2, 3, 2), "twice", ("more than once: 2",)),
        ((0, 1, 2, 3, 4, 4), "twice", ("more than once: 4",)),
        ((0, 1, 2, 3, 9), "invented", ("never sent: 9",)),
    ],
)
def test_a_ledger_names_what_is_wrong(found: tuple[int, ...], problem: str, examples: tuple[str, ...]) -> None:
    finding = ledger(*found).finding("output")
    counts = {name: getattr(finding, name) for name in ("missing", "twice", "invented")}
    assert counts == {**dict.fromkeys(counts, 0), problem: 1}
    assert finding.examples == examples
    assert not finding.is_exact


def samples(name: str, first: float, last: float, count: int = FEWEST) -> list[Sample]:
    return [
        {"at": window.begin + n, name: value} for window, value in ((FIRST, first), (LAST, last)) for n in range(count)
    ]


def compared(quantity: Quantity, found: list[Sample]) -> Comparison:
    (one,) = compare(found, [quantity], FIRST, LAST)
    return one


@pytest.mark.parametrize(
    ("quantity", "first", "last", "is_flat"),
    [
        (MEMORY, 100.0, 105.0, True),
        (MEMORY, 100.0, 50.0, True),
        (MEMORY, 100.0, 105.1, False),
        (MEMORY, 0.0, 1.0, False),
        (FILES, 9.0, 10.0, True),
        (FILES, 9.0, 11.0, False),
        (FILES, 100.0, 106.0, False),
    ],
)
def test_growth_is_found(quantity: Quantity, first: float, last: float, is_flat: bool) -> None:
    one = compared(quantity, samples(quantity.name, first, last))
    assert one.is_flat == is_flat
    assert ("NOT FLAT" in table([one])) == (not is_flat)


def test_the_clock_of_other_processes_is_stepped_while_they_run(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path / "clock")
    program = "import sys, time\nfor _ in sys.stdin: print(time.time(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **clock.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for shift in (0.0, 5000.0, -3000.0):
            clock.step(shift)
            before = time.time()
            process.stdin.write("\n")
            process.stdin.flush()
            told = json.loads(process.stdout.readline()) - shift
            assert before - 1 <= told <= time.time() + 1
        process.stdin.close()


def test_a_query_holds_its_partitions_except_while_it_is_killed() -> None:
    samples: list[Sample] = [{"at": at, "killed.held": held} for at, held in ((10, 4), (20, 0), (31, 0), (60, 3))]
    faults = [{"at": 30.5, "until": 31.5, "what": "driver killed: all processes"}]
    assert unclaimed(samples, faults) == [
        "killed holds 0 of 4 partitions at 20 s",
        "killed holds 3 of 4 partitions at 60 s",
    ]
