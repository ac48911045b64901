# SPDX-License-Identifier: Apache-2.0
"""Make histories from seeds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.histories.script import COMMITTED, POINTS, READ, WRITTEN, Event, History, Setting, TopicShape
from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE

SHAPES = [TopicShape(1, 1), TopicShape(2, 1), TopicShape(3, 1), TopicShape(1, 2), TopicShape(2, 2)]

REAL_SHAPES = [TopicShape(1, 1), TopicShape(3, 1), TopicShape(2, 2)]  # the only layouts that the real cluster has

# The query's options and their possible values; None leaves the option out.
OPTIONS: Mapping[str, Sequence[str | None]] = {
    "startingOffsets": ["earliest", "earliest", "earliest", "latest", "group", None],
    "failOnDataLoss": [None, "true", "false", "false"],
    "maxOffsetsPerTrigger": [None, None, "5", "20", "60"],
    "minOffsetsPerTrigger": [None, None, None, "5"],
    "maxTriggerDelay": ["50ms"],
    "maxPartitionsPerTask": [None, "1", "3"],
    "filters": [None, None, None, "red", "red,green", '{"a":["blue"]}'],
    "commitOffsets": [None, None, None, "false"],
    "corruptMessages": [None, None, "skip"],
}

CONFIG: Mapping[str, list[int | None]] = {
    "transfer_size": [512, 2048, None],
    "max_index_segment_entries": [8, 40, None],
    "mem_cache_msg_count": [10, 60, None],
    "start_visit_token_check": [1, None, None],
}

METHODS = ["partition_register", "partition_unregister", "get_message", "commit_offset"]
FAULTS = ["close_mid_frame", "close_connection", "delay", "fail", "fail_limit"]
SEND_METHOD = "send_message"

_LATE = [0, 0, 1, 2]  # after how many other fetches the fetch of a killed task ends; 0: it has no running fetch
OUTSIDE = {
    "run",
    "forget_commit",
    "forget_offset",
    "clock_step",
    "plan_batch",
    "use_batch",
}  # events that need a stopped query
Make = Callable[[random.Random], Event]


MOMENTS = [FOUND, LOGGED, PLANNED, GIVEN, GIVEN, GIVEN, READ, WRITTEN, COMMITTED]


def _send(r: random.Random) -> Event:
    args = {"count": r.choice([1, 3, 20, 60, 150]), "to": r.randrange(12), "spread": r.choice([1, 2, 20])}
    return Event("send", {**args, "size": r.choice([8, 8, 60, 400])})


def _produce(r: random.Random) -> Event:
    return Event("produce", {"topic": r.randrange(4), "count": r.choice([1, 10, 60]), "size": r.choice([8, 60])})


def _run(r: random.Random) -> Event:
    return Event("run", {"batches": r.choice([1, 1, 2, 5]), "available_now": r.random() < 0.15})


def _fault(r: random.Random) -> Event:
    how = r.choice([*FAULTS, *FAULTS, "drop_reply"])
    method = SEND_METHOD if r.random() < 0.1 else r.choice(METHODS)
    nth, times = r.choice([1, 1, 2, 3, 6]), r.choice([1, 1, 2])
    return Event("fault", {"method": method, "how": how, "nth": nth, "times": times})


def _late_fetch(r: random.Random) -> Event:
    args = {"method": "get_message", "how": "end_late", "nth": r.choice([1, 2, 3, 6]), "times": 1}
    return Event("fault", {**args, "fetches": r.choice([1, 2])})


def _during(r: random.Random) -> Event:
    what = r.choice([_crash, _expire, _flush, _move_group, _restart])(r)
    args = {"method": r.choice(METHODS), "nth": r.choice([1, 2, 3, 5]), "after": r.random() < 0.5}
    return Event("during", {**args, "what": what.kind, "args": what.args})


def _crash(r: random.Random) -> Event:
    return Event("crash", {"broker": r.randrange(3)})


def _start(r: random.Random) -> Event:
    return Event("start", {"broker": r.randrange(3)})


def _restart(r: random.Random) -> Event:
    return Event("restart", {"broker": r.randrange(3)})


def _expire(r: random.Random) -> Event:
    return Event("expire", {"topic": r.randrange(4), "keep": r.choice([0, 2, 10, 40])})


def _flush(r: random.Random) -> Event:
    return Event("flush", {"topic": r.randrange(4)})


def _move_group(r: random.Random) -> Event:
    return Event("move_group", {"partition": r.randrange(12), "to": r.randrange(80)})


def _kind(kind: str, **args: Sequence[Any]) -> Make:
    return lambda r: Event(kind, {name: r.choice(values) for name, values in args.items()})


# The events: function, weight, and the servers that support it.
EVENTS: list[tuple[Make, int, str]] = [
    (_send, 30, "both"),
    (_produce, 4, "embedded"),
    (_run, 26, "both"),
    (_kind("stop"), 6, "both"),
    (_kind("kill", late=_LATE), 10, "both"),
    (_kind("kill_worker", late=_LATE), 8, "both"),
    (_kind("clock_step", seconds=[-3600.0, -60.0, 60.0]), 3, "embedded"),
    (_kind("plan_batch"), 2, "embedded"),
    (_kind("use_batch"), 4, "embedded"),
    (_late_fetch, 2, "embedded"),
    (_crash, 5, "both"),
    (_start, 6, "embedded"),
    (_restart, 3, "both"),
    (_kind("switch_master", empty_for=[0.0, 0.0, 0.2]), 2, "both"),
    (_fault, 8, "embedded"),
    (_during, 4, "embedded"),
    (_expire, 3, "embedded"),
    (_flush, 5, "embedded"),
    (_kind("advance", seconds=[6.0, 21.0, 40.0]), 3, "embedded"),
    (_kind("rotate", times=[1, 7, 20]), 3, "embedded"),
    (_kind("grow", topic=range(4), partitions=[1, 2, 3], stores=[1, 2]), 2, "embedded"),
    (_kind("add_broker", topic=range(4)), 1, "embedded"),
    (_kind("rival_comes", partition=range(12)), 2, "both"),
    (_kind("rivals_leave"), 2, "both"),
    (_kind("java", topic=range(4), count=[1, 30]), 1, "real"),
    (_kind("forget_commit"), 3, "both"),
    (_kind("forget_offset"), 3, "both"),
    (_move_group, 2, "both"),
]


def generate(name: str, server: str = "embedded", engine: str = "calls") -> History:
    """Return the history whose seed is `name`. With Spark it is shorter, and the driver dies at most once."""
    r = random.Random(name)
    shapes = SHAPES if server == "embedded" else REAL_SHAPES
    topics = {letter: r.choice(shapes) for letter in "abc"[: r.choice([1, 1, 2, 3])]}
    config = {name: size for name, sizes in CONFIG.items() if (size := r.choice(sizes)) is not None}
    options = {name: value for name, values in OPTIONS.items() if (value := r.choice(values)) is not None}
    if server == "real":
        options.pop("filters", None)
    elif r.random() < 0.1:
        options["assign"] = _assign(r, topics)
        if '"a"' not in options["assign"] and "{" in options.get("filters", ""):
            del options["filters"]  # the filter is for a topic that is not read
    setting = Setting(
        brokers=r.choice([1, 1, 2]),
        masters=r.choice([1, 2]),
        topics=topics,
        config=config,
        options=options,
        group_at=[r.randrange(40) for _ in range(4)] if options.get("startingOffsets") == "group" else [],
        retries=r.choice([0, 1, 3]),
        width=r.choice([1, 2, 3]),
        scans=r.choice([1, 1, 2]) if engine == "calls" else 1,
    )
    possible = [(make, weight) for make, weight, where in EVENTS if where in ("both", server)]
    makers, weights = zip(*possible, strict=True)
    events = [_send(r)]
    for make in r.choices(makers, weights, k=r.randint(4, 24 if (server, engine) == ("embedded", "calls") else 12)):
        event = make(r)
        if event.kind != "run":
            events.append(event)
            continue
        if r.random() < 0.7:
            events.append(_send(r))
        within = _within(r, makers, weights)
        if (
            server == "embedded" and "start_visit_token_check" in config and r.random() < 0.3
        ):  # while tasks have the token of their plan
            rotation = Event("rotate", {"times": r.choice([7, 20])}, at=r.choice([PLANNED, GIVEN]))
            within = sorted([*within, rotation], key=lambda one: POINTS.index(one.at or FOUND))
        events += [event, *within]
    if r.random() < 0.3:  # an event after the query has read all messages
        idle = [_move_group, _crash, _restart, _kind("advance", seconds=[40.0])]
        last = r.choice(idle[: 4 if server == "embedded" else 3])(r)
        events += [Event("run", {"batches": 50, "available_now": False}), _flush(r), last]
        events = [event for event in events if event.kind != "flush" or server == "embedded"]
    return History(name, setting, tuple(events) if engine == "calls" else _with_one_kill(events))


def _with_one_kill(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events with one kill of the driver, preferably one within a micro-batch: starting Spark takes long."""
    kills = [event for event in events if event.kind == "kill"]
    stays = next((event for event in kills if event.at), kills[0] if kills else None)
    return tuple(replace(e, kind="stop") if e.kind == "kill" and e is not stays else e for e in events)


def _assign(r: random.Random, topics: Mapping[str, TopicShape]) -> str:
    """Return a value of `assign` with some partitions of the first broker."""
    keys = [
        (topic, f"1:{store * STORE_PARTITION_BASE + number}")
        for topic, shape in topics.items()
        for store in range(shape.stores)
        for number in range(shape.partitions)
    ]
    chosen: dict[str, list[str]] = {}
    for topic, key in sorted(r.sample(keys, r.randint(1, len(keys)))):
        chosen.setdefault(topic, []).append(key)
    return json.dumps(chosen)


def _within(r: random.Random, makers: Sequence[Make], weights: Sequence[int]) -> list[Event]:
    """Return events that happen while the query runs, in the order of the moments of a micro-batch."""
    moments = sorted(r.choices(MOMENTS, k=r.choice([0, 1, 1, 2, 2, 3])), key=POINTS.index)
    kills = [_kind(kind, late=_LATE) for kind in ("kill", "kill", "kill_worker", "kill_worker")]
    ends = [*kills, _kind("stop")]
    chosen = [r.choice(ends) if r.random() < 0.4 else r.choices(makers, weights)[0] for _ in moments]
    found = (replace(make(r), at=at) for make, at in zip(chosen, moments, strict=True))
    return [replace(e, nth=r.choice([1, 1, 2, 3, 6]) if e.at == GIVEN else 1) for e in found if e.kind not in OUTSIDE]
