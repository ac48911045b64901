# SPDX-License-Identifier: Apache-2.0
"""How much each measurement moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.real.cluster import TopicSpec
from tests.real.jars import Release

RELEASE: Release = "2.4.0"  # of the servers
SIZES = (100, 1024)  # bytes of a body
OWN, SHARED = "own stores", "one store"
LAYOUTS: Mapping[str, TopicSpec] = {OWN: TopicSpec(partitions=1, stores=3), SHARED: TopicSpec(partitions=3, stores=1)}


@dataclass(frozen=True)
class Scale:
    """``scale`` multiplies all counts of messages. ``full`` adds the largest sizes, which take long."""

    rounds: int = 3
    scale: float = 1.0
    full: bool = False

    def count(self, messages: int) -> int:
        """Return the scaled number of messages, a multiple of 3 so that three partitions have equally many."""
        return max(30, round(messages * self.scale / 3) * 3)

    def seconds(self, seconds: float) -> float:
        return max(2.0, seconds * min(1.0, self.scale))

    def as_settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """The work of all runners of a table: ``count`` messages of ``size`` bytes each, in a topic of 3 partitions."""

    layout: str
    size: int
    count: int

    @property
    def topic(self) -> str:
        return f"bench_{self.layout.replace(' ', '_')}_{self.size}"


def jobs(scale: Scale, counts: Mapping[int, int]) -> list[Job]:
    """Return a job for each layout and size; ``counts`` are messages by size."""
    return [Job(layout, size, scale.count(counts[size])) for layout in LAYOUTS for size in SIZES]
