# SPDX-License-Identifier: Apache-2.0
"""The parts of the soak that decide: the ledger and the comparison of windows can fail, and the timetable has all."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.clock import SteppedClock
from tests.soak.flatness import FEWEST, Comparison, Quantity, Sample, compare
from tests.soak.ledger import Ledger, body, number_in
from tests.soak.report import PLOT, publish, table
from tests.soak.samples import heap_in, unclaimed
from tests.soak.timetable import CLOCK, CRASH, DRIVER, RESTART, WORKER, Window, timetable

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


def test_a_ledger_without_messages_is_not_exact() -> None:
    assert not Ledger(["output"]).finding("output").is_exact


@pytest.mark.parametrize("strange", [b"", b"soak 1", b"soak x ..", b"soak 1 ..!", b"other 1 .."])
def test_bodies_that_the_producer_did_not_write_are_invented(strange: bytes) -> None:
    made = ledger(0, 1, 2, 3)
    made.found("output", [strange])
    assert number_in(strange) is None
    assert made.finding("output").invented == 1


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


def test_the_median_of_a_window_decides() -> None:
    outlier: list[Sample] = [{"at": 950.0, "memory": 10_000.0}, {"at": 500.0, "memory": 20_000.0}]
    assert compared(MEMORY, [*samples("memory", 100, 101), *outlier]).last == 101


def test_the_mean_decides_where_most_values_are_zero() -> None:
    rare: list[Sample] = [
        {"at": window.begin + n, "claims": 0.0 if n else peak}
        for window, peak in ((FIRST, 5.0), (LAST, 500.0))
        for n in range(FEWEST)
    ]
    claims = Quantity("claims", "", "claims", is_count=True, is_mean=True)
    assert (compared(claims, rare).first, compared(claims, rare).last) == (1.0, 100.0)
    assert not compared(claims, rare).is_flat
    assert compared(replace(claims, is_mean=False), rare).is_flat


@pytest.mark.parametrize("found", [[], samples("memory", 1, 1, FEWEST - 1), samples("memory", 1, 1)[:FEWEST]])
def test_windows_with_few_samples_are_not_flat(found: list[Sample]) -> None:
    assert not compared(MEMORY, found).is_flat


@pytest.mark.parametrize(
    ("at", "held", "is_missed"), [(50, 4, False), (50, 3, True), (105, 0, False), (125, 0, False), (130, 0, True)]
)
def test_a_group_without_all_its_claims_is_found(at: float, held: int, is_missed: bool) -> None:
    faults = [{"at": 100.0, "until": 110.0, "what": "broker 1 killed"}, {"at": 40.0, "until": 60.0, "what": "clock"}]
    found = unclaimed([{"at": at, "steady.held": held, "claims": 9}], faults)
    assert bool(found) == is_missed
    assert not is_missed or found == [f"steady holds {held} of 4 partitions at {at} s"]


def test_figures_are_published_between_the_markers(tmp_path: Path) -> None:
    page, image = tmp_path / "page.md", tmp_path / "image.png"
    (tmp_path / PLOT).write_bytes(b"plot")
    page.write_text("A\n<!-- soak: begin -->\nold\n<!-- soak: end -->\nB\n")
    for _ in range(2):
        publish(tmp_path, "new", page, image)
    told = page.read_text()
    assert told.startswith("A\n<!-- soak: begin -->\n\nnew\n")
    assert told.endswith("(images/image.png)\n\n<!-- soak: end -->\nB\n")
    assert "old" not in told
    assert image.read_bytes() == b"plot"


@pytest.mark.parametrize("seed", range(5))
def test_an_hour_has_each_fault_and_calm_windows(seed: int) -> None:
    plan = timetable(60, random.Random(seed))
    assert {kind for _, kind in plan.faults} == {DRIVER, WORKER, CLOCK, RESTART, CRASH}
    assert plan.first.begin == 600
    moments = [moment for moment, _ in plan.faults]
    assert moments == sorted(moments)
    # As old at the end as in the first window
    assert plan.first.end < moments[0] < moments[-1] <= plan.last.end - plan.first.end
    assert not plan.is_trial
    assert timetable(3, random.Random(seed)).is_trial


def test_the_heap_is_read_from_jcmd() -> None:
    told = """77:
 def new generation   total 157248K, used 2048K [0x00000000e0000000, 0x00000000eaaa0000, 0x00000000eaaa0000)
  eden space 139776K,   5% used [0x00000000e0000000, 0x00000000e071b0f0, 0x00000000e8880000)
 tenured generation   total 349568K, used 95904K [0x00000000eaaa0000, 0x0000000100000000, 0x0000000100000000)
   the space 349568K,  27% used [0x00000000eaaa0000, 0x00000000f0848328, 0x00000000f0848400, 0x0000000100000000)
 Metaspace       used 110000K, committed 112000K, reserved 1179648K
"""
    assert heap_in(told) == pytest.approx((2048 + 95904) * 1024 / 1e6)
    assert heap_in("no such process") is None


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
