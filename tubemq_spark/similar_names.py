# SPDX-License-Identifier: Apache-2.0
"""Proposals for a name or word that a user has misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SIMILAR = 0.6  # ratio of difflib from which an error proposes a name


def nearest(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str | None:
    """Return the name of `known` that is most similar to `given`, None if none is `similar`, 0 to 1."""
    found, most = None, similar
    for name in known:
        if (ratio := _similarity(name, given)) > most or (found is None and ratio == most):
            found, most = name, ratio
    return found


def did_you_mean(given: str, known: Iterable[str], similar: float = _SIMILAR) -> str:
    """Return the end of a sentence that proposes a name, or nothing; parameters as for `nearest`."""
    found = nearest(given, known, similar)
    return "" if found is None else f"; did you mean '{found}'?"


def _similarity(name: str, given: str) -> float:
    """Return the similarity of two names without the prefix `tubemq.` and in any case, 0 to 1."""
    name, given = (one.strip().lower().removeprefix("tubemq.") for one in (name, given[:1000]))
    return difflib.SequenceMatcher(None, name, given).ratio()
