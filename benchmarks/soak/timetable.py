# SPDX-License-Identifier: Apache-2.0
"""When the phases of a run begin and which fault happens when.

    start ── calm ── [first window] ── faults ── calm ── [last window] ── end

The faults stop early enough for the last restarted process to be as old in the last window as the first one was in the
first window. So both windows show processes of the same age.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

DRIVER, WORKER, CLOCK, RESTART, CRASH = "driver", "worker", "clock", "restart", "crash"

# In the order of a deck that is shuffled: how often each fault happens among 14. Both kinds that stop a broker are
# rare, because they delay everything.
_DECK = (DRIVER,) * 5 + (WORKER,) * 4 + (CLOCK,) * 2 + (RESTART,) * 2 + (CRASH,)
_LONGEST_CALM = 13.0  # minutes: the first window ends with it, so its middle is between minutes 10 and 13
_WINDOW = 3 / 13  # of a calm phase
_GAP = (50.0, 95.0)  # seconds between two faults
_SHORT_GAP = (6.0, 12.0)  # in a run that only tries the programs out


class Window(NamedTuple):
    """Seconds since the start."""

    begin: float
    end: float


class Fault(NamedTuple):
    moment: float
    """Seconds since the start; it may happen later, if the one before takes long."""
    kind: str


@dataclass(frozen=True)
class Timetable:
    """All times are in seconds since the start."""

    seconds: float
    faults: tuple[Fault, ...]
    faults_end: float
    """A fault that slow ones have delayed until then does not happen."""
    pause: float
    """The least time between the end of a fault and the next one."""
    first: Window
    last: Window
    is_trial: bool
    """True if the run is too short to judge flatness or to see retention and token rotations."""


def timetable(minutes: float, chance: random.Random) -> Timetable:
    """Return the timetable of a run of `minutes`. It has each kind of fault, if there is time for it."""
    calm = 60 * min(_LONGEST_CALM, minutes / 4)
    seconds = 60 * minutes
    is_trial = minutes < 30
    gap = _SHORT_GAP if is_trial else _GAP
    faults: list[Fault] = []
    moment, deck = calm, list[str]()
    while True:
        moment += chance.uniform(*gap)
        if moment >= seconds - calm:
            break
        if not deck:
            # A trial has time for few, so each kind comes first.
            deck = sorted(set(_DECK)) if is_trial else list(_DECK)
            chance.shuffle(deck)
        faults.append(Fault(moment, deck.pop()))
    window = calm * _WINDOW
    first, last = Window(calm - window, calm), Window(seconds - window, seconds)
    return Timetable(seconds, tuple(faults), seconds - calm, gap[0] / 2, first, last, is_trial)
