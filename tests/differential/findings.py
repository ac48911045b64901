# SPDX-License-Identifier: Apache-2.0
"""Finds out which differences are of one kind, and whether each kind repeats on another store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.differential.bench import Bench, Difference

_COMPARED = ("errCode", "errMsg", "status", "exceptionName", "silence", "connection", "success")

_LONG = 6

Signature = tuple[Any, ...]


@dataclass
class Finding:
    """Differences of one kind."""

    shortest: Difference
    count: int
    is_steady: bool | None = None
    """True if it repeated; None if it could not be played again."""


def signature(found: Difference) -> Signature:
    """Return a key that is equal for differences that probably have the same cause."""
    one, other = found.replies
    texts = [(key, _without_numbers(one.get(key)), _without_numbers(other.get(key))) for key in _COMPARED]
    return found.script.steps[found.step]["call"], tuple(found.fields), tuple(texts)


def findings(bench: Bench, differences: Iterable[Difference]) -> list[Finding]:
    """Return one of each kind, whose script was played once more, the most frequent kinds first."""
    kinds: dict[Signature, Finding] = {}
    for found in differences:
        known = kinds.setdefault(signature(found), Finding(found, 0))
        known.count += 1
        known.shortest = min(known.shortest, found, key=lambda one: len(one.script.steps))
    ordered = sorted(kinds.values(), key=lambda finding: -finding.count)
    for finding in ordered:
        again = bench.run([finding.shortest.script], empty=finding.shortest.from_empty)
        if again.played:
            finding.is_steady = signature(finding.shortest) in map(signature, again.differences)
    return ordered


def report(finding: Finding) -> str:
    """Return both replies field by field, and the script as Python source."""
    difference = finding.shortest
    one, other = difference.replies
    unsteady = ", but never again" if finding.is_steady is False else ""
    lines = [f"{finding.count} times{unsteady}: {difference.step_shown}"]
    for field in difference.fields:
        shown = _shown(one.get(field, "-"), other.get(field, "-"))
        lines += [f"  {field}", f"    real:     {shown[0]}", f"    embedded: {shown[1]}"]
    return "\n".join([*lines, str(difference.script)])


def _shown(one: Any, other: Any) -> tuple[str, str]:
    """Return two values for the report; of long lists only the lengths and the first difference."""
    if not (isinstance(one, list) and isinstance(other, list) and len(one) + len(other) > _LONG):
        return repr(one), repr(other)
    index = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    first, second = (f"{len(items)} items; number {index} and on: {items[index : index + 1]}" for items in (one, other))
    return first, second


def _without_numbers(value: Any) -> Any:
    return re.sub(r"\d+", "N", value) if isinstance(value, str) else value
