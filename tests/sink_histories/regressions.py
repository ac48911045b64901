# SPDX-License-Identifier: Apache-2.0
"""Histories that failed once, shrunk."""

from __future__ import annotations

from dataclasses import replace

from tests.histories.script import TopicShape
from tests.sink_histories.script import COMMITTED, ONCE, STAMPED, WRITTEN, Event, History, Setting

_TWO_TOPICS = Setting(
    brokers=1,
    topics={"a": TopicShape(1, 1), "b": TopicShape(1, 1)},
    tasks=[[3], [30]],
    mode=ONCE,
    topic_column=True,
    receipts=True,
    shuffled=True,
    options={"tubemq.producer.maxInFlight": "1"},
)

# New workers use a topic whose only broker is down. The sink dropped its rows as rows of an unknown topic.
UNLISTED = History(
    "a topic that is not listed",
    Setting(
        brokers=2,
        topics={"a": TopicShape(1, 1), "b": TopicShape(1, 1)},
        homes={"b": 1},
        tasks=[[10], [10, 10]],
        mode=STAMPED,
        topic_column=True,
        failed_rows="drop",
    ),
    (Event("stop", 1, 0, {"broker": 1, "back": 3.0}), Event("fresh", 1)),
)
_ONE_TOPIC = Setting(brokers=1, topics={"a": TopicShape(1, 1)}, tasks=[], mode=ONCE)

REGRESSIONS = [
    # A row is stored in one topic with the number that a row of the other topic has in the next attempt.
    History(
        "other order in two topics",
        _TWO_TOPICS,
        (Event("hook", 1, 0, {"role": "task", "task": 0, "attempt": 0, "how": "kill_answered", "nth": 15}),),
    ),
    # Receipts of a committed batch that is attempted again in another order.
    History(
        "other order after the commit",
        replace(_TWO_TOPICS, tasks=[[10]], mode=STAMPED, failed_rows="drop"),
        (Event("die", 0, 0, {"at": COMMITTED}),),
    ),
    UNLISTED,
    # A worker that had seen nothing of its run searched in each batch for earlier attempts.
    History(
        "long triggers",
        replace(_ONE_TOPIC, tasks=[[3], [3], [3]], long_triggers=True),
        (Event("die", 1, 0, {"at": WRITTEN}), Event("foreign", 2, 0, {"topic": 0, "count": 40})),
    ),
    # No task searched for the rows of tasks that do not exist any more.
    History(
        "fewer tasks",
        replace(_ONE_TOPIC, tasks=[[5, 5, 5], [5]]),
        (Event("die", 0, 0, {"at": WRITTEN}), Event("tasks", 0, 1, {"by": -1})),
    ),
    # Another attempt of a stage, after lost shuffle files, counts the attempts of its tasks from 0 again. Spark does
    # not tell Python which attempt of the stage runs. A worker that knew an earlier batch assumed the first one.
    History(
        "another try of the stage",
        replace(_ONE_TOPIC, tasks=[[40], [4]], width=1),
        (
            Event("hook", 1, 0, {"role": "task", "task": 0, "attempt": 0, "how": "fail_answered", "nth": 2}),
            Event("stage", 1, 0, {"task": 0}),
        ),
    ),
]
