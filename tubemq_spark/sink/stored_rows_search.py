# SPDX-License-Identifier: Apache-2.0
"""Searches a topic for the rows of a batch that earlier attempts have stored: behind the begins of the batch.

A broker that crashed gives positions of messages that it lost to others, so a begin may be too late. `partition_scan`
therefore begins some entries before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tubemq_spark.client import system
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.partition_scan import ScannedMessage, scan_partition
from tubemq_spark.client.consumer.short_claims import read_ends
from tubemq_spark.client.producer.record_batch import RecordMetadata
from tubemq_spark.errors import ConfigError, DataLossError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import parse
from tubemq_spark.sink.batch_plan import BatchPlan
from tubemq_spark.sink.batch_state import Begins
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.stored_rows import StoredRows
from tubemq_spark.sink.task_attempts import WriteTask

# Times as long, after an attempt of this run: a broker that hangs is what makes attempts fail.
_SETTLING_AFTER_FAILURE = 3


class StoredRowsSearch:
    """Searches topics for what earlier attempts of a task's batch have stored."""

    def __init__(
        self,
        session: ProducerSession,
        options: EffectivelyOnceOptions,
        task: WriteTask,
        plan: BatchPlan,
        report_uncertain: Callable[[TubeMQError], None],
    ) -> None:
        """`report_uncertain` is called for each partition that has lost messages, if the option allows that."""
        self._session = session
        self._options = options
        self._task = task
        self._base = plan.base
        self._begins = plan.begins(task)
        # Newer than the claims of all earlier attempts, by one clock, the driver's.
        self._claim = ClaimId(
            f"look-{task.id}-{task.partition}", plan.made_at, task.batch, task.partition, task.attempt_id << 20
        )
        self._report_uncertain = report_uncertain
        self._first_answer: dict[int, float] = {}  # of each broker in this attempt, on the monotonic clock

    def rows_in(self, topic: str, *, of_all_tasks: bool) -> StoredRows:
        """Return the batch's rows in `topic`: of all tasks, or only of this task, which this run attempts again.

        Raise `ConfigError` if the topic has too many messages to read, or if a run without `effectivelyOnce` has begun
        the batch, `DataLossError` if retention may have removed rows, and otherwise as `scan_partition`.
        """
        ends = self._ends_after_settling(topic, 1 if of_all_tasks else _SETTLING_AFTER_FAILURE)
        count, limit = _count_messages(ends, self._begins), self._options.max_offsets
        if count > limit:
            raise ConfigError(
                f"topic {topic} received {count} messages since the batch began, but option "
                f"'effectivelyOnceMaxOffsets' lets a task read only {limit} to find its own among them. Raise it"
            )
        stored = StoredRows()
        # The order is random, so that the tasks of a batch do not all wait for the same partition.
        for partition, end in system.randomizer.sample(list(ends.items()), len(ends)):
            try:
                self._collect(partition, end, stored, of_all_tasks)
            except (DataLossError, ConfigError) as problem:
                if self._options.fails_when_uncertain:
                    raise
                self._report_uncertain(problem)
        return stored

    def _ends_after_settling(self, topic: str, times: int) -> Mapping[Partition, int]:
        """Return where the topic's partitions with a begin end, when the brokers have handled what earlier attempts
        sent: some time after each broker has answered for the first time."""
        partitions = [one for one in self._begins if one.topic == topic]
        answered = read_ends(self._session, self._base, partitions)
        settings = self._session.settings
        now = settings.clock.monotonic()
        last = max((self._first_answer.setdefault(one.broker_id, now) for one in answered), default=now)
        settling = settings.timings.task_settling * times
        settings.clock.sleep(max(0.0, last + settling - now))
        return read_ends(self._session, self._base, partitions)

    def _collect(self, partition: Partition, end: int, stored: StoredRows, of_all_tasks: bool) -> None:
        without_digest: ScannedMessage | None = None
        for message in self.scan(partition, self._begins[partition], end):
            stamp = parse(message.attributes)
            if stamp is None or (stamp.origin.id, stamp.origin.batch) != (self._task.id, self._task.batch):
                continue
            task, digest = stamp.origin.partition, stamp.digest
            stored.tasks.add(task)
            if not (of_all_tasks or task == self._task.partition):
                continue
            if digest is None:
                without_digest = message
            else:
                where = RecordMetadata(partition, message.message_id, message.position)
                stored.add(task, stamp.row, digest, where)
        if without_digest is not None:
            raise ConfigError(
                f"{partition}: message {without_digest.message_id} is a row of the batch without a digest. A run "
                "without 'effectivelyOnce' has begun the batch, so it is unknown which rows are stored. Let such a run "
                "finish the batch, and stop it between two batches before you switch the option on"
            )

    def scan(
        self,
        partition: Partition,
        since: int,
        until: int | None = None,
        retry_for: float | None = None,
    ) -> Iterator[ScannedMessage]:
        """Yield as `scan_partition` does, with a newer claim than before: a killed attempt leaves its claims behind."""
        self._claim = claim = replace(self._claim, attempt=self._claim.attempt + 1)
        return scan_partition(self._session, self._base, partition, since, claim, until=until, retry_for=retry_for)


def _count_messages(ends: Mapping[Partition, int], begins: Begins) -> int:
    """Return how many messages are behind `begins`. Partitions of one store share its messages, which count once."""
    counts: dict[tuple[int, str, int], int] = {}
    for partition, end in ends.items():
        counts[partition.store] = max(counts.get(partition.store, 0), (end - begins[partition]) // UNIT)
    return sum(counts.values())
