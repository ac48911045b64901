# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of a run: `python -m tests.soak.report FOLDER [PNG]` makes them from its files again."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.flatness import Comparison, Sample, compare
from tests.soak.ledger import Finding
from tests.soak.samples import QUANTITIES
from tests.soak.timetable import Window

SAMPLES, FAULTS, VERDICT, PLOT, TABLE = "samples.jsonl", "faults.jsonl", "verdict.json", "soak.png", "soak.md"

_CURVES = (
    ("resident memory, MB", ("steady.java.memory", "steady.driver.memory", "steady.workers.memory", "steady.heap")),
    ("the same of the killed query", ("killed.java.memory", "killed.driver.memory", "killed.workers.memory")),
    ("file descriptors", ("steady.java.files", "steady.driver.files", "steady.workers.files")),
    ("threads", ("steady.java.threads", "steady.driver.threads", "steady.workers.threads")),
    ("at the servers", ("connections", "claims", "registrations")),
    ("messages, thousands", ("acknowledged", "steady.copies", "killed.copies")),
)


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
        values = ["none" if value is None else f"{value:.0f}{unit}" for value in (one.first, one.last)]
        growth = "unknown" if one.growth is None else f"{one.growth:+.1%}".replace("%", " %")
        lines.append(f"| {one.quantity.label} | {' | '.join(values)} | {growth}{'' if one.is_flat else ', NOT FLAT'} |")
    return "\n".join(lines)


def draw(samples: Sequence[Sample], faults: Sequence[Mapping[str, Any]], windows: Sequence[Window], file: Path) -> None:
    """Draw what was sampled over the minutes of the run. A line marks each fault, a band each window."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(10, 8.5), sharex=True, layout="constrained")
    for axis, (title, names) in zip(axes.flat, _CURVES, strict=True):
        scale = 1000 if "thousands" in title else 1
        for name in names:
            points = [(one["at"] / 60, one[name] / scale) for one in samples if name in one]
            if points:
                axis.plot(*zip(*points, strict=True), label=_short(name), linewidth=0.9)
        for fault in faults:
            axis.axvline(fault["at"] / 60, color="0.85", linewidth=0.6, zorder=0)
        for window in windows:
            axis.axvspan(window.begin / 60, window.end / 60, color="#3f51b5", alpha=0.08, linewidth=0)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, loc="best")
    figure.supxlabel("minutes; a grey line is a fault, the blue bands are the windows that are compared", fontsize=8)
    save(figure, file)
    pyplot.close(figure)


def save(figure: Any, file: Path) -> None:
    """Write a figure of matplotlib as a PNG with a palette, which takes a third of the space."""
    from PIL import Image

    data = io.BytesIO()
    figure.savefig(data, dpi=80, format="png")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(data).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(file, optimize=True)


def _short(name: str) -> str:
    head, *parts = name.split(".")
    if not parts:
        return head
    if parts == ["copies"]:
        return f"copied by {head}"
    return {"java": "Java process", "driver": "driver's Python", "workers": "task workers", "heap": "Java heap in use"}[
        parts[0]
    ]


def windows_of(verdict: Mapping[str, Any]) -> tuple[Window, Window]:
    return Window(*verdict["first"]), Window(*verdict["last"])


def main() -> None:
    folder = Path(sys.argv[1])
    samples, faults = read_lines(folder / SAMPLES), read_lines(folder / FAULTS)
    first, last = windows_of(json.loads((folder / VERDICT).read_text()))
    draw(samples, faults, (first, last), Path(sys.argv[2]) if len(sys.argv) > 2 else folder / PLOT)
    print(table(compare(samples, QUANTITIES, first, last)))


if __name__ == "__main__":
    main()
