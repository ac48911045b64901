# SPDX-License-Identifier: Apache-2.0
"""Batch reader and planner: `spark.read.format("tubemq")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.client import system
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.first_message import at_first_messages
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot
from tubemq_spark.client.consumer.visitor import visitor_for
from tubemq_spark.client.consumer.working_group import batch_group
from tubemq_spark.protocol.claim_id import PLANNER, ClaimId, label_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.application import application_id
from tubemq_spark.source.bound import GROUP
from tubemq_spark.source.input_partition import TubeMQInputPartition, input_partitions, knows_offsets
from tubemq_spark.source.long_messages import LongMessages
from tubemq_spark.source.offset_resolver import OffsetResolver
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.partition_discovery import with_matching_topics
from tubemq_spark.source.partition_set import partitions_to_read
from tubemq_spark.source.range_planner import Ranges, ranges
from tubemq_spark.task_counts import CountsInTasks

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from tubemq_spark.source.pushdown import PushedFilters


class TubeMQReader(CountsInTasks, DataSourceReader):
    """Reads from `startingOffsets` to `endingOffsets`, which are resolved when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.read(options, streaming=False, schema=schema)
        self._pushed: PushedFilters | None = None

    def partitions(self) -> Sequence[InputPartition]:
        return plan_batch(self._options, self._pushed)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of None if there are none to read.
        if isinstance(partition, TubeMQInputPartition):
            with self.counting():
                yield from partition.read()


class PushingReader(TubeMQReader):
    """A reader for option `pushFilters`. If Spark's own setting is off, Spark refuses readers with this method."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the query's conditions to read less, and return those that Spark must check."""
        from tubemq_spark.source.pushdown import PushedFilters

        self._pushed = PushedFilters()
        return self._pushed.add(filters)


def plan_batch(options: SourceOptions, pushed: PushedFilters | None = None) -> list[TubeMQInputPartition]:
    """Return the tasks of a batch read, for what `pushed` leaves. The group does not move; its positions are looked
    up only for `startingOffsets=group`."""
    options = with_matching_topics(options)
    may_lack = options.pattern is not None
    session = ConsumerSession(options.client, options.group, options.topics, options.filters, may_lack_topics=may_lack)
    session.register(wait=options.claim_timeout)
    # The tasks derive their claims from this one. Another plan of the application may run at the same time.
    label, reader = label_of(system.host_name()), system.token_hex(4)
    claim = ClaimId(application_id(), run=0, batch=0, task=PLANNER, reader=reader, label=label)
    visitor = visitor_for(session)
    prober = Prober(visitor)
    long_messages = LongMessages(prober, options.long_topics)
    try:
        partitions = partitions_to_read(options, session)
        earliest = None
        if GROUP in options.starting.places:
            at = GroupClaims(session, claim, options.claim_timeout).look(partitions)
        else:
            at = {one: GroupPosition(*extent) for one, extent in prober.extents(partitions).items()}
            earliest = {one: position.group for one, position in at.items()}
        resolver = OffsetResolver(options, prober, long_messages)
        starts, first = at_first_messages(prober, session.cluster, resolver.starting(at, earliest))
        to_read: Ranges = ranges(starts, resolver.ending(starts, at))
        if pushed is not None:
            to_read = _narrowed(to_read, options, session, pushed)
        long_messages.wait_until_flushed({partition: end for partition, (_, end) in to_read.items()})
        return input_partitions(
            options,
            session,
            claim,
            to_read,
            {
                one: PartitionSnapshot(
                    session.broker(one),
                    visitor.group,
                    session.cluster.store_ids(one),
                    session.flow_rules,
                    first.get(one.store),
                )
                for one in to_read
            },
            batch_group(options.group),
            only_types=None if pushed is None else pushed.msg_types,
        )
    finally:
        visitor.close()
        long_messages.close()
        session.close()


def _narrowed(found: Ranges, options: SourceOptions, session: ConsumerSession, pushed: PushedFilters) -> Ranges:
    """Return what `pushed` leaves of the ranges."""
    left: dict[Partition, tuple[int, int]] = {}
    for partition, (start, end) in found.items():
        if not pushed.includes(partition):
            continue
        if knows_offsets(options, session, partition):
            left[partition] = pushed.cut(start, end)
        elif not pushed.bounds_offset:  # no row has an offset here
            left[partition] = start, end
    return {partition: (start, end) for partition, (start, end) in left.items() if start < end}
