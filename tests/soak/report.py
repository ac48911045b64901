# SPDX-License-Identifier: Apache-2.0
"""The table of a run.

python -m tests.soak.report build/soak            makes it from the files of a run again
python -m tests.soak.report build/soak --publish  also puts it into docs/reliability.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.flatness import Comparison, compare
from tests.soak.ledger import Finding
from tests.soak.samples import QUANTITIES
from tests.soak.timetable import CLOCK, CRASH, DRIVER, RESTART, WORKER, Window

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
SAMPLES, FAULTS, VERDICT, TABLE = "samples.jsonl", "faults.jsonl", "verdict.json", "soak.md"

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


def summary(verdict: Mapping[str, Any]) -> str:
    """Return what a verdict says about messages and faults, as a paragraph in Markdown."""
    faults = verdict["faults"]
    lines = [
        f"TubeMQ {verdict['release']}, {verdict['minutes']:g} minutes, {verdict['rate']:g} messages a second. Faults: "
        + ", ".join(f"{_FAULTS[kind]} {count} times" for kind, count in sorted(faults.items()))
        + f". The visit token changed {verdict['tokens'] - 1} times; retention removed {verdict['removed']} messages "
        "of the input."
    ]
    for name, found in verdict["findings"].items():
        ends = len(verdict["query_ends"][name])
        lines.append(
            f"Of {found['acknowledged']} acknowledged messages the output of `{name}` misses {found['missing']} and "
            f"has {found['twice']} more than once and {found['invented']} that were never sent; the query ended by "
            f"itself {ends} times. Of {found['unknown']} sends without an answer it has {found['unknown_found']}."
        )
    if verdict["problems"]:
        lines.append(f"The run has failed: {'; '.join(problem.splitlines()[-1] for problem in verdict['problems'])}.")
    return "\n".join(lines)


def publish(text: str) -> None:
    """Put the text between the markers of the page. Raise `ValueError` without the markers."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- soak: begin -->\n")
    _, end, after = rest.partition("<!-- soak: end -->")
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines '<!-- soak: begin -->' and '<!-- soak: end -->'")
    PAGE.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the output of a run")
    parser.add_argument("--publish", action="store_true", help="put the figures into the documentation")
    given = parser.parse_args()
    folder: Path = given.folder
    verdict = json.loads((folder / VERDICT).read_text())
    windows = Window(*verdict["first"]), Window(*verdict["last"])
    comparisons = compare(read_lines(folder / SAMPLES), QUANTITIES, *windows)
    text = f"{summary(verdict)}\n\n{table(comparisons)}"
    print(text)
    if given.publish:
        publish(text)


if __name__ == "__main__":
    main()
