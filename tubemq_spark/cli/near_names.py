# SPDX-License-Identifier: Apache-2.0
"""Names that the user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3


def near(name: str, known: Iterable[str]) -> list[str]:
    """Return those of `known` that are similar to `name`, the most similar one first."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, _MOST, 0.75)]


def did_you_mean(names: Iterable[str]) -> str:
    """Return the end of a sentence that proposes `names`, empty without any."""
    proposed = " or ".join(names)
    return f"; did you mean {proposed}?" if proposed else ""
