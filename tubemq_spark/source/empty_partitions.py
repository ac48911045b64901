"""Empty partitions: finds partitions without a message in a batch that has few entries of their store.

Partitions may share a store, and index entries do not say whose they are. So a range of a shared store concerns all
its partitions. If there are fewer entries than partitions, it is cheaper to count messages than to read all partitions.
The proof is a sum: if the partitions have as many messages from the start on as there are entries up to the end, and
the store still ends there, then every entry was counted. A partition with a count of zero has no message in the range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions


def without_messages(
    session: ConsumerSession, claims: DriverClaims, begin: Positions, ends: Positions
) -> frozenset[Partition]:
    """Return the partitions that are proven to have no message in [begin, ends). `claims` must hold all of `begin`."""
    stores: defaultdict[Store, list[Partition]] = defaultdict(list)
    for partition in begin:
        if partition in ends:
            stores[partition.store].append(partition)
    sparse = [partitions for partitions in stores.values() if _is_sparse(session, claims, begin, ends, partitions)]
    if not sparse:
        return frozenset()
    several = [partition for partitions in sparse for partition in partitions]
    found = Prober(session, claims).count_messages(several)
    empty: set[Partition] = set()
    for partitions in sparse:
        start, end = begin[partitions[0]], ends[partitions[0]]
        counts = {partition: found[partition] for partition in partitions if partition in found}
        are_all = len(counts) == len(partitions) and all(one.end == end for one in counts.values())
        if are_all and sum(one.messages for one in counts.values()) == (end - start) // UNIT:
            empty.update(partition for partition, one in counts.items() if not one.messages)
    return frozenset(empty)


def _is_sparse(
    session: ConsumerSession, claims: DriverClaims, begin: Positions, ends: Positions, partitions: Sequence[Partition]
) -> bool:
    """Return True if counting can prove something and costs less than reading: it takes two requests a partition,
    reading an empty partition takes ten."""
    first = partitions[0]
    start, end = begin[first], ends[first]
    entries = (end - start) // UNIT
    return (
        len(partitions) > 1
        and 0 < entries <= len(partitions) * 3 // 4
        and len(partitions) == session.cluster.partitions_in_store(first)
        and all(
            (begin[partition], ends[partition]) == (start, end) == claims.position(partition)
            for partition in partitions
        )
    )
