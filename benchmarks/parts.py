# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark: what each measures, and the rows that it must write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.results import Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import Scale


@dataclass(frozen=True)
class Part:
    """``measure`` adds at least the rows ``keys`` to a recorder."""

    name: str
    about: str
    minutes: float
    """On a quiet machine with 2 cores, with the default scale."""
    keys: tuple[Key, ...]
    measure: Callable[[Scale, Recorder], None]


# In the order in which they run. Their modules have the same names.
NAMES = ("read", "ceiling", "write", "packs", "growth", "memory", "latency", "small", "idle", "driver", "faults")


def part(name: str) -> Part:
    """Return the part of this name; importing its module imports Spark and the tests' servers."""
    found: Part = import_module(f"benchmarks.{name}").PART
    return found
