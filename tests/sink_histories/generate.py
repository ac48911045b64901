# SPDX-License-Identifier: Apache-2.0
"""Generates histories from seeds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.histories.script import TopicShape
from tests.sink_histories.hooks import HOWS
from tests.sink_histories.jobs import BAD, CORRUPT, OutRow
from tests.sink_histories.script import (
    AS_READ,
    BARE,
    COMMITTED,
    ONCE,
    PLAIN,
    PLANNED,
    STAMPED,
    WITH_TOPIC,
    WRITTEN,
    Event,
    History,
    Setting,
)
from tubemq_spark.protocol.metadata import Partition

SHAPES = [TopicShape(1, 1), TopicShape(2, 1), TopicShape(3, 1), TopicShape(1, 2), TopicShape(2, 2)]
REAL_SHAPES = [TopicShape(1, 1), TopicShape(3, 1), TopicShape(2, 2)]  # which are declared there beforehand

OPTIONS: Mapping[str, list[str | None]] = {
    "tubemq.producer.maxInFlight": [None, None, "1", "4"],
    "tubemq.producer.maxInFlightBytes": [None, None, "200"],
    "tubemq.connections.shared": [None, None, "false"],
}
CONFIG: Mapping[str, list[float | None]] = {
    "transfer_size": [512, None],
    "max_index_segment_entries": [8, 40, None],
    "mem_cache_msg_count": [5, 20, None],
}
METHODS = ["send_message", "send_message", "send_message", "partition_register", "partition_unregister", "get_message"]
FAULTS = ["close_connection", "close_mid_frame", "drop_reply", "drop_request", "delay", "fail", "fail_overflow"]
FAULTS += ["fail_forbidden", "fail_internal"]
_KEYS = [b"red", b"green", b"blue"]


def _hook(r: random.Random) -> tuple[str, dict[str, Any]]:
    role = r.choice(["task"] * 8 + ["plan", "commit"])
    nth = r.choice([1, 2, 3, 4, 5, 6, 8, 10, 14, 20]) if role == "task" else r.randint(1, 30)
    args: dict[str, Any] = {"role": role, "how": r.choice(HOWS), "nth": nth}
    return "hook", {**args, "task": r.randrange(3), "attempt": r.choice([0, 0, 0, 0, 1, 2])}


def _fault(r: random.Random) -> tuple[str, dict[str, Any]]:
    method, how = r.choice(METHODS), r.choice(FAULTS)
    if method != "send_message" and how in ("fail_overflow", "fail_forbidden", "fail_internal"):
        how = "fail"
    args = {"method": method, "how": how, "nth": r.choice([1, 2, 3, 6, 12, 25]), "times": r.choice([1, 1, 2, 5])}
    return "fault", {**args, "broker": r.choice([None, 0, 1])}


def _down(r: random.Random) -> tuple[str, dict[str, Any]]:
    return r.choice(["crash", "stop"]), {"broker": r.randrange(3), "back": r.choice([0.0, 0.1, 0.4, 3.0])}


def _topic(r: random.Random) -> tuple[str, dict[str, Any]]:
    what = r.choice(["grow", "foreign", "foreign", "flush", "flush"])
    args: dict[str, Any] = {"topic": r.randrange(2)}
    if what == "grow":
        args |= {"partitions": r.choice([2, 3]), "stores": r.choice([1, 2])}
    elif what == "foreign":
        args |= {"count": r.choice([1, 10, 40])}
    return what, args


def _expire(r: random.Random) -> tuple[str, dict[str, Any]]:
    return "expire", {"topic": r.randrange(2), "keep": r.choice([0, 3, 20])}


def _switch_master(r: random.Random) -> tuple[str, dict[str, Any]]:
    return "switch_master", {}


def _driver_dies(r: random.Random) -> tuple[str, dict[str, Any]]:
    return "die", {}


def _during(r: random.Random) -> tuple[str, dict[str, Any]]:
    what, args = r.choice([_down, _topic, _driver_dies, _driver_dies])(r)
    method, nth = r.choice(METHODS), r.choice([1, 2, 3, 5, 9, 15, 25, 40])
    return "during", {"method": method, "nth": nth, "after": r.random() < 0.5, "what": what, "args": args}


def _die(r: random.Random) -> tuple[str, dict[str, Any]]:
    return "die", {"at": r.choice([PLANNED, WRITTEN, COMMITTED])}


_MAKERS = [(_hook, 16), (_fault, 6), (_during, 6), (_die, 4)]
_CHANGES = [(_down, 3), (_topic, 3), (_expire, 1), (_switch_master, 1)]


def generate(name: str, server: str = "embedded") -> History:
    """Return the history of that name, which is its seed."""
    r = random.Random(name)
    shapes = SHAPES if server == "embedded" else REAL_SHAPES
    mode = r.choice([ONCE, ONCE, ONCE, STAMPED, PLAIN])
    sizes = [0, 1, 3, 10, 30] if server == "embedded" else [1, 10, 40]
    setting = Setting(
        brokers=r.choice([1, 2, 2, 3]) if server == "embedded" else 2,
        topics={letter: r.choice(shapes) for letter in "ab"[: r.choice([1, 1, 2])]},
        tasks=[[r.choice(sizes) for _ in range(r.choice([1, 2, 3]))] for _ in range(r.choice([2, 3, 4]))],
        mode=mode,
        topic_column=r.random() < 0.3,
        receipts=r.random() < 0.4,
        arrow=r.random() < 0.6,
        shuffled=r.random() < 0.2,
        equal=r.random() < 0.3,
        failed_rows=_failed_rows(name) if server == "embedded" else "fail",
        config={name: size for name, sizes in CONFIG.items() if (size := r.choice(sizes)) is not None},
        options={name: value for name, values in OPTIONS.items() if (value := r.choice(values)) is not None},
        width=r.choice([1, 2, 3]),
        tries=r.choice([1, 2, 4, 4]),
    )
    events = tuple(_event(r, setting, server) for _ in range(r.choice([4, 8, 12, 18])))
    history = _with_new_tasks(History(name, _restless(name, _framed(name, setting, shapes)), events))
    return _with_unlisted(history) if server == "embedded" else history


def with_repeated_stages(name: str) -> History:
    """Return a history in which each failed task is attempted again in another attempt of its stage."""
    r = random.Random(f"{name}:stages")
    drawn = generate(name).setting
    setting = replace(
        drawn,
        mode=ONCE,
        failed_rows="fail",
        tries=4,
        tasks=[[40, 40], *([r.choice([3, 10, 30])] * 2 for _ in range(3))],
    )
    hows = [how for how in HOWS if how.startswith("kill")] + ["fail_answered"]
    events = [
        Event("hook", batch, 0, {"role": "task", "task": task, "attempt": 0, "how": r.choice(hows), "nth": nth})
        for batch in range(1, 4)
        for task in range(2)
        if (nth := r.choice([0, 1, 2, 3, 4, 6, 8, 12]))
    ]
    return History(
        name,
        setting,
        (
            *events,
            *(Event("stage", batch, 0, {"task": 0}) for batch in range(1, 4)),
            *(Event("stage", batch, 0, {"task": 1}) for batch in range(1, 4)),
        ),
    )


def _with_unlisted(history: History) -> History:
    """Give some histories a topic on one broker that is down when new workers first use the topic: the master does not
    list it."""
    r, setting = random.Random(f"{history.name}:unlisted"), history.setting
    if r.random() > 0.3:
        return history
    topic, home, batch = r.choice(sorted(setting.topics)), r.randrange(3), r.randrange(len(setting.tasks))
    down = Event("stop", batch, 0, {"broker": home, "back": r.choice([0.5, 1.5, 3.0, 3.0])})
    events = (*history.events, down, Event("fresh", batch))
    topic_column = setting.topic_column or (setting.frame == BARE and r.random() < 0.5)
    return History(history.name, replace(setting, homes={topic: home}, topic_column=topic_column), events)


def _restless(name: str, setting: Setting) -> Setting:
    r = random.Random(f"{name}:restless")
    return replace(setting, long_triggers=r.random() < 0.4, respelled=r.random() < 0.3)


def _with_new_tasks(history: History) -> History:
    """Give some histories a batch that has another number of tasks in later attempts."""
    r = random.Random(f"{history.name}:tasks")
    if r.random() > 0.3:
        return history
    batch = r.randrange(len(history.setting.tasks))
    dies = Event("die", batch, 0, {"at": r.choice([PLANNED, WRITTEN, WRITTEN, COMMITTED])})
    other = Event("tasks", batch, r.choice([1, 1, 1, 2]), {"by": r.choice([-2, -1, -1, 1])})
    return history.with_events((*history.events, *([dies] if r.random() < 0.7 else []), other))


def _failed_rows(name: str) -> str:
    return random.Random(f"{name}:failed rows").choice(["fail", "fail", "drop", "deadLetter"])


def _framed(name: str, setting: Setting, shapes: list[TopicShape]) -> Setting:
    """Give some histories a frame whose rows were read in another topic."""
    r = random.Random(f"{name}:frame")
    frame = r.choice([BARE, BARE, BARE, WITH_TOPIC, AS_READ])
    if setting.topic_column or frame == BARE:
        return setting
    return replace(setting, frame=frame, topics={"b": r.choice(shapes), **setting.topics})


def _event(r: random.Random, setting: Setting, server: str) -> Event:
    batch, run = r.randrange(len(setting.tasks)), r.choice([0, 0, 0, 0, 1, 2])
    if r.random() < 0.25:
        change = r.choices([make for make, _ in _CHANGES], [weight for _, weight in _CHANGES])[0]
        kind, args = change(r)
    else:
        make = r.choices([make for make, _ in _MAKERS], [weight for _, weight in _MAKERS])[0]
        kind, args = make(r)
    if server == "real":
        kind, args = _for_real(r, kind, args)
    return Event(kind, batch, run, args)


def _for_real(r: random.Random, kind: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an event that real servers allow: no injected failures, no new partitions."""
    if kind in ("crash", "foreign", "hook", "die"):
        return kind, args
    if kind == "stop":
        return "restart", args
    return _hook(r)


def rows(history: History, batch: int, task: int, topics: list[str], partitions: list[Partition]) -> list[OutRow]:
    """Return the rows of one task, equal for all attempts. Bodies are unique, unless the setting has `equal` ones."""
    setting = history.setting
    is_read = not setting.topic_column and setting.frame == AS_READ
    read_in = None if setting.topic_column or setting.frame == BARE else topics[-1]
    r = random.Random(f"{history.name}:{batch}:{task}")
    fate = random.Random(f"{history.name}:{batch}:{task}:bad")
    made = []
    for number in range(setting.tasks[batch][task]):
        topic = r.choice(topics) if setting.topic_column else topics[0]
        body = b"%d.%d.%d" % (batch, task, number)
        if setting.equal and r.random() < 0.4:
            body = b"%d.%d.equal" % (batch, task)
        kind = r.random()
        key = r.choice(_KEYS) if kind < 0.4 or kind > 0.95 else None
        target = None
        if kind > 0.8 and not is_read:
            chosen = r.choice([one for one in partitions if one.topic == topic])
            target = chosen.broker_id, chosen.partition_id
        is_bad = setting.failed_rows != "fail" and fate.random() < 0.2
        bad = fate.choice([CORRUPT] if is_read else BAD) if is_bad else ""
        made.append(OutRow(topic, body, key, target, bad, read_in))
    return made


def spread(rows: list[list[OutRow]], by: int) -> list[list[OutRow]]:
    """Return the rows of a batch, spread over `by` more (or fewer) tasks, at least one."""
    count = max(1, len(rows) + by)
    if count <= len(rows):
        return [*rows[: count - 1], [row for part in rows[count - 1 :] for row in part]]
    half = len(rows[-1]) // 2
    return [*rows[:-1], rows[-1][:half], rows[-1][half:], *([] for _ in range(count - len(rows) - 1))]


def order(history: History, batch: int, task: int, nth: int, count: int) -> list[int]:
    """Return the order of the rows in the `nth` attempt; the first one keeps it."""
    numbers = list(range(count))
    if history.setting.shuffled and nth:
        random.Random(f"{history.name}:{batch}:{task}:{nth}").shuffle(numbers)
    return numbers
