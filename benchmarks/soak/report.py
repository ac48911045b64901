# SPDX-License-Identifier: Apache-2.0
"""The report of a run, which docs/reliability.md sums up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.soak.flatness import Comparison
from benchmarks.soak.ledger import Finding
from benchmarks.soak.timetable import CLOCK, CRASH, DRIVER, RESTART, WORKER, Window

SAMPLES, FAULTS, VERDICT, REPORT = "samples.jsonl", "faults.jsonl", "verdict.json", "soak.md"

_FAULTS = {
    DRIVER: "driver killed",
    WORKER: "Python worker killed",
    CLOCK: "clock stepped",
    RESTART: "broker restarted",
    CRASH: "broker killed when all was flushed",
}


@dataclass(frozen=True)
class Verdict:
    """What a run has shown. `problems` are reasons to fail; a run without any has passed."""

    release: str
    minutes: float
    rate: float
    seed: int
    first: Window
    last: Window
    faults: Mapping[str, int]
    driver_starts: int
    query_ends: Mapping[str, Sequence[str]]
    """By query: the errors with which it ended by itself, and was started again."""
    tokens: int
    removed: int
    """Index entries of the input that retention removed."""
    batches: Mapping[str, int]
    findings: Mapping[str, Finding]
    comparisons: Sequence[Comparison]
    problems: Sequence[str]

    def to_json(self) -> str:
        plain = asdict(self)
        for one, comparison in zip(plain["comparisons"], self.comparisons, strict=True):
            one |= {"growth": comparison.growth, "is_flat": comparison.is_flat}
        return json.dumps(plain, indent=1)


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as a table in Markdown."""
    lines = ["| | first window | last window | growth |", "|---|---|---|---|"]
    for one in comparisons:
        unit = f" {one.quantity.unit}" if one.quantity.unit else ""
        values = ["none" if value is None else f"{value:.3g}{unit}" for value in (one.first, one.last)]
        growth = "unknown" if one.growth is None else f"{one.growth:+.1%}".replace("%", " %")
        lines.append(f"| {one.quantity.label} | {' | '.join(values)} | {growth}{'' if one.is_flat else ', NOT FLAT'} |")
    return "\n".join(lines)


def report(verdict: Verdict) -> str:
    """Return what a run has shown, in Markdown."""
    faults = ", ".join(f"{_FAULTS[kind]} {count} times" for kind, count in sorted(verdict.faults.items()))
    lines = [
        f"TubeMQ {verdict.release}, {verdict.minutes:g} minutes, {verdict.rate:g} messages a second. Faults: {faults}. "
        f"The visit token changed {verdict.tokens - 1} times; retention removed {verdict.removed} messages of the "
        "input."
    ]
    lines += [
        f"Of {found.acknowledged} acknowledged messages the output of `{name}` misses {found.missing} and has "
        f"{found.twice} more than once and {found.invented} that were never sent; the query ended by itself "
        f"{len(verdict.query_ends[name])} times. Of {found.unknown} sends without an answer it has "
        f"{found.unknown_found}."
        for name, found in verdict.findings.items()
    ]
    lines += [f"The run has failed: {problem}" for problem in verdict.problems]
    return "\n".join([*lines, "", table(verdict.comparisons)])
