# SPDX-License-Identifier: Apache-2.0
"""The families of schedules, and how one is played."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tests.simulation.choices import Choices
from tests.simulation.promises import BrokenError
from tests.simulation.reading_disturbances import ReadingSchedule
from tests.simulation.schedule import Breach, Outcome, Schedule, Wanted
from tests.simulation.simulated import simulated
from tests.simulation.writing_disturbances import WritingSchedule

FAMILIES: Mapping[str, type[Schedule]] = {"reading": ReadingSchedule, "writing": WritingSchedule}


class Played(NamedTuple):
    """`outcome` is None if the schedule itself failed: the model or the servers, which is a breach as well."""

    schedule: Schedule
    outcome: Outcome | None
    breaches: list[Breach]


@contextmanager
def stage(*, logs: bool = False) -> Iterator[None]:
    """Let this process play many schedules, fast: without logs, and without the collection of what lives on."""
    with simulated():
        if not logs:
            logging.disable(logging.CRITICAL)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            gc.unfreeze()
            logging.disable(logging.NOTSET)


def play(
    family: str,
    seed: int,
    choices: Choices | None = None,
    *,
    cells: Wanted | None = None,
    enough: Callable[[BrokenError], bool] | None = None,
    records: bool = False,
) -> Played:
    """Play a schedule in a `stage`. `choices` replace the decisions of the seed."""
    schedule = FAMILIES[family](
        seed,
        replay=None if choices is None else choices.decisions,
        changes=None if choices is None else choices.changes,
        cells=cells,
        enough=enough,
        records=records,
    )
    try:
        outcome = schedule.play()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"schedule_plays: {type(error).__name__}: {error} ({where.name} in {where.filename.rpartition('/')[2]})"
        schedule.world.tell("promise", text)
        breach = Breach("schedule_plays", text, schedule.world.now)
        return Played(schedule, None, [*schedule.breaches.values(), breach])
    return Played(schedule, outcome, outcome.breaches)
