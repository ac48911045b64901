# SPDX-License-Identifier: Apache-2.0
"""What the producer sent, and how often each output has it.

A message is known by its number. The broker acknowledged it, or the outcome of its send is unknown: then it may be
stored once or not at all, because the producer sends no message twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

SHOWN = 5  # examples of each problem

_NEVER, _ACKNOWLEDGED, _UNKNOWN = range(3)


def body(number: int, size: int) -> bytes:
    return b"soak %d " % number + b"." * (size - len(b"soak %d " % number))


def number_in(found: bytes) -> int | None:
    """Return the number of a message's body, None if the producer cannot have written it."""
    words = found.split(b" ", 2)
    if len(words) < 3 or words[0] != b"soak" or not words[1].isdigit() or words[2].strip(b"."):
        return None
    return int(words[1])


@dataclass(frozen=True)
class Finding:
    """The comparison of one output with what was sent. Lists hold the first examples."""

    acknowledged: int
    unknown: int
    """Sends whose outcome the producer does not know."""
    unknown_found: int
    """Those of them that the output has."""
    copies: int
    """Messages in the output."""
    missing: int
    twice: int
    invented: int
    examples: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """True if each acknowledged message is there once, each other one at most once, and nothing else."""
        return not (self.missing or self.twice or self.invented) and self.acknowledged > 0


@dataclass
class _Output:
    counts: bytearray = field(default_factory=bytearray)
    copies: int = 0
    strange: list[bytes] = field(default_factory=list)


class Ledger:
    def __init__(self, outputs: Iterable[str]) -> None:
        self._states = bytearray()
        self._outputs = {name: _Output() for name in outputs}

    @property
    def acknowledged(self) -> int:
        return self._states.count(_ACKNOWLEDGED)

    def sent(self, acknowledged: Iterable[int], unknown: Iterable[int]) -> None:
        """Note the outcome of sends."""
        for numbers, state in ((acknowledged, _ACKNOWLEDGED), (unknown, _UNKNOWN)):
            for number in numbers:
                _grow(self._states, number)
                self._states[number] = state

    def found(self, output: str, bodies: Iterable[bytes]) -> None:
        """Note messages of an output."""
        entry = self._outputs[output]
        for one in bodies:
            entry.copies += 1
            number = number_in(one)
            if number is None:
                entry.strange.append(one[:100])
                continue
            _grow(entry.counts, number)
            entry.counts[number] = min(255, entry.counts[number] + 1)

    def copies(self, output: str) -> int:
        return self._outputs[output].copies

    def has_all(self) -> bool:
        """Return True if no output misses an acknowledged message."""
        return all(self.finding(name).missing == 0 for name in self._outputs)

    def finding(self, output: str) -> Finding:
        entry = self._outputs[output]
        size = max(len(self._states), len(entry.counts))
        states, counts = (np.frombuffer(data.ljust(size, b"\0"), np.uint8) for data in (self._states, entry.counts))
        missing = np.flatnonzero((states == _ACKNOWLEDGED) & (counts == 0))
        twice = np.flatnonzero(counts > 1)
        invented = np.flatnonzero((states == _NEVER) & (counts > 0))
        examples = [
            f"{what}: {', '.join(map(str, numbers[:SHOWN]))}"
            for what, numbers in (("missing", missing), ("more than once", twice), ("never sent", invented))
            if len(numbers)
        ]
        if entry.strange:
            examples.append(f"not the producer's: {entry.strange[:SHOWN]}")
        return Finding(
            acknowledged=self.acknowledged,
            unknown=self._states.count(_UNKNOWN),
            unknown_found=int(np.count_nonzero((states == _UNKNOWN) & (counts > 0))),
            copies=entry.copies,
            missing=len(missing),
            twice=len(twice),
            invented=len(invented) + len(entry.strange),
            examples=tuple(examples),
        )


def _grow(data: bytearray, number: int) -> None:
    if number >= len(data):
        data.extend(bytes(max(number + 1 - len(data), len(data))))
