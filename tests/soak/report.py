# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of a run.

python -m tests.soak.report build/soak            makes them from the files of a run again
python -m tests.soak.report build/soak --publish  also puts them into docs/reliability.md and docs/images
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.png import save
from tests.soak.flatness import Comparison, Sample, compare
from tests.soak.ledger import Finding
from tests.soak.samples import QUANTITIES
from tests.soak.timetable import CLOCK, CRASH, DRIVER, RESTART, WORKER, Window

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
IMAGE = PAGE.parent / "images/soak.png"
SAMPLES, FAULTS, VERDICT, PLOT, TABLE = "samples.jsonl", "faults.jsonl", "verdict.json", "soak.png", "soak.md"

_FAULTS = {
    DRIVER: "driver killed",
    WORKER: "Python worker killed",
    CLOCK: "clock stepped",
    RESTART: "broker restarted",
    CRASH: "broker killed when all was flushed",
}
_CURVES = (
    ("resident memory, MB", ("steady.java.memory", "steady.driver.memory", "steady.workers.memory", "steady.heap")),
    ("the same of the killed query", ("killed.java.memory", "killed.driver.memory", "killed.workers.memory")),
    ("file descriptors", ("steady.java.files", "steady.driver.files", "steady.workers.files")),
    ("threads", ("steady.java.threads", "steady.driver.threads", "steady.workers.threads")),
    ("at the servers", ("connections", "claims", "registrations")),
    ("acknowledged messages that are not copied yet, thousands", ("steady.copies", "killed.copies")),
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
        values = ["none" if value is None else f"{value:.3g}{unit}" for value in (one.first, one.last)]
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
        for name in names:
            points = [(one["at"] / 60, _value(one, name)) for one in samples if name in one]
            if points:
                axis.plot(*zip(*points, strict=True), label=_short(name), linewidth=0.9)
        for fault in faults:
            axis.axvline(fault["at"] / 60, color="0.85", linewidth=0.6, zorder=0)
        for window in windows:
            axis.axvspan(window.begin / 60, window.end / 60, color="#3f51b5", alpha=0.08, linewidth=0)
        axis.set_title(title, fontsize=9, pad=18)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)  # above the curves
    figure.supxlabel("minutes; a grey line is a fault, the blue bands are the windows that are compared", fontsize=8)
    save(figure, file, dpi=160)
    pyplot.close(figure)


def _value(sample: Sample, name: str) -> float:
    return (sample["acknowledged"] - sample[name]) / 1000 if name.endswith("copies") else sample[name]


def _short(name: str) -> str:
    head, *parts = name.split(".")
    if parts in ([], ["copies"]):
        return head
    return {"java": "Java process", "driver": "driver's Python", "workers": "task workers", "heap": "Java heap in use"}[
        parts[0]
    ]


def windows_of(verdict: Mapping[str, Any]) -> tuple[Window, Window]:
    return Window(*verdict["first"]), Window(*verdict["last"])


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


def publish(folder: Path, text: str, page: Path = PAGE, image: Path = IMAGE) -> None:
    """Put the text between the markers of the page, and copy the plot. Raise `ValueError` without the markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- soak: begin -->\n")
    _, end, after = rest.partition("<!-- soak: end -->")
    if not begin or not end:
        raise ValueError(f"{page} has no lines '<!-- soak: begin -->' and '<!-- soak: end -->'")
    shutil.copyfile(folder / PLOT, image)
    shown = f"![What the processes use during the run](images/{image.name})"
    page.write_text(f"{before}{begin}\n{text}\n\n{shown}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the output of a run")
    parser.add_argument("--publish", action="store_true", help="put the figures into the documentation")
    given = parser.parse_args()
    folder: Path = given.folder
    samples, faults = read_lines(folder / SAMPLES), read_lines(folder / FAULTS)
    verdict = json.loads((folder / VERDICT).read_text())
    first, last = windows_of(verdict)
    draw(samples, faults, (first, last), folder / PLOT)
    text = f"{summary(verdict)}\n\n{table(compare(samples, QUANTITIES, first, last))}"
    print(text)
    if given.publish:
        publish(folder, text)


if __name__ == "__main__":
    main()
