# SPDX-License-Identifier: Apache-2.0
"""Proposals for a name or word that a user has misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILAR = 0.6  # ratio of difflib from which an error proposes a name
_MOST = 3  # names


def near(given: str, known: Iterable[str], similar: float = _SIMILAR) -> list[str]:
    """Return at most three names of `known` that are `similar`, 0 to 1, to `given`, the most similar one first."""
    ratios = {name: _similarity(name, given) for name in known}
    found = [name for name, ratio in ratios.items() if ratio >= similar]
    return sorted(found, key=ratios.__getitem__, reverse=True)[:_MOST]


def nearest(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str | None:
    """Return the first one of `near`, None if there is none."""
    return next(iter(near(given, known, similar)), None)


def did_you_mean(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str:
    """Return the end of a sentence that proposes `nearest`, empty if there is none."""
    found = nearest(given, known, similar)
    return proposal([] if found is None else [f"'{found}'"])


def proposal(names: Iterable[str]) -> str:
    """Return the end of a sentence that proposes `names`, empty without any."""
    proposed = " or ".join(names)
    return f"; did you mean {proposed}?" if proposed else ""


def _similarity(name: str, given: str) -> float:
    """Return the similarity of two names without the prefix `tubemq.` and in any case, 0 to 1."""
    name, given = (one.strip().lower().removeprefix("tubemq.") for one in (name, given[:1000]))
    return difflib.SequenceMatcher(None, name, given).ratio()
