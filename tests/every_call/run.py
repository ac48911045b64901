# SPDX-License-Identifier: Apache-2.0
"""Chooses trials and plays them."""

from __future__ import annotations

import multiprocessing
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.util import Finalize
from typing import Protocol

from tests.every_call.sink import SinkStage
from tests.every_call.source import SourceStage
from tests.every_call.trials import SINK, SOURCE, Result, Trial


class Stage(Protocol):
    """The interface of `SourceStage` and `SinkStage`."""

    @property
    def release(self) -> str | None: ...

    def prepare(self) -> None: ...

    def close(self) -> None: ...

    def trials(self) -> list[Trial]: ...

    def play(self, trial: Trial) -> Result: ...


STAGES: dict[str, Callable[[str], Stage]] = {SOURCE: SourceStage, SINK: SinkStage}


def sample(trials: Sequence[Trial], count: int, seed: str) -> list[Trial]:
    """Return `count` of the trials. No cell of the table gets a second one before all have one."""
    chance = random.Random(seed)
    cells: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in chance.sample(trials, len(trials)):
        cells[trial.role, trial.method, trial.column].append(trial)
    columns = chance.sample([*cells.values()], len(cells))
    rounds = [cell[number] for number in range(max(map(len, columns))) for cell in columns if number < len(cell)]
    return rounds[:count]


def play_embedded(trials: Iterable[Trial], jobs: int) -> Iterator[Result]:
    """Yield the results in order, from `jobs` processes."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_play_alone, trials)


_stages: dict[str, Stage] = {}  # of this process


def _play_alone(trial: Trial) -> Result:
    if trial.job not in _stages:
        _stages[trial.job] = STAGES[trial.job]("embedded")
        Finalize(None, _stages[trial.job].close, exitpriority=1)
    return _stages[trial.job].play(trial)
