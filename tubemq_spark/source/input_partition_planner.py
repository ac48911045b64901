"""Input partition planning: divide ranges of offsets among Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import UNKNOWN_IDS, KnownIds
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.offset import Counted
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.range_planner import Ranges, tasks
from tubemq_spark.source.row_maker import RowFormat


def input_partitions(
    options: SourceOptions,
    session: ConsumerSession,
    claim: ClaimId,
    to_read: Ranges,
    snapshots: Mapping[Partition, PartitionSnapshot],
    *,
    ids: Mapping[Partition, KnownIds] = MappingProxyType({}),
    only_types: frozenset[str] | None = None,
    counted: Counted | None = None,
) -> list[TubeMQInputPartition]:
    """Return the input partitions that read `to_read`; tasks derive their claims from `claim`. `ids` are the known
    message ids of some ranges. `only_types` is None if all types are needed. `counted` is as for `knows_offsets`."""
    planned = []
    for partition, (start, end) in to_read.items():
        filters = options.filters.get(partition.topic, ())
        owns_store = knows_offsets(options, session, partition, counted)
        if only_types is not None and not owns_store:  # a filter would take the rows' offsets away
            filters = tuple(sorted(only_types & set(filters) if filters else only_types))
            if not filters:
                continue
        known = ids.get(partition, UNKNOWN_IDS)
        if filters:
            known = known._replace(last=None)  # the broker may leave that one out
        planned.append((RangeToRead(partition, start, end, owns_store, filters, known), snapshots[partition]))
    rows = RowFormat(
        options.msg_time_zone,
        options.corrupt_messages,
        {topic: frozenset(types) for topic, types in options.filters.items()},
        options.message_format,
        options.max_unpacked,
    )
    sizes = [(one.end - one.start) // UNIT for one, _ in planned]
    return [
        TubeMQInputPartition(
            settings=options.client,
            group=options.group,
            claim=claim,
            ranges=tuple(group),
            visit_token=session.visit_token,
            claim_timeout=options.claim_timeout,
            rows=rows,
            topics=options.topics,
            filters=dict(options.filters),
            loss_policy=options.loss_policy,
        )
        for group in tasks(planned, sizes, options.partitions_per_task)
    ]


def knows_offsets(
    options: SourceOptions, session: ConsumerSession, partition: Partition, counted: Counted | None = None
) -> bool:
    """Return True if the rows of the partition have an offset: it owns its store, and no filter is set. `counted` are
    the stores that were found to have one partition before, None to look at the cluster as it is now."""
    if counted is None:
        counted = counted_stores(session, [partition])
    return partition.broker_id in counted.get(partition.topic, ()) and partition.topic not in options.filters


def counted_stores(session: ConsumerSession, partitions: Iterable[Partition]) -> Counted:
    """Return the brokers, by topic, on which one of `partitions` owns its store, as the cluster is now."""
    found: dict[str, set[int]] = {}
    for partition in partitions:
        if session.cluster.owns_store(partition):
            found.setdefault(partition.topic, set()).add(partition.broker_id)
    return {topic: frozenset(brokers) for topic, brokers in found.items()}
