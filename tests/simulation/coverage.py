# SPDX-License-Identifier: Apache-2.0
"""Which disturbance met which state of which process or server, over all runs: `build/simulation/coverage.json`."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.schedule import Outcome

ROOT = Path(__file__).parents[2]
FILE = ROOT / "build" / "simulation" / "coverage.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- simulation: coverage -->", "<!-- simulation: end -->"
_SERVERS = ("broker ", "master ")
_SHOWN = 4  # of the empty cells of a kind

IMPOSSIBLE: tuple[tuple[str, str, str], ...] = (
    # Disturbance, pattern of the state, and why the two never meet. A dead process has no state at all.
    ("stop query", "driver stops", "a query is stopped once"),
    ("leave out topic", "driver stops", "the operator waits until the query has ended"),
)


def possible(kind: str, state: str) -> bool:
    return not any(kind == one and re.match(pattern, state) for one, pattern, _ in IMPOSSIBLE)


@dataclass
class Coverage:
    """What the schedules of a family have met."""

    schedules: int = 0
    batches: int = 0
    restarts: int = 0
    next_seed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    cells: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, outcome: Outcome) -> None:
        counts = 1, outcome.batches, outcome.restarts, outcome.seed + 1
        self.merge(Coverage(*counts, Counter(outcome.kinds), Counter(outcome.states)))
        for kind, state in outcome.cells:
            self.cells[kind][state] += 1

    def merge(self, other: Coverage) -> None:
        self.schedules += other.schedules
        self.batches += other.batches
        self.restarts += other.restarts
        self.next_seed = max(self.next_seed, other.next_seed)
        self.kinds.update(other.kinds)
        self.states.update(other.states)
        for kind, states in other.cells.items():
            self.cells[kind].update(states)

    @property
    def disturbances(self) -> int:
        return self.kinds.total()

    def empty(self, kind: str) -> list[str]:
        """Return the known states that no disturbance of this kind has met."""
        return sorted(state for state in self.states if not self.cells[kind][state] and possible(kind, state))

    def share(self, kind: str) -> tuple[int, int]:
        """Return how many states a kind has met, and how many there are."""
        states = [state for state in self.states if possible(kind, state)]
        return sum(1 for state in states if self.cells[kind][state]), len(states)

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("schedules", "batches", "restarts", "next_seed")},
            "kinds": dict(sorted(self.kinds.items())),
            "states": dict(sorted(self.states.items())),
            "cells": {kind: dict(sorted(states.items())) for kind, states in sorted(self.cells.items())},
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Coverage:
        cells = {kind: Counter(states) for kind, states in given["cells"].items()}
        kinds, states = Counter(given["kinds"]), Counter(given["states"])
        return cls(**{**given, "kinds": kinds, "states": states, "cells": defaultdict(Counter, cells)})


class Towards:
    """Chooses states that a disturbance has never met. In place of `Schedule`'s `cells`."""

    def __init__(self, coverage: Coverage) -> None:
        self._states = coverage.states
        self._empty = {
            kind: [state for state in coverage.empty(kind) if not state.startswith(_SERVERS)] for kind in coverage.kinds
        }

    def __call__(self, kind: str, r: random.Random) -> str | None:
        empty = self._empty.get(kind)
        if not empty:
            return None
        return r.choices(empty, [self._states[state] for state in empty])[0]  # rare states often do not come


def load(path: Path = FILE) -> dict[str, Coverage]:
    if not path.exists():
        return {}
    return {family: Coverage.from_dict(one) for family, one in json.loads(path.read_text()).items()}


def save(coverage: Mapping[str, Coverage], path: Path = FILE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({family: one.to_dict() for family, one in coverage.items()}, indent=0) + "\n")
    new.replace(path)


def table(family: str, coverage: Coverage, *, all_lines: bool = False) -> list[str]:
    """Return a line for each kind of disturbance: what it has met, and what it has not."""
    lines = [f"{family}: coverage of {coverage.schedules} schedules, {len(coverage.states)} states"]
    for kind, times in sorted(coverage.kinds.items()):
        met, states = coverage.share(kind)
        lines.append(
            f"  {kind:18} {times:7} times, met {met:3} of {states:3} states; never: {_named(coverage, kind, all_lines)}"
        )
    return lines


def _named(coverage: Coverage, kind: str, all_states: bool) -> str:
    """Return the states that a kind has never met, the usual ones first."""
    empty = sorted(coverage.empty(kind), key=lambda state: (-coverage.states[state], state))
    if all_states or len(empty) <= _SHOWN:
        return ", ".join(empty) or "none"
    return f"{', '.join(empty[:_SHOWN])} and {len(empty) - _SHOWN} more"


def markdown(all_coverage: Mapping[str, Coverage]) -> str:
    """Return a table for each family: how many states a kind of disturbance has met."""
    parts = []
    for family, coverage in sorted(all_coverage.items()):
        one = max(1, coverage.schedules)
        parts.append(
            f"**{family}**: {coverage.schedules} schedules, on average {coverage.batches / one:.1f} micro-batches, "
            f"{coverage.restarts / one:.1f} restarts and {coverage.disturbances / one:.1f} disturbances.\n"
        )
        parts += ["| disturbance | times | states met |", "|---|---|---|"]
        for kind, times in sorted(coverage.kinds.items()):
            met, states = coverage.share(kind)
            parts.append(f"| {kind} | {times} | {met} of {states} |")
        parts.append("")
    return "\n".join(parts)


def write_table(path: Path = PAGE) -> None:
    """Write the tables into the page, between the markers."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{begin}\n\n{markdown(load())}\n{end}{after}")
