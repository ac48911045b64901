# SPDX-License-Identifier: Apache-2.0
"""Spark's input partitions: how the driver divides ranges among tasks, and how an executor reads those of one task."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from tubemq_spark.client import system
from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.group_member import GroupMembership, current_broker, planned_token
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import FetchedBatch, payload_size
from tubemq_spark.protocol.log_fingerprint import UNKNOWN_IDS, KnownIds
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import ExclusiveStores
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.range_planner import Ranges, tasks
from tubemq_spark.source.row_format import GATHERED, ROWS, RowFormat

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TubeMQInputPartition(InputPartition):
    """All that an executor needs to read its ranges, one after another: plain values, which Spark pickles. Their `repr`
    contains no password.

    `working_group` is where the tasks read. `visit_token` is the master's token at planning time; brokers may refuse it
    later. `member` describes the members of the user's group.
    """

    settings: ClientSettings
    member: GroupMembership
    working_group: str
    claim: ClaimId
    ranges: tuple[tuple[RangeToRead, PartitionSnapshot], ...]
    visit_token: int
    claim_timeout: float
    rows: RowFormat = field(default_factory=RowFormat)
    loss_policy: LossPolicy = field(default_factory=LossPolicy)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ranges as Arrow batches."""
        from tubemq_spark.source.row_maker import RowMaker  # the driver does without it

        claim = self._claim_of_this_attempt()
        for wanted, snapshot in self.ranges:
            maker = RowMaker(self.rows, wanted.partition, snapshot.broker)
            for gathered in _gathered(self._reader(wanted, snapshot, claim).batches()):
                yield from maker.rows(gathered)
            if corrupt := maker.corrupt():
                _log.warning("[corrupt-messages] %s", corrupt)

    def _reader(self, wanted: RangeToRead, snapshot: PartitionSnapshot, claim: ClaimId) -> PartitionReader:
        return PartitionReader(
            self.settings,
            self.working_group,
            claim,
            wanted,
            snapshot,
            token=planned_token()(self.settings, self.member, self.visit_token),
            claim_timeout=self.claim_timeout,
            loss_policy=self.loss_policy,
            find_broker=lambda broker: current_broker(self.settings, self.member, broker),
        )

    def _claim_of_this_attempt(self) -> ClaimId:
        """Return a claim of this read alone. A task that joins rows with themselves may read a range twice at once."""
        context = TaskContext.get()
        if context is None:
            return replace(self.claim, task=0, reader=system.token_hex(4))
        names = (context.getLocalProperty(name) or "" for name in ("spark.app.id", "spark.app.name"))
        return replace(
            self.claim,
            stage=context.stageId(),
            task=context.partitionId(),
            attempt=context.taskAttemptId(),
            reader=system.token_hex(4),
            label=label_of(system.host_name(), *names, _query_name(context)),
        )


def _gathered(batches: Iterable[FetchedBatch]) -> Iterator[list[FetchedBatch]]:
    """Yield the fetched batches, as many together as make an Arrow batch."""
    pending: list[FetchedBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += len(batch.messages)
        size += payload_size(batch.messages)
        if rows >= ROWS or size >= GATHERED:
            yield pending
            pending, rows, size = [], 0, 0
    if pending:
        yield pending


def _query_name(context: TaskContext) -> str:
    """Return the streaming query's name or "". Spark's job description has the name, if any, then lines with ids."""
    first, *others = re.split("\n|<br/>", context.getLocalProperty("spark.job.description") or "")
    return first if others and not first.startswith("id = ") else ""


def input_partitions(
    options: SourceOptions,
    session: ConsumerSession,
    claim: ClaimId,
    to_read: Ranges,
    snapshots: Mapping[Partition, PartitionSnapshot],
    working_group: str,
    *,
    ids: Mapping[Partition, KnownIds] = MappingProxyType({}),
    only_types: frozenset[str] | None = None,
    exclusive: ExclusiveStores | None = None,
) -> list[TubeMQInputPartition]:
    """Return the input partitions that read `to_read`; tasks derive their claims from `claim`. `ids` are the known
    message ids of some ranges. `only_types` is None if all types are needed. `exclusive` is as for `knows_offsets`."""
    planned = []
    for partition, (start, end) in to_read.items():
        filters = options.filters.get(partition.topic, ())
        owns_store = knows_offsets(options, session, partition, exclusive)
        if only_types is not None and not owns_store:  # a filter would take the rows' offsets away
            filters = tuple(sorted(only_types & set(filters) if filters else only_types))
            if not filters:
                continue
        known = ids.get(partition, UNKNOWN_IDS)
        if filters:
            known = known._replace(last=None)  # the broker may leave that one out
        planned.append((RangeToRead(partition, start, end, owns_store, filters, known), snapshots[partition]))
    sizes = [(one.end - one.start) // UNIT for one, _ in planned]
    return [
        TubeMQInputPartition(
            settings=options.client,
            member=GroupMembership(options.group, options.topics, dict(options.filters)),
            working_group=working_group,
            claim=claim,
            ranges=tuple(group),
            visit_token=session.visit_token,
            claim_timeout=options.claim_timeout,
            rows=options.rows,
            loss_policy=options.loss_policy,
        )
        for group in tasks(planned, sizes, options.partitions_per_task)
    ]


def knows_offsets(
    options: SourceOptions, session: ConsumerSession, partition: Partition, exclusive: ExclusiveStores | None = None
) -> bool:
    """Return True if the rows of the partition have an offset: it owns its store, and no filter is set. `exclusive` are
    the stores that were found to have one partition before, None to look at the cluster as it is now."""
    if exclusive is None:
        exclusive = exclusive_stores(session.cluster, [partition])
    return partition.broker_id in exclusive.get(partition.topic, ()) and partition.topic not in options.filters


def exclusive_stores(cluster: Cluster, partitions: Iterable[Partition]) -> ExclusiveStores:
    """Return the brokers, by topic, on which one of `partitions` owns its store in the `cluster`."""
    found: dict[str, set[int]] = {}
    for partition in partitions:
        if cluster.owns_store(partition):
            found.setdefault(partition.topic, set()).add(partition.broker_id)
    return {topic: frozenset(brokers) for topic, brokers in found.items()}
