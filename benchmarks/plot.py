# SPDX-License-Identifier: Apache-2.0
"""Draw the stored rates of reading and writing: `python -m benchmarks.plot` (needs the extra `bench`)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

from benchmarks import results
from benchmarks.results import RATE, Key, Results
from benchmarks.sizes import OWN, SIZES

matplotlib.use("svg")

from matplotlib import pyplot

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tubemq-spark", "font.family": "sans-serif"})

TARGET = Path(__file__).parents[1] / "docs/images/performance.svg"

_COLOURS = {"limit": "0.65", "Java": "#7a9cc6", "Spark-Kafka": "#c9a27a"}
_OURS = "#3f51b5"
_PARTS = ("read", "write", "packs")


def draw(found: Results, target: Path = TARGET) -> bool:
    """Draw a bar for each runner with a store for each partition. Return False if there is nothing to draw."""
    shown = {part: _runners(found, part) for part in _PARTS}
    shown = {part: runners for part, runners in shown.items() if runners}
    if not shown:
        return False
    panels = [(part, size, runners) for part, runners in shown.items() for size in SIZES]
    heights = [len(runners) for _, _, runners in panels]
    # One column with large letters, so that a phone can show it.
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(6, 0.6 * len(panels) + 0.26 * sum(heights)), squeeze=False, height_ratios=heights,
        layout="constrained",
    )  # fmt: skip
    for (axis,), (part, size, runners) in zip(axes, panels, strict=True):
        rates = [(found.median(Key(part, runner, RATE, OWN, size)) or 0) / 1000 for runner in runners]
        bars = axis.barh(runners, rates, color=[_colour(runner) for runner in runners])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.15 * max(rates))
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_title(f"{part}, bodies of {size} B", loc="left", fontweight="bold")
    figure.supxlabel("thousand messages per second, a store for each of 3 partitions")
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _runners(found: Results, part: str) -> list[str]:
    return [
        row.key.runner for row in found if row.key[:4] == (part, row.key.runner, RATE, OWN) and row.key.size == SIZES[0]
    ]


def _colour(runner: str) -> str:
    return next((colour for name, colour in _COLOURS.items() if runner.startswith(name)), _OURS)


if __name__ == "__main__":
    if not draw(results.read()):
        sys.exit("no results are stored: run `make bench`")
