# SPDX-License-Identifier: Apache-2.0
"""Effectively-once delivery: a task that is attempted again sends only the rows that are not stored yet.

Each message carries a stamp, which names its row, and a digest of the row's content. A task proceeds in four steps:

1. Which earlier attempts may exist? Most tasks have none and skip to step 3. Spark's attempt number shows a retried
   task, the driver's plan (`batch_plan`) a batch that was begun before, and `task_mark` a repeated stage.
2. What have they stored? `stored_rows_search` reads each topic from the positions at which the batch began, and adds
   the rows of the batch to an index (`stored_rows`).
3. Which rows are sent? `Deduplicator.match` looks each row up in the index by its digest. The task sends only the rows
   that are not there. Its rows may come in another order than before, but they must be the same rows.
4. Was a send without an answer stored? The producer asks `Deduplicator.find_stored` before it sends the record again.

At the end of the task, `Deduplicator.finish` checks that each stored row was a row of this attempt too. The commit
(`commit`) checks the same for tasks that have no rows now.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.producer.record_batch import RecordMetadata
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import parse
from tubemq_spark.sink.batch_plan import BatchPlan
from tubemq_spark.sink.stored_rows import StoredRows, StoredRowsOfTask, TemporaryFolderError, check_temporary_folder
from tubemq_spark.sink.stored_rows_search import StoredRowsSearch
from tubemq_spark.sink.task_attempts import WriteTask
from tubemq_spark.sink.task_mark import TaskMark
from tubemq_spark.sink.write_plan import WritePlan

_log = logging.getLogger(__name__)

_SCAN_RETRY = 5.0  # seconds; time for retrying a scan within a task, while other rows wait
_ADVICE = (
    "Remove the cause, or start the query once with option 'effectivelyOnceUncertain' set to sendAgain, which sends "
    "the rows that were not found, and may store some twice"
)

# What earlier attempts have stored of the batch that each query writes now: its plan, and its rows by topic, found by
# one search for all its tasks.
_OF_EARLIER_RUNS: PerProcess[dict[str | None, tuple[str, dict[str, StoredRows]]]] = PerProcess(dict)


class EarlierAttempts(Enum):
    """Where attempts of the same task may have run before this one."""

    NONE = "none"
    IN_AN_EARLIER_RUN = "in an earlier run"
    IN_THIS_RUN = "in this run"


def earlier_attempts(task: WriteTask, plan: BatchPlan) -> EarlierAttempts:
    """Return what Spark's attempt number and the plan show. If Spark repeats a stage, attempts have number 0 again."""
    if task.attempt > 0:
        return EarlierAttempts.IN_THIS_RUN
    if plan.is_first and not plan.is_repeated(task):
        return EarlierAttempts.NONE
    return EarlierAttempts.IN_AN_EARLIER_RUN


def _rows_of_earlier_runs(task: WriteTask, plan: BatchPlan) -> dict[str, StoredRows]:
    """Return the rows of the task's batch, by topic; the caller fills it. Forget those of the query's other batches."""
    found, name = _OF_EARLIER_RUNS(), plan.state.plan
    if found.get(task.id, ("",))[0] != name:
        found[task.id] = name, {}
    return found[task.id][1]


class Deduplicator:
    """The effectively-once state of one attempt of a task; implements the producer's `RecordLookup`."""

    def __init__(self, session: ProducerSession, task: WriteTask, plan: WritePlan) -> None:
        """Raise `TemporaryFolderError` if the rows that the task may find could not be kept, and `ConfigError` if the
        driver's file is not that of the task's batch."""
        assert plan.options.effectively_once is not None
        assert plan.batch is not None
        check_temporary_folder()
        self._options = plan.options.effectively_once
        self._session = session
        self._task = task
        self._dead_letter_topic = plan.options.dead_letter_topic  # its messages have no stamps; each attempt sends them
        self.plan = plan.batch.state.plan
        """The name of the batch's plan."""
        self._begins = plan.batch.begins(task)
        self._earlier = earlier_attempts(task, plan.batch)
        self._of_earlier_runs = _rows_of_earlier_runs(task, plan.batch)
        self._mark = TaskMark(session, plan.batch.base, task, plan.batch.state.plans, self._begins)
        self._search = StoredRowsSearch(session, self._options, task, plan.batch, self._report_uncertain)
        self._stored: dict[str, StoredRowsOfTask | None] = {}  # by topic; None if nothing of the task is stored
        self.earlier_tasks: dict[str, frozenset[int]] = {}
        """By topic, the numbers of the tasks of this batch of which earlier attempts have stored rows."""
        if (problem := plan.batch.check(task)) is not None:
            self._report_uncertain(ConfigError(problem))

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the task's rows, also of rows that were stored already."""
        return frozenset(self._stored)

    def match(self, topic: str, row: int, digest: str) -> tuple[int, RecordMetadata | None]:
        """Return the row number for the stamp, and where the row is stored if an earlier attempt has stored it."""
        if not self._stored and self._mark.take():
            self._earlier = EarlierAttempts.IN_THIS_RUN
        if topic not in self._stored:
            self._stored[topic] = self._search_topic(topic)
        stored = self._stored[topic]
        if stored is None:
            return row, None
        return stored.take(row, digest) or (stored.free_number(row), None)

    def takes(self, topic: str) -> bool:
        """Return True if rows may go to `topic`: the driver has planned it."""
        return topic in self._options.topics

    def _search_topic(self, topic: str) -> StoredRowsOfTask | None:
        """Return the task's rows that earlier attempts have stored in `topic`, None if there are none."""
        if self._earlier is EarlierAttempts.NONE:
            return None
        try:
            # Attempts of an earlier run ended when this run began, or soon after. One search in each process serves all
            # tasks of the batch. An attempt of this run may have failed just now, so its task searches again.
            is_shared = self._earlier is EarlierAttempts.IN_AN_EARLIER_RUN
            by_topic = self._of_earlier_runs if is_shared else {}
            if topic not in by_topic:
                by_topic[topic] = self._search.rows_in(topic, of_all_tasks=is_shared)
            stored = by_topic[topic]
        except TemporaryFolderError:  # a matter of the machine: to send rows again would not be what the user allowed
            raise
        except TubeMQError as error:
            self._report_uncertain(error)
            return None
        self.earlier_tasks[topic] = frozenset(stored.tasks)
        return stored.of(self._task.partition) if self._task.partition in stored.tasks else None

    def finish(self) -> None:
        """Check, when all rows are stored, that each row of an earlier attempt was a row of this attempt too.

        Raise `ConfigError` if not, or log a warning if option 'effectivelyOnceUncertain' says so.
        """
        # A task without rows has to search as well, because an earlier attempt of it may have stored rows. The first
        # task also searches for tasks that do not exist or have no rows any more; `commit` judges what it found.
        is_responsible = self._earlier is EarlierAttempts.IN_THIS_RUN or (
            self._earlier is EarlierAttempts.IN_AN_EARLIER_RUN and self._task.partition == 0
        )
        for topic in self._options.topics if is_responsible else ():
            if topic not in self._stored:
                self._stored[topic] = self._search_topic(topic)
        found = [stored for stored in self._stored.values() if stored is not None]
        others = sum(stored.count_others() for stored in found)
        if copies := sum(stored.unmatched for stored in found) - others:
            _log.warning("[rows-twice] %s: earlier attempts have stored %d copies of its rows", self._task, copies)
        if others:
            self._report_uncertain(
                ConfigError(
                    f"an earlier attempt of the task has stored {others} rows that are not among its rows now. The "
                    "query gives other rows when it runs again, but 'effectivelyOnce' needs the same rows for the task "
                    "of the same number"
                )
            )

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> list[Partition]:
        found = [one for one in partitions if one in self._begins or one.topic == self._dead_letter_topic]
        if needed and len(found) < len(partitions):
            missing = frozenset(partitions) - frozenset(found)
            raise TransportError(
                f"{min(missing)} was added since the driver planned the batch, or its broker did not answer then, so "
                "it takes no rows in this attempt. The next run of the query plans it",
                unserved=missing,
            )
        return found

    def check_attempt(self) -> None:
        """Raise `FencedError` if a later attempt of the task has begun: rows that are not sent yet are its rows now."""
        self._mark.check()

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[object]
    ) -> Mapping[object, RecordMetadata]:
        since = self._begins[partition] if start is None else start
        found: dict[object, RecordMetadata] = {}
        origin = self._task.origin
        try:
            for message in self._search.scan(partition, since, retry_for=_SCAN_RETRY):
                stamp = parse(message.attributes)
                # The id has the digest too, because an earlier attempt may have given the number to another row.
                if stamp is not None and stamp.origin == origin and (stamp.row, stamp.digest) in record_ids:
                    found[stamp.row, stamp.digest] = RecordMetadata(partition, message.message_id, message.position)
        except DataLossError as loss:
            self._report_uncertain(loss)
        except FencedError:
            raise
        except (TransportError, ServerError, PositionMovedError, PartitionOccupiedError) as error:
            raise TransportError(str(error)) from None
        return found

    def _report_uncertain(self, problem: TubeMQError) -> None:
        """Raise `problem`, or log it if option 'effectivelyOnceUncertain' is sendAgain."""
        if not self._options.fails_when_uncertain:
            _log.warning(
                "[rows-maybe-twice] %s: %s; it may store some rows twice, as option 'effectivelyOnceUncertain' allows",
                self._task,
                problem,
            )
            return
        if isinstance(problem, DataLossError):
            raise problem.advising(_ADVICE) from None
        if isinstance(problem, ConfigError):
            raise ConfigError(f"{self._task}: {problem}. {_ADVICE}") from None
        raise problem
