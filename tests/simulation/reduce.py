# SPDX-License-Identifier: Apache-2.0
"""Reduces a schedule that breaks a promise to the fewest and simplest choices that break it still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulation.choices import Choices, change, flat, shape
from tests.simulation.families import FAMILIES, play
from tests.simulation.promises import BrokenError
from tests.simulation.schedule import Breach, Disturbance, Moment
from tubemq_spark.testing import ServerConfig

T = TypeVar("T")

_SECONDS = 60.0
_SAME = 60  # characters of the text of a breach
_SIMPLE_DELAYS = (1.0, 0.5, 0.1)
_ONE_AT_LEAST = frozenset({"brokers", "masters", "partitions", "stores", "extra.scans", "extra.max_failures"})
_GROUPS = ("weather", "unrest", "config", "options")  # of values of a setting
_LEFT_ALONE = frozenset({"weather.longest"})


class _OutOfTimeError(Exception):
    pass


class Reduction:
    """Plays variants of a schedule, within `seconds` of CPU time. `breach` stays: its invariant and, apart from
    numbers, the begin of its text, so that nothing else that is broken takes its place."""

    def __init__(self, family: str, seed: int, breach: Breach, seconds: float = _SECONDS) -> None:
        self.family, self.seed, self.breach = family, seed, breach
        self._shape = shape(breach.text)[:_SAME]
        self._end = time.process_time() + seconds

    def find(self, choices: Choices) -> Breach | None:
        """Return the breach that these choices lead to, if it is the one to keep."""
        for breach in play(self.family, self.seed, choices, enough=self._is_meant).breaches:
            if self._is_same(breach.invariant, breach.text):
                return breach
        return None

    def _is_meant(self, error: BrokenError) -> bool:
        return self._is_same(error.invariant, str(error))

    def _is_same(self, invariant: str, text: str) -> bool:
        return invariant == self.breach.invariant and shape(text)[:_SAME] == self._shape

    def _keeps(self, choices: Choices) -> bool:
        if time.process_time() > self._end:
            raise _OutOfTimeError
        return self.find(choices) is not None

    def reduce(self, choices: Choices) -> Choices:
        """Return the simplest choices that were found in time."""
        self._best = choices
        try:
            before = None
            while before != self._best:
                before = self._best
                self._fewer_decisions()
                self._simpler_setting()
                self._simpler_decisions()
        except _OutOfTimeError:
            pass
        return self._best

    def _try(self, choices: Choices) -> bool:
        if choices == self._best or not self._keeps(choices):
            return False
        self._best = choices
        return True

    def _fewer_decisions(self) -> None:
        def keeps(points: Sequence[Any]) -> bool:
            return self._try(replace(self._best, decisions={point: self._best.decisions[point] for point in points}))

        fewest(list(self._best.decisions), keeps)

    def _simpler_decisions(self) -> None:
        for point in self._best.decisions:
            for value in _simpler_decision(self._best.decisions[point]):
                self._try(replace(self._best, decisions={**self._best.decisions, point: value}))

    def _simpler_setting(self) -> None:
        for name in _GROUPS:
            if name not in self._best.changes:
                self._with(name, {})
        setting = FAMILIES[self.family](self.seed).setting
        change(setting, self._best.changes)
        for path, value in flat(setting).items():
            if path in _LEFT_ALONE or path.partition(".")[0] in self._best.changes:
                continue
            if isinstance(value, list | tuple) and value:

                def keeps(left: Sequence[Any], path: str = path) -> bool:
                    return self._with(path, list(left))

                left = fewest(list(value), keeps)
                self._with(path, _rounded(left))
                continue
            for simpler in _simpler(path, value):
                if self._with(path, simpler):
                    break

    def _with(self, path: str, value: Any) -> bool:
        others = {one: kept for one, kept in self._best.changes.items() if not one.startswith(f"{path}.")}
        return self._try(replace(self._best, changes={**others, path: value}))


def fewest(items: list[T], keeps: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a part of `items` from which nothing can be left out (delta debugging). `keeps` plays a part."""
    if keeps([]):
        return []
    size = max(1, len(items) // 2)
    while items:
        at = 0
        while at < len(items):
            less = items[:at] + items[at + size :]
            if less and keeps(less):
                items = less
            else:
                at += size
        if size == 1:
            break
        size = max(1, size // 2)
    return items


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 1) if isinstance(value, float) else value


def _simpler(path: str, value: Any) -> Iterator[Any]:
    name, _, key = path.partition(".")
    if name == "options":
        yield None
    elif name == "config":
        default = getattr(ServerConfig(), key)
        if value != default:
            yield default
    elif isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        lowest = 1 if path in _ONE_AT_LEAST else 0
        yield from (less for less in (lowest, 1, value // 2) if lowest <= less < value)
    elif isinstance(value, float):
        yield from (less for less in (0.0, float(round(value)), round(value, 1)) if less != value)


def _simpler_decision(value: Any) -> Iterator[Any]:
    if isinstance(value, Disturbance):
        moment = value.moment
        if moment.after:
            yield replace(value, moment=replace(moment, after=0.0))
            yield replace(value, moment=replace(moment, after=round(moment.after, 1)))
        if moment.kind == "time":
            for digits in (0, 1, 2):
                yield replace(value, moment=Moment("time", round(moment.value, digits)))
        for strength in (0.0, 0.5, round(value.strength, 1), round(value.strength, 2)):
            yield replace(value, strength=strength)
        for number in (0, 1, 2, value.number % 12):
            yield replace(value, number=number)
    elif isinstance(value, float):
        yield from (
            delay for delay in (*_SIMPLE_DELAYS, round(value, 1), round(value, 2)) if 0.0 < delay < value + 0.05
        )
