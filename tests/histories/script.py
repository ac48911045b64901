# SPDX-License-Identifier: Apache-2.0
"""A history as plain values: a setting and events, so that it can be printed, shrunk and played again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED

# The moments of a micro-batch at which an event may happen, in order; the first four are in `without_spark.source`.
READ = "read"  # all tasks have ended
WRITTEN = "written"  # the sink has the rows, the commit log has no entry
COMMITTED = "committed"  # the commit log has the entry
POINTS = (FOUND, LOGGED, PLANNED, GIVEN, READ, WRITTEN, COMMITTED)


TYPES = ("red", "green", "blue")  # message types, used in turn


@dataclass(frozen=True)
class Event:
    """One event. With `at` it waits until the query reaches that point for the `nth` time; otherwise it follows the
    event before it. Numbers in `args` that choose an item are taken modulo the number of items, so an event can be
    played after any other event was removed."""

    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    at: str | None = None
    nth: int = 1

    def __str__(self) -> str:
        what = " ".join([self.kind, *(f"{name}={value}" for name, value in self.args.items())])
        return f"  at {self.at} {self.nth}: {what}" if self.at else what


@dataclass(frozen=True)
class TopicShape:
    """A topic with `partitions` partitions in each of `stores` stores on each broker."""

    partitions: int
    stores: int


@dataclass(frozen=True)
class Setting:
    """The cluster and the query. `config` are fields of `ServerConfig`, `options` options of the source without
    cluster, group and topics. Spark repeats a failed task `retries` times, runs `width` tasks in parallel, and reads
    each micro-batch in `scans` scans at the same time."""

    brokers: int
    masters: int
    topics: dict[str, TopicShape]
    config: dict[str, int]
    options: dict[str, str]
    group_at: list[int] = field(default_factory=list)
    """The group's positions before the query, by partition, in messages."""
    retries: int = 0
    width: int = 1
    scans: int = 1


@dataclass(frozen=True)
class History:
    """A setting and its events. `name` is the seed."""

    name: str
    setting: Setting
    events: tuple[Event, ...]

    def __str__(self) -> str:
        lines = [f"history {self.name}", f"  {self.setting}"]
        return "\n".join([*lines, *(f"  {number:3} {event}" for number, event in enumerate(self.events))])

    def with_events(self, events: Iterable[Event]) -> History:
        return replace(self, events=tuple(events))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> History:
        data = json.loads(text)
        setting = data["setting"]
        topics = {name: TopicShape(**shape) for name, shape in setting["topics"].items()}
        return cls(
            data["name"],
            Setting(**{**setting, "topics": topics}),
            tuple(Event(**event) for event in data["events"]),
        )
