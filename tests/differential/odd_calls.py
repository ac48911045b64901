# SPDX-License-Identifier: Apache-2.0
"""Unusual values and calls, for brokers and masters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.differential.script import Step

BLANKS = ("", " ", "\t")
GROUPS = ("g", "g", "g", "g", "h")


def odd(rng: random.Random, server: str) -> Step:
    """Return a call that no method handles."""
    if rng.random() < 0.15:
        return {"call": "no_envelope", "server": server, "data": rng.choice(("00", "ff", "0102030405", "ffffffff0f"))}
    services = (1, 2, 3, 0, 4, 5, 9, -1)
    methods = (1, 2, 3, 4, 5, 6, 13, 15, 16, 17, 18, 20, 21, 22, 0, 7, 10, 11, 12, 14, 19, 23, 31, 99, -1)
    step: dict[str, Any] = {"call": "raw", "server": server}
    usual = 1 if server == "master" else rng.choice((2, 3))
    step["service"] = rng.choice((usual, usual, rng.choice(services)))
    step["method"] = rng.choice(methods)
    step["data"] = rng.choice(("", "", "ff", "0a0161", "0a01611a0162", "0801120161"))
    if rng.random() < 0.3:
        step["timeout"] = rng.choice((0, -1, 0))
    if step["method"] in (7, 8, 9):  # only brokers send these; the master would add this client to its brokers
        step["data"] = ""
    return step


def some(rng: random.Random, **choices: Sequence[Any]) -> dict[str, Any]:
    """Return one of each choice, without those that are None."""
    drawn = {name: rng.choice(values) for name, values in choices.items()}
    return {name: value for name, value in drawn.items() if value is not None}
