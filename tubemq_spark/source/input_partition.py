"""Spark's input partition: the ranges of one task, and how an executor reads them."""

from __future__ import annotations

import logging
import platform
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from tubemq_spark.client.cluster.group_member import GroupMember, planned_token
from tubemq_spark.client.cluster.moved_brokers import MOVED_BROKERS
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.row_maker import BYTES, ROWS, RowFormat, RowMaker

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TubeMQInputPartition(InputPartition):
    """All that an executor needs to read its ranges, one after another: plain values, which Spark pickles. Their `repr`
    contains no password.

    `visit_token` is the master's token at planning time; brokers may refuse it later. `topics` and `filters` are those
    of the group's members.
    """

    settings: ClientSettings
    group: str
    claim: ClaimId
    ranges: tuple[tuple[RangeToRead, PartitionSnapshot], ...]
    visit_token: int
    claim_timeout: float
    rows: RowFormat = field(default_factory=RowFormat)
    topics: tuple[str, ...] = ()
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loss_policy: LossPolicy = field(default_factory=LossPolicy)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ranges as Arrow batches. Raise as `PartitionReader.batches` and `RowMaker.batches`."""
        maker = RowMaker(self.rows)
        claim = self._claim_of_this_attempt()
        for wanted, snapshot in self.ranges:
            yield from self._read(wanted, snapshot, claim, maker)
        for sentence in maker.corrupt():
            _log.warning("%s", sentence)

    def _read(
        self, wanted: RangeToRead, snapshot: PartitionSnapshot, claim: ClaimId, maker: RowMaker
    ) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        member = GroupMember(self.group, self.topics, self.filters)
        reader = PartitionReader(
            self.settings,
            self.group,
            claim,
            wanted,
            snapshot,
            token=planned_token(self.settings, member, self.visit_token),
            claim_timeout=self.claim_timeout,
            is_first=context is None or context.attemptNumber() == 0,
            loss_policy=self.loss_policy,
            find_broker=lambda broker: MOVED_BROKERS.now(self.settings, member, broker),
        )
        pending: list[FetchedBatch] = []
        rows = size = 0
        for batch in reader.batches():
            pending.append(batch)
            rows += len(batch.messages)
            size += sum(len(message.payLoadData) for message in _wire_messages(batch))
            if rows >= ROWS or size >= BYTES:
                yield from _batches(maker, wanted.partition, pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield from _batches(maker, wanted.partition, pending)

    def _claim_of_this_attempt(self) -> ClaimId:
        """Return a claim of this read alone. A task that joins rows with themselves may read a range twice at once."""
        context = TaskContext.get()
        if context is None:
            return replace(self.claim, task=0)
        names = (context.getLocalProperty(name) or "" for name in ("spark.app.id", "spark.app.name"))
        return replace(
            self.claim,
            stage=context.stageId(),
            task=context.partitionId(),
            attempt=context.taskAttemptId(),
            reader=secrets.token_hex(4),
            label=label_of(platform.node(), *names, _query_name(context)),
        )


def _query_name(context: TaskContext) -> str:
    """Return the streaming query's name or "". Spark's job description has the name, if any, then lines with ids."""
    first, *others = re.split("\n|<br/>", context.getLocalProperty("spark.job.description") or "")
    return first if others and not first.startswith("id = ") else ""


def _batches(maker: RowMaker, partition: Partition, fetched: Sequence[FetchedBatch]) -> Iterator[pa.RecordBatch]:
    messages = [message for batch in fetched for message in _wire_messages(batch)]
    positions: list[int | None] | None = None
    if any(batch.positions is not None for batch in fetched):
        positions = []
        for batch in fetched:
            positions += [None] * len(batch.messages) if batch.positions is None else batch.positions
    return maker.batches(partition, messages, positions)


def _wire_messages(batch: FetchedBatch) -> Sequence[Any]:
    """Return the messages as TransferedMessages. The type of a batch declares only what tells messages apart."""
    return cast(Sequence[Any], batch.messages)
