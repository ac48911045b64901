"""Plays histories by name; one that fails is shrunk."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

from tests.histories.generate import generate
from tests.histories.play import Player
from tests.histories.script import History
from tests.histories.shrink import shrink


@dataclass(frozen=True)
class Outcome:
    """What came of a history; `problem` is None when all was as it must be."""

    history: History
    problem: str | None = None
    stats: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.history}\n{self.problem or 'as it must be'}"


def play(history: History, *, goes_on: bool) -> Outcome:
    stats: dict[str, int] = {}
    try:
        player = Player(history, goes_on=goes_on)
        stats = player.stats
        player.play()
    except Exception as error:
        return Outcome(history, "".join(traceback.format_exception(error)), stats)
    return Outcome(history, None, stats)


def play_named(name: str, server: str, *, goes_on: bool, shrinks: bool = True) -> Outcome:
    """The history of that name; when it fails, the smallest that fails likewise."""
    outcome = play(generate(name, server), goes_on=goes_on)
    if outcome.problem is None or not shrinks:
        return outcome
    kind = _kind(outcome.problem)
    last = outcome

    def fails(history: History) -> bool:
        nonlocal last
        again = play(history, goes_on=goes_on)
        if again.problem is None or _kind(again.problem) != kind:
            return False
        last = again
        return True

    shrink(outcome.history, fails)
    return last


def _kind(problem: str) -> str:
    """The error's class and the first words of its text."""
    line = problem.strip().splitlines()[-1]
    return "".join(c for c in line if not c.isdigit())[:60]
