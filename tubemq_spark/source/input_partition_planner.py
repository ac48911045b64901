"""From ranges to Spark's input partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from tubemq_spark.client.cluster.master_client import ConsumerSession
from tubemq_spark.client.consumer.partition_reader import RangeToRead
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.consumer_lifecycle import ClaimId
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
    *,
    lenders: Mapping[Partition, str | None] = MappingProxyType({}),
    doubtful: Collection[Partition] = (),
    group_at: Mapping[Partition, int] = MappingProxyType({}),
    ids: Mapping[Partition, KnownIds] = MappingProxyType({}),
    only_types: frozenset[str] | None = None,
    counted: Counted | None = None,
) -> list[TubeMQInputPartition]:
    """Tasks that read `to_read` under claims derived from `claim`, taken from `lenders`, and verify what they read of
    `doubtful` partitions. A group that stands at `group_at` is left where a task finds it. `ids` are known of the
    messages of some ranges. Messages of other types than `only_types` need not come. `counted` is as for
    `knows_offsets`.
    """
    wanted = []
    for partition, (start, end) in to_read.items():
        filters = options.filters.get(partition.topic, ())
        sole = knows_offsets(options, session, partition, counted)
        if only_types is not None and not sole:  # a filter would take the rows' offsets away
            filters = tuple(sorted(only_types & set(filters) if filters else only_types))
            if not filters:
                continue
        known = ids.get(partition, UNKNOWN_IDS)
        if filters:
            known = known._replace(last=None)  # the broker may leave that one out
        wanted.append(
            RangeToRead(
                broker=session.broker(partition),
                partition=partition,
                start=start,
                end=end,
                sole=sole,
                flow_rules=session.flow_rules,
                filters=filters,
                lender=lenders.get(partition),
                verify=partition in doubtful,
                group_at=group_at.get(partition),
                ids=known,
                fail_on_data_loss=options.loss_policy.fail,
                advice=options.loss_policy.advice,
            )
        )
    rows = RowFormat(
        options.msg_time_zone,
        options.corrupt_messages,
        {topic: frozenset(types) for topic, types in options.filters.items()},
        options.message_format,
        options.max_unpacked,
    )
    sizes = [(one.end - one.start) // UNIT for one in wanted]
    return [
        TubeMQInputPartition(
            settings=options.client,
            group=options.group,
            claim=claim,
            wanted=group,
            visit_token=session.visit_token,
            claim_timeout=options.claim_timeout,
            rows=rows,
            topics=options.topics,
            filters=dict(options.filters),
        )
        for group in tasks(wanted, sizes, options.partitions_per_task)
    ]


def knows_offsets(
    options: SourceOptions, session: ConsumerSession, partition: Partition, counted: Counted | None = None
) -> bool:
    """Return True if the rows of the partition have an offset: it has its store for itself, and no filter is set.
    `counted` is what was decided about stores before, None to look at what the cluster has now."""
    if counted is None:
        counted = counted_stores(session, [partition])
    return partition.broker_id in counted.get(partition.topic, ()) and partition.topic not in options.filters


def counted_stores(session: ConsumerSession, partitions: Iterable[Partition]) -> Counted:
    """Of the topics and brokers of `partitions`, as the cluster has them now."""
    found: dict[str, set[int]] = {}
    for partition in partitions:
        if session.cluster.is_sole(partition):
            found.setdefault(partition.topic, set()).add(partition.broker_id)
    return {topic: frozenset(brokers) for topic, brokers in found.items()}
