# SPDX-License-Identifier: Apache-2.0
"""Empty partitions: which partitions of a shared store have no message in a range of it.

Index entries do not say whose they are, so a range of a shared store concerns all its partitions. If it has few
entries, it is cheaper to count messages than to read all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tubemq_spark.client.cluster.cluster_metadata import Cluster, by_store
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions


def empty_partitions(
    prober: Prober, cluster: Cluster, begin: Positions, ends: Positions, log_ends: Positions
) -> frozenset[Partition]:
    """Return the partitions that are proven to have no message in [begin, ends).

    The proof is a sum: if the partitions of a store have as many messages from the start on as there are entries up to
    the end, and the store still ends there, then every entry was counted. Raises as `Prober.extents`.
    """
    sparse = [
        partitions
        for partitions in by_store(partition for partition in begin if partition in ends).values()
        if len(partitions) == len(cluster.store_members(partitions[0]))
        and _is_sparse(partitions, begin, ends, log_ends)
    ]
    if not sparse:
        return frozenset()
    places = {partition: begin[partition] for partitions in sparse for partition in partitions}
    found = prober.count_messages(places, {partition.store: ends[partition] for partition in places})
    empty: set[Partition] = set()
    for partitions in sparse:
        start, end = begin[partitions[0]], ends[partitions[0]]
        counts = {partition: found[partition] for partition in partitions if partition in found}
        if len(counts) == len(partitions) and sum(counts.values()) == (end - start) // UNIT:
            empty.update(partition for partition, count in counts.items() if not count)
    return frozenset(empty)


def _is_sparse(partitions: Sequence[Partition], begin: Positions, ends: Positions, log_ends: Positions) -> bool:
    """Return True if counting can prove something and costs less than reading: it takes two requests a partition,
    reading an empty partition takes eight."""
    start, end = begin[partitions[0]], ends[partitions[0]]
    entries = (end - start) // UNIT
    return (
        len(partitions) > 1
        and 0 < entries <= len(partitions) * 3 // 4
        and all((begin[one], ends[one], log_ends[one]) == (start, end, end) for one in partitions)
    )
