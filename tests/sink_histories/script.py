"""A history: a setting and events as plain values, so that it can be printed, shrunk and played again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.histories.script import TopicShape

PLAIN, STAMPED, ONCE = "plain", "stamped", "once"

# What the frame has besides: nothing, the column `topic`, or all columns of the source.
BARE, WITH_TOPIC, AS_READ = "bare", "with topic", "as read"

# The moments at which a driver may die.
PLANNED, WRITTEN, COMMITTED = "planned", "written", "committed"  # the last one before the commit log knows


@dataclass(frozen=True)
class Event:
    """Something that happens in the `run`-th try, from 0, of a batch; before it unless `kind` says when.

    Kinds: `hook` (a process is killed, or one of its connections cut), `fault` (calls fail at the servers), `during`
    (a change of the cluster at a call), `die` (the driver does), `stage` (a task that fails is tried again in another
    try of its stage), `fresh` (idle workers end, so that tasks meet the cluster anew), `tasks` (from now on the batch
    has so many tasks more or fewer), and all changes of the cluster. Numbers in `args` that choose something count
    round.
    """

    kind: str
    batch: int
    run: int = 0
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([f"batch {self.batch}.{self.run}: {self.kind}", *(f"{k}={v}" for k, v in self.args.items())])


@dataclass(frozen=True)
class Setting:
    """`tasks` has for each batch the number of rows of each task. `config` are fields of `ServerConfig`, `options`
    those of the sink but for where. Where `failed_rows`, as the option has it, is not `fail`, some rows can never be
    sent. `width` is how many workers there are, `tries` how often a task is tried. A topic with a number in `homes` is
    on that broker alone. With `long_triggers` Spark ends all workers before each batch. With `respelled` the checkpoint
    names the query's groups, and each driver spells it in another way.

    With `topic_column` the rows name their topics. Without, option `topic` names the first topic for all rows, and a
    `frame` that is not bare says that they were read in the last topic.
    """

    brokers: int
    topics: dict[str, TopicShape]
    tasks: list[list[int]]
    mode: str
    topic_column: bool = False
    frame: str = BARE
    receipts: bool = False
    arrow: bool = True
    shuffled: bool = False
    equal: bool = False
    failed_rows: str = "fail"
    config: dict[str, float] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    width: int = 2
    tries: int = 4
    homes: dict[str, int] = field(default_factory=dict)
    long_triggers: bool = False
    respelled: bool = False


@dataclass(frozen=True)
class History:
    """A history; its `name` is its seed."""

    name: str
    setting: Setting
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"history {self.name}", f"  {self.setting}"]
        return "\n".join([*lines, *(f"  {number:3} {event}" for number, event in enumerate(self.events))])

    def with_events(self, events: Iterable[Event]) -> History:
        return replace(self, events=tuple(events))

    def at(self, kind: str, batch: int, run: int) -> list[Event]:
        return [event for event in self.events if (event.kind, event.batch, event.run) == (kind, batch, run)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> History:
        data = json.loads(text)
        setting = data["setting"]
        topics = {name: TopicShape(**shape) for name, shape in setting["topics"].items()}
        events = tuple(Event(**event) for event in data["events"])
        return cls(data["name"], Setting(**{**setting, "topics": topics}), events)
