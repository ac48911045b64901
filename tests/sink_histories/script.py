# SPDX-License-Identifier: Apache-2.0
"""A history: a setting and events as plain values, so that it can be printed, shrunk and played again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tests.histories.script import TopicShape

PLAIN, STAMPED, ONCE = "plain", "stamped", "once"

# Further columns of the frame: none, `topic`, or all columns of the source.
BARE, WITH_TOPIC, AS_READ = "bare", "with topic", "as read"

# The moments at which a driver may die.
PLANNED, WRITTEN, COMMITTED = (
    "planned",
    "written",
    "committed",
)  # the last before Spark's commit log has it


@dataclass(frozen=True)
class Event:
    """An event in attempt number `run`, from 0, of a batch. It happens before the attempt unless `kind` says when.

    Kinds: `hook` (a process is killed, or one of its connections cut), `fault` (requests fail at the servers), `during`
    (the cluster changes at a request), `die` (the driver dies), `stage` (Spark attempts a failed task again in another
    attempt of its stage), `fresh` (idle workers end, so that tasks know nothing of the cluster), `tasks` (from now on
    the batch has so many tasks more or fewer), and all changes of the cluster. A number in `args` that chooses
    something counts modulo the number of choices.
    """

    kind: str
    batch: int
    run: int = 0
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([f"batch {self.batch}.{self.run}: {self.kind}", *(f"{k}={v}" for k, v in self.args.items())])


@dataclass(frozen=True)
class Setting:
    """The query and the cluster of a history.

    - `tasks` has the number of rows of each task, for each batch.
    - `config` has fields of `ServerConfig`, `options` those options of the sink that do not name a destination.
    - `failed_rows` is the option. If it is not `fail`, some rows can never be sent.
    - `width` is the number of workers, `tries` the greatest number of attempts of a task.
    - A topic with a number in `homes` is only on that broker.
    - With `long_triggers`, Spark ends all workers before each batch.
    - With `respelled`, the checkpoint names the query's groups, and each driver spells it in another way.
    - With `topic_column`, the rows name their topics. Otherwise option `topic` names the first topic for all rows, and
      a `frame` that is not bare says that they were read in the last topic.
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
