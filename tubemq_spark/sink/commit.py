# SPDX-License-Identifier: Apache-2.0
"""Commits and aborts batches on the driver, from the messages of the tasks.

Spark calls this in a process of its own, with a new writer. All rows are stored by then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.batch_plan import commit_batch
from tubemq_spark.sink.options import EffectivelyOnceOptions, SinkOptions
from tubemq_spark.sink.receipts import write_receipts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, as it reports to the commit.

    - `rows` counts the stored messages, dead letters included, by TubeMQ's partition key
      (`brokerId:topic:partitionId`).
    - `id` is the id of the query or batch write, `task` the number of the task, `plan` the name of the batch's plan.
    - `dropped` and `dead_letters` count rows that can never be sent.
    - `already_stored` counts the rows that an earlier attempt had stored.
    - `topics` are those of the task's rows, with `effectivelyOnce`.
    - `earlier_tasks` is `Deduplicator.earlier_tasks`, `receipts` the result of `Receipts.packed`.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    id: str | None = None
    dropped: int = 0
    dead_letters: int = 0
    already_stored: int = 0
    topics: frozenset[str] = frozenset()
    receipts: bytes | None = field(default=None, repr=False)
    plan: str = ""
    task: int = 0
    earlier_tasks: Mapping[str, frozenset[int]] = field(default_factory=dict, repr=False)


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    """Write the receipts and note the commit; a repetition changes nothing.

    `batch` is None for a batch write. Raise as `write_receipts` and `commit_batch`, and `ConfigError` if an earlier
    attempt has stored rows of a task that has none now, or if a task has not reported what it wrote.
    """
    written = [message for message in messages if isinstance(message, Written)]
    if len(written) < len(messages):
        raise ConfigError(
            f"{_name(batch)}: {len(messages) - len(written)} of {len(messages)} tasks did not report what they wrote, "
            "so Spark has not passed their rows to the sink. It does so with trigger(continuous=…), which the sink "
            "does not support. Spark may leave the query active: stop it, and use trigger(processingTime=…)"
        )
    if options.effectively_once is not None and batch is not None:
        _check_tasks(options.effectively_once, batch, written)
    if options.receipts is not None and written:
        parts = [message.receipts for message in written if message.receipts is not None]
        file = write_receipts(options.receipts, written[0].id or "local", batch, parts)
        _log.info("%s: receipts in %s", _name(batch), file)
    if options.effectively_once is not None and batch is not None:
        query = next((message.id for message in written), None)
        commit_batch(options.effectively_once, batch, query, {message.plan for message in written})
    dropped = sum(message.dropped for message in written)
    if dropped:
        _log.warning(
            "[batch-rows-dropped] %s: %d rows could never be sent and were dropped (failedRows=drop)",
            _name(batch),
            dropped,
        )
    dead_letters = sum(message.dead_letters for message in written)
    if dead_letters:
        _log.warning(
            "[batch-dead-letters] %s: %d rows could never be sent and became dead letters (failedRows=deadLetter)",
            _name(batch),
            dead_letters,
        )
    _log.debug("%s is committed: %s", _name(batch), _summary(messages))


def log_abort(messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    """Log that a batch has failed. Its stored messages stay, because TubeMQ cannot remove them."""
    _log.warning(
        "[batch-failed] "
        "%s failed; its stored messages stay, and another attempt may store them again: %s, and possibly rows of "
        "other tasks",
        _name(batch),
        _summary(messages),
    )


def _check_tasks(once: EffectivelyOnceOptions, batch: int, written: Sequence[Written]) -> None:
    """Check that each task with rows of an earlier attempt has rows of the topic now, and has so compared them."""
    tasks = {one.task: one for one in written}
    for topic in sorted({topic for one in written for topic in one.earlier_tasks}):
        earlier = frozenset[int]().union(*(one.earlier_tasks.get(topic, ()) for one in written))
        without_rows = sorted(number for number in earlier if number not in tasks or topic not in tasks[number].topics)
        if not without_rows:
            continue
        shown = ", ".join(map(str, without_rows[:5]))
        if len(without_rows) > 5:
            shown += f" and {len(without_rows) - 5} more"
        had_more = "" if tasks.keys() >= set(without_rows) else ", and had more"
        problem = (
            f"batch {batch}: an earlier attempt has stored rows of task {shown} in topic {topic}, which has no such "
            f"rows now: the batch has {len(tasks)} tasks{had_more}. The "
            "rows may belong to another task now and be stored twice, because effectivelyOnce needs a query that gives "
            "the same rows to the task of the same number"
        )
        if not once.fails_when_uncertain:
            _log.warning(
                "[task-count-changed] %s; the commit goes on, as option 'effectivelyOnceUncertain' says", problem
            )
            continue
        raise ConfigError(
            f"{problem}. Keep what decides on the number of tasks (spark.sql.shuffle.partitions, the source's read "
            "limits, the cores where these count) when a query is started again, and set spark.sql.adaptive.enabled to "
            "false if the query shuffles. To go on with this batch as it is, set option 'effectivelyOnceUncertain' to "
            "sendAgain"
        )


def _name(batch: int | None) -> str:
    return "a batch write" if batch is None else f"batch {batch}"


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    rows: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            rows.update(message.rows)
    return f"{rows.total()} rows in {len(rows)} partitions by tasks that finished"
