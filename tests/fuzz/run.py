# SPDX-License-Identifier: Apache-2.0
"""Runs decoders on random input, with a limit of time for each input and of memory for some of them."""

from __future__ import annotations

import random
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741

MAX_SECONDS = 60  # of one input; each takes milliseconds, but the machine may be busy
MAX_MEMORY = 64 << 20  # bytes that Python allocates for one input, which has 128 KiB at most
_MEASURED = 1000  # one input of so many is decoded under tracemalloc, which is slow
_MOST_PROBLEMS = 5  # of one decoder; then it ends


@dataclass(frozen=True)
class Decoder(Generic[I]):
    """A decoder under test.

    `make` returns an input. `accepts` decodes it and returns True for a value, False for one of the documented errors.
    It raises `AssertionError` for another value than the specification's. Any other error is a defect, too.
    `share` is the decoder's part of a million inputs.
    """

    name: str
    share: int
    make: Callable[[random.Random], I]
    accepts: Callable[[I], bool]


@dataclass
class Outcome:
    """What one decoder did. `problems` are texts with the input."""

    name: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return self.accepted + self.refused + len(self.problems)


class HangError(Exception):
    """A decoder did not end."""


def run(decoder: Decoder[I], count: int, seed: int) -> Outcome:
    """Return what the decoder does with `count` inputs, which are the same for the same seed."""
    chance = random.Random(f"{decoder.name} {seed}")
    outcome = Outcome(decoder.name)
    begin = time.monotonic()
    for number in range(count):
        given = decoder.make(chance)
        try:
            with _time_limit():
                if number % _MEASURED == 0:
                    accepted = _measured(decoder, given)
                else:
                    accepted = decoder.accepts(given)
        except Exception as error:
            outcome.problems.append(f"{decoder.name}, seed {seed}, input {number}: {error!r} of {given!r}"[:4000])
            if len(outcome.problems) >= _MOST_PROBLEMS:
                break
            continue
        if accepted:
            outcome.accepted += 1
        else:
            outcome.refused += 1
    outcome.seconds = time.monotonic() - begin
    return outcome


def _measured(decoder: Decoder[I], given: I) -> bool:
    tracemalloc.start()
    try:
        accepted = decoder.accepts(given)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MAX_MEMORY, f"it took {peak} bytes of memory"
    return accepted


@contextmanager
def _time_limit() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise HangError(f"it did not end within {MAX_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
