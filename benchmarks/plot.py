# SPDX-License-Identifier: Apache-2.0
"""Draw the stored rates of reading and writing: `python -m benchmarks.plot` (needs the extra `bench`)."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

from benchmarks import results
from benchmarks.png import save
from benchmarks.results import RATE, Key, Results
from benchmarks.sizes import OWN, SIZES

matplotlib.use("Agg")

from matplotlib import pyplot

TARGET = Path(__file__).parents[1] / "docs/images/performance.png"

_COLOURS = {"limit": "0.65", "Java": "#7a9cc6", "Spark-Kafka": "#c9a27a"}
_OURS = "#3f51b5"
_COLOURS_OF_THE_PICTURE = 32  # few make a small file
_PARTS = ("read", "write", "packs")


def draw(found: Results, target: Path = TARGET) -> bool:
    """Draw a bar for each runner with a store for each partition. Return False if there is nothing to draw."""
    shown = {part: _runners(found, part) for part in _PARTS}
    shown = {part: runners for part, runners in shown.items() if runners}
    if not shown:
        return False
    heights = [len(runners) for runners in shown.values()]
    figure, axes = pyplot.subplots(
        len(shown),
        len(SIZES),
        figsize=(9, 1.2 + 0.24 * sum(heights)),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for row, (part, runners) in enumerate(shown.items()):
        for column, size in enumerate(SIZES):
            axis = axes[row][column]
            rates = [(found.median(Key(part, runner, RATE, OWN, size)) or 0) / 1000 for runner in runners]
            axis.barh(runners, rates, color=[_colour(runner) for runner in runners])
            axis.invert_yaxis()
            axis.set_title(f"{part}, bodies of {size} B", fontsize=9)
            axis.tick_params(labelsize=7, labelleft=column == 0)
    figure.supxlabel("thousand messages per second, a store for each of 3 partitions", fontsize=8)
    save(figure, target, dpi=90, colours=_COLOURS_OF_THE_PICTURE)
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
