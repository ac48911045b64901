"""Histories that once failed, as short as they were found to be."""

from __future__ import annotations

from typing import Any

from tests.histories.script import COMMITTED, Event, History, Setting, TopicShape
from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED


def _history(name: str, options: dict[str, str], *events: Event, config: dict[str, int] | None = None) -> History:
    """On one broker, with one partition that has its store for itself."""
    return History(name, Setting(1, 1, {"a": TopicShape(1, 1)}, config or {}, options), events)


def _event(kind: str, at: str | None = None, **args: Any) -> Event:
    return Event(kind, args, at)


def _send(count: int) -> Event:
    return _event("send", count=count, to=0, spread=1, size=8)


_RUN = _event("run", batches=50, available_now=False)
_CRASH = _event("crash", broker=0)
_START = _event("start", broker=0)


def _of_a_shared_store(name: str, *events: Event, retries: int = 0, scans: int = 1) -> History:
    """On one broker, with a store of three partitions; one task after another, or one of each scan."""
    options, topics = {"startingOffsets": "earliest"}, {"a": TopicShape(3, 1)}
    setting = Setting(1, 1, topics, {"transfer_size": 512}, options, [], retries, scans, scans)
    return History(name, setting, (_event("send", count=150, to=0, spread=3, size=60), *events))


_SHARED = [
    # The broker ends a fetch of a killed task when the driver has taken the partition over, or the next run has.
    *(
        _of_a_shared_store(f"{kind}, a fetch ends {late} fetches later", _RUN, _event(kind, GIVEN, late=late))
        for kind in ("kill_worker", "kill")
        for late in (1, 2)
    ),
    _of_a_shared_store("another try, a fetch ends later", _RUN, _event("kill_worker", GIVEN, late=2), retries=1),
    # Both scans of a union want the same partition.
    _of_a_shared_store("two scans", _RUN, scans=2),
    _of_a_shared_store("two scans, one is killed", _RUN, _event("kill_worker", GIVEN, late=1), retries=3, scans=2),
    # A batch DataFrame is planned, a stream moves the group, and the DataFrame is used.
    _of_a_shared_store("a frame is used later", _event("plan_batch"), _RUN, _event("stop"), _event("use_batch")),
    # A dead run began at a time that lies ahead by now.
    _of_a_shared_store("the clock is set back", _RUN, _event("kill"), _event("clock_step", seconds=-3600.0), _RUN),
]

_LOST_TAIL = History(
    # The first batch needs a mark of its first message, which is another partition's than the last one. The broker
    # loses the end of it, and what it has kept must not come twice.
    "lost tail of a shared store",
    Setting(
        1,
        1,
        {"a": TopicShape(1, 1), "b": TopicShape(3, 1)},
        {"transfer_size": 512, "max_index_segment_entries": 40, "mem_cache_msg_count": 60},
        {"startingOffsets": "earliest"},
        width=3,
    ),
    (
        _event("send", count=60, to=1, spread=1, size=60),
        _event("send", count=3, to=6, spread=20, size=400),
        _event("run", batches=5, available_now=False),
        _event("crash", COMMITTED, broker=0),
    ),
)

_LOST_BATCH = History(
    # The last batch is lost before it is read, and began at a mark that turned out to be an old message.
    "lost batch of a shared store",
    Setting(
        2,
        1,
        {"a": TopicShape(2, 1)},
        {"transfer_size": 2048, "max_index_segment_entries": 8},
        {"startingOffsets": "group", "failOnDataLoss": "false", "maxOffsetsPerTrigger": "60", "commitOffsets": "false"},
        group_at=[17, 9, 33, 10],
        retries=1,
    ),
    (
        _event("run", batches=2, available_now=False),
        _event("send", count=3, to=4, spread=20, size=60),
        _event("advance", seconds=40.0),
        _event("send", count=20, to=11, spread=2, size=60),
        _event("run", batches=1, available_now=True),
        _event("run", batches=2, available_now=False),
        _event("crash", LOGGED, broker=1),
    ),
)

REGRESSIONS = [
    _LOST_TAIL,
    _LOST_BATCH,
    *_SHARED,
    # The visit token of a plan dies before its tasks run, and while one of them does.
    _history(
        "visit token of a plan",
        {"startingOffsets": "earliest"},
        _send(60),
        _RUN,
        _event("rotate", PLANNED, times=7),
        _send(60),
        _RUN,
        _event("rotate", GIVEN, times=7),
        config={"start_visit_token_check": 1},
    ),
    # The broker loses the last 5 of 15 messages that were read, and all but 2 of the others are too old: nothing is
    # left to compare with, and the query must not read these 2 again, nor say that they are lost.
    _history(
        "lost tail and retention",
        {"startingOffsets": "earliest", "failOnDataLoss": "false"},
        _send(15),
        _RUN,
        _CRASH,
        _event("expire", topic=0, keep=2),
        config={"mem_cache_msg_count": 10},
    ),
    # Messages of two times, read in one micro-batch, of which the broker loses the later ones: the others stay read.
    _history(
        "lost tail of an old backlog",
        {"startingOffsets": "earliest", "failOnDataLoss": "false"},
        _send(15),
        _event("advance", seconds=40.0),
        _send(3),
        _RUN,
        _CRASH,
    ),
    # The group must not go back to where it stood before a loss that was accepted, nor to the end of the store then.
    _history(
        "the group after a loss",
        {
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "5",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "10s",
        },
        _send(20),
        _RUN,
        _CRASH,
        _START,
        _RUN,
        _send(8),
        _RUN,
    ),
    # The first run dies before it has logged anything, and leaves a group that stands beyond the end of the store.
    _history(
        "the group beyond the end",
        {"startingOffsets": "latest"},
        _send(20),
        _RUN,
        _event("kill", at=FOUND),
        _event("advance", seconds=6.0),
        _CRASH,
    ),
]
