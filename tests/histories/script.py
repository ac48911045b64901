"""What is played: a setting and events, plain values all, so that a history can be printed, shrunk and played again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED

# The moments of a micro-batch at which an event may happen, in their order; the first four are the engine's.
READ = "read"  # all tasks have ended
WRITTEN = "written"  # the sink has the rows, the commit log does not know
COMMITTED = "committed"  # it is in the commit log
POINTS = (FOUND, LOGGED, PLANNED, GIVEN, READ, WRITTEN, COMMITTED)


TYPES = ("red", "green", "blue")  # of messages, in turn


@dataclass(frozen=True)
class Event:
    """Something that happens. With `at` it waits for the query to come to that point; else it comes after what stands
    before it. Numbers in `args` that choose something count round: an event can always be played, whatever was dropped
    before it.
    """

    kind: str
    args: dict[str, Any] = field(default_factory=dict)
    at: str | None = None
    nth: int = 1
    """At which time that the query comes there."""

    def __str__(self) -> str:
        what = " ".join([self.kind, *(f"{name}={value}" for name, value in self.args.items())])
        return f"  at {self.at} {self.nth}: {what}" if self.at else what


@dataclass(frozen=True)
class TopicShape:
    """`partitions` in each of `stores` stores on each of the brokers."""

    partitions: int
    stores: int


@dataclass(frozen=True)
class Setting:
    """The cluster and the query. `config` are fields of `ServerConfig`, `options` those of the source but for who and
    where; `retries` is how often Spark tries a task again, `width` how many tasks run side by side, `scans` how often
    each micro-batch is read at the same time."""

    brokers: int
    masters: int
    topics: dict[str, TopicShape]
    config: dict[str, int]
    options: dict[str, str]
    group_at: list[int] = field(default_factory=list)
    """Where an administrator put the group before the query began, in messages, partition by partition."""
    retries: int = 0
    width: int = 1
    scans: int = 1


@dataclass(frozen=True)
class History:
    """`name` is the seed it was made from."""

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
