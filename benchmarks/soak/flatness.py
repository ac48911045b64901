# SPDX-License-Identifier: Apache-2.0
"""Compares two windows of the samples: what a process or server uses must not grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.soak.timetable import Window

LIMIT = 0.05  # growth
FEWEST = 5  # values in a window

Sample = Mapping[str, float]
"""Values by name; `at` is the time in seconds since the start. A value may be missing, as while a server restarts."""


@dataclass(frozen=True)
class Quantity:
    name: str
    unit: str
    label: str
    is_count: bool = False
    """Whether a difference of one is not growth: a count of 9 cannot change by less than 11 %."""
    is_mean: bool = False
    """Whether the mean is compared instead of the median, for what is zero most of the time."""


@dataclass(frozen=True)
class Comparison:
    quantity: Quantity
    first: float | None
    """The median or mean of the first window, None if it has too few values."""
    last: float | None

    @property
    def growth(self) -> float | None:
        if self.first is None or self.last is None:
            return None
        if self.first == 0:
            return 0.0 if self.last == 0 else float("inf")
        return self.last / self.first - 1

    @property
    def is_flat(self) -> bool:
        if self.first is None or self.last is None:
            return False
        if self.quantity.is_count and self.last - self.first <= 1:
            return True
        return self.last <= self.first * (1 + LIMIT)


def compare(samples: Sequence[Sample], quantities: Iterable[Quantity], first: Window, last: Window) -> list[Comparison]:
    return [
        Comparison(quantity, _middle(samples, quantity, first), _middle(samples, quantity, last))
        for quantity in quantities
    ]


def _middle(samples: Sequence[Sample], quantity: Quantity, window: Window) -> float | None:
    name = quantity.name
    values = [one[name] for one in samples if window.begin <= one["at"] <= window.end and name in one]
    if len(values) < FEWEST:
        return None
    return fmean(values) if quantity.is_mean else median(values)
