# SPDX-License-Identifier: Apache-2.0
"""Scripts: calls as plain data, which can be copied into the list of regressions.

Names are symbolic. Clients and groups are letters; each play derives unique names from them. A partition is its number
within the store of the script. A position is `("base", n)`, n bytes behind the store's end at the begin of the script,
or `("abs", n)`. The request omits what the step omits.

Two steps are barriers instead of calls: `flush` (memory is written to files) and `expire` (claims and members without
heartbeats end).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Step = Mapping[str, Any]
"""`call` names the call; the other keys are its arguments, see `requests`."""

Layout = Literal["calm1", "calm3", "quick1", "quick3"]
"""A topic with 1 or 3 partitions in a store. Time alone flushes only the quick ones."""

FLUSH = "flush"
EXPIRE = "expire"
_BARRIERS = (FLUSH, EXPIRE)

STATELESS = ("raw", "no_envelope")
"""Calls that do not change the state of a server."""


@dataclass(frozen=True)
class Script:
    """Calls of one client program, on one store of a topic and on the master."""

    layout: Layout
    steps: tuple[Step, ...]

    @property
    def barriers(self) -> tuple[str, ...]:
        return tuple(step["call"] for step in self.steps if step["call"] in _BARRIERS)

    def phases(self) -> list[list[tuple[int, Step]]]:
        """Return the steps between barriers, each with its index in the script."""
        phases: list[list[tuple[int, Step]]] = [[]]
        for index, step in enumerate(self.steps):
            if step["call"] in _BARRIERS:
                phases.append([])
            else:
                phases[-1].append((index, step))
        return phases

    def up_to(self, index: int) -> Script:
        return Script(self.layout, self.steps[: index + 1])

    def __str__(self) -> str:
        """Return Python source."""
        lines = [f"Script({self.layout!r}, ("]
        lines += [f"    {dict(step)!r}," for step in self.steps]
        return "\n".join([*lines, "))"])
