# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a difference repeats on other stores, and the smallest script that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.bench import Bench, Difference
from tests.differential.script import Script

_ROUNDS = 8
_COMPARED = ("errCode", "errMsg", "status", "exceptionName", "silence", "connection", "success")

_LONG = 6

Signature = tuple[Any, ...]


@dataclass
class Finding:
    """Differences of one kind."""

    smallest: Difference
    count: int
    is_steady: bool | None = None
    """True if it repeated; None if that was not tried."""


def signature(found: Difference) -> Signature:
    """Return a key that is equal for differences that probably have the same cause."""
    one, other = found.replies
    texts = [(key, _without_numbers(one.get(key)), _without_numbers(other.get(key))) for key in _COMPARED]
    return found.script.steps[found.step]["call"], tuple(found.fields), tuple(texts)


def findings(bench: Bench, differences: Iterable[Difference], limit: int) -> list[Finding]:
    """Return one of each kind, shrunk for the `limit` most frequent kinds."""
    kinds: dict[Signature, Finding] = {}
    for found in differences:
        known = kinds.setdefault(signature(found), Finding(found, 0))
        known.count += 1
        if len(found.script.steps) < len(known.smallest.script.steps):
            known.smallest = found
    ordered = sorted(kinds.values(), key=lambda finding: -finding.count)
    for finding in ordered[:limit]:
        _shrink(bench, finding)
    return ordered


def report(finding: Finding) -> str:
    """Return both replies field by field, and the script as Python source."""
    difference = finding.smallest
    one, other = difference.replies
    unsteady = ", but never again" if finding.is_steady is False else ""
    lines = [f"{finding.count} times{unsteady}: {difference.step_shown}"]
    for field in difference.fields:
        shown = _shown(one.get(field, "-"), other.get(field, "-"))
        lines += [f"  {field}", f"    real:     {shown[0]}", f"    embedded: {shown[1]}"]
    return "\n".join([*lines, str(difference.script)])


def _shrink(bench: Bench, finding: Finding) -> None:
    """Play all scripts that are a little smaller, as one batch, and continue with the smallest one that differs.

    Each round first omits all steps together that could be omitted one by one.
    """
    kind = signature(finding.smallest)
    together: set[int] = set()
    for number in range(_ROUNDS):
        script = finding.smallest.script
        tried = [script] if number == 0 else [script.without(cut) for cut in _cuts(len(script.steps), together)]
        results = bench.run(tried, empty=finding.smallest.from_empty)
        again = [found for found in results.differences if signature(found) == kind]
        if not again:
            if results.played:
                finding.is_steady = finding.is_steady or False
            return
        finding.is_steady = True
        smaller = min(again, key=lambda found: len(found.script.steps))
        if number and len(smaller.script.steps) >= len(script.steps):
            return
        finding.smallest = smaller
        together = set() if number == 0 else _spare(script, smaller.script, again)


def _cuts(length: int, together: set[int]) -> list[set[int]]:
    """Return sets of steps to omit; never the last step, which differs."""
    cuts = [together] if together else []
    size = max(1, (length - 1) // 2)
    while True:
        cuts += [set(range(begin, min(begin + size, length - 1))) for begin in range(0, length - 1, size)]
        if size == 1:
            return cuts
        size //= 2


def _spare(script: Script, smallest: Script, again: Sequence[Difference]) -> set[int]:
    """Return the steps of `smallest` that another script omitted and still differed."""
    needed = [found.script.steps for found in again]
    return {index for index, step in enumerate(smallest.steps[:-1]) if any(step not in steps for steps in needed)}


def _shown(one: Any, other: Any) -> tuple[str, str]:
    """Return two values for the report; of long lists only the lengths and the first difference."""
    if not (isinstance(one, list) and isinstance(other, list) and len(one) + len(other) > _LONG):
        return repr(one), repr(other)
    index = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    first, second = (f"{len(items)} items; number {index} and on: {items[index : index + 1]}" for items in (one, other))
    return first, second


def _without_numbers(value: Any) -> Any:
    return re.sub(r"\d+", "N", value) if isinstance(value, str) else value
