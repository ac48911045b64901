# SPDX-License-Identifier: Apache-2.0
"""Histories that failed once, after shrinking."""

from __future__ import annotations

from typing import Any

from tests.histories.script import COMMITTED, Event, History, Setting, TopicShape
from tests.without_spark.source import FOUND, GIVEN, LOGGED, PLANNED


def _history(name: str, options: dict[str, str], *events: Event, config: dict[str, int] | None = None) -> History:
    """Return a history on one broker, with one partition, which is the only one of its store."""
    return History(name, Setting(1, 1, {"a": TopicShape(1, 1)}, config or {}, options), events)


def _event(kind: str, at: str | None = None, **args: Any) -> Event:
    return Event(kind, args, at)


def _send(count: int) -> Event:
    return _event("send", count=count, to=0, spread=1, size=8)


_RUN = _event("run", batches=50, available_now=False)
_CRASH = _event("crash", broker=0)
_START = _event("start", broker=0)


def _of_a_shared_store(name: str, *events: Event, retries: int = 0, scans: int = 1) -> History:
    """Return a history on one broker, with a store of three partitions. Tasks run one by one, or one of each scan."""
    options, topics = {"startingOffsets": "earliest"}, {"a": TopicShape(3, 1)}
    setting = Setting(1, 1, topics, {"transfer_size": 512}, options, [], retries, scans, scans)
    return History(name, setting, (_event("send", count=150, to=0, spread=3, size=60), *events))


_EXPIRE = {"topic": 2, "keep": 40}

_SHARED = [
    # The broker ends a fetch of a killed task after the next attempt or run has claimed the partition.
    *(
        _of_a_shared_store(f"{kind}, a fetch ends {late} fetches later", _RUN, _event(kind, GIVEN, late=late))
        for kind in ("kill_worker", "kill")
        for late in (1, 2)
    ),
    _of_a_shared_store("another try, a fetch ends later", _RUN, _event("kill_worker", GIVEN, late=2), retries=1),
    # Both scans of a union read the same partition.
    _of_a_shared_store("two scans", _RUN, scans=2),
    _of_a_shared_store("two scans, one is killed", _RUN, _event("kill_worker", GIVEN, late=1), retries=3, scans=2),
    # A batch DataFrame is planned, a stream moves the group, then the DataFrame is read.
    _of_a_shared_store("a frame is used later", _event("plan_batch"), _RUN, _event("stop"), _event("use_batch")),
    # Retention deletes messages while they are read, and the broker moves the group behind them.
    History(
        "a frame is used while retention deletes",
        Setting(
            1, 1, {"a": TopicShape(3, 1)}, {"transfer_size": 512, "max_index_segment_entries": 40}, {"filters": "red"}
        ),
        (
            _event("send", count=3, to=5, spread=2, size=400),
            _event("plan_batch"),
            _event("send", count=60, to=8, spread=1, size=8),
            Event("during", {"method": "commit_offset", "nth": 2, "after": True, "what": "expire", "args": _EXPIRE}),
            _event("use_batch"),
        ),
    ),
    # The clock was set back, so a dead run seems to have begun in the future.
    _of_a_shared_store("the clock is set back", _RUN, _event("kill"), _event("clock_step", seconds=-3600.0), _RUN),
]

_LOST_TAIL = History(
    # The first batch begins and ends with messages of different partitions. The broker loses the end of the batch. The
    # messages that it kept must not be delivered twice.
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
    # The broker loses the last batch before it is read. The fingerprint at its start matches an old message.
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
    # The visit token of a plan expires before its tasks run, and while a task runs.
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
    # The broker loses the last 5 of 15 messages that were read, and retention deletes all others but 2. No fingerprint
    # is left to compare. The query must neither read these 2 again nor report them as lost.
    _history(
        "lost tail and retention",
        {"startingOffsets": "earliest", "failOnDataLoss": "false"},
        _send(15),
        _RUN,
        _CRASH,
        _event("expire", topic=0, keep=2),
        config={"mem_cache_msg_count": 10},
    ),
    # One micro-batch reads old and new messages, and the broker loses the new ones. The old ones must not be read
    # again.
    _history(
        "lost tail of an old backlog",
        {"startingOffsets": "earliest", "failOnDataLoss": "false"},
        _send(15),
        _event("advance", seconds=40.0),
        _send(3),
        _RUN,
        _CRASH,
    ),
    # After an accepted loss, the group must move neither to its earlier position nor to the store's end at that time.
    _history(
        "the group after a loss",
        {
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "5",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "1s",
        },
        _send(20),
        _RUN,
        _CRASH,
        _START,
        _RUN,
        _send(8),
        _RUN,
    ),
    # The first run dies before it logs an offset. It leaves a group whose position is behind the end of the store.
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
