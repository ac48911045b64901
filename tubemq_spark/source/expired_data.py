# SPDX-License-Identifier: Apache-2.0
"""Finds messages whose data files retention has removed, and not yet their index files.

Both have segments of their own, so the index lasts longer where messages have more than about 1.5 kB. A broker passes
over the entries without a word (wire: MsgFileStore), so a read from there would miss messages without an error. Later
batches of a stream notice it, because the last message that it has read is gone as well (`truncation_check`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.bound import GROUP
from tubemq_spark.source.options import SourceOptions

_MOST_PARTITIONS = 32  # of a store that is checked: each of them is probed


def without_expired(
    starts: Mapping[Partition, int], options: SourceOptions, session: ConsumerSession, prober: Prober
) -> dict[Partition, int]:
    """Return `starts`, behind expired messages at positions of the user or the group. Report the loss of these to the
    loss policy. Raises as `Prober.extents`."""
    places = options.starting.of(starts)
    asked = {one: at for one, at in starts.items() if isinstance(places[one], int) or places[one] == GROUP}
    first = _first_positions(prober, session.cluster, asked) if asked else {}
    behind = {one: first[one.store] for one, start in asked.items() if start < first.get(one.store, start)}
    for partition, position in behind.items():
        lost = f"[{asked[partition]}, {position})"
        text = f"{partition}: retention removed the messages in {lost}, and not yet their index entries"
        options.loss_policy.report(loss_of(partition, text, asked=asked[partition], offered=position))
    return {**starts, **behind}


def _first_positions(prober: Prober, cluster: Cluster, asked: Mapping[Partition, int]) -> dict[Store, int]:
    """Return the first message's position for each store that has no message at the least position of `asked`, nor
    before it. The latter, because an entry that no broker delivers looks like one without data."""
    extents = {partition.store: extent for partition, extent in prober.extents(asked).items()}
    members = {partition.store: cluster.store_members(partition) for partition in asked}
    starts: dict[Store, int] = {}
    for partition, start in asked.items():
        store = partition.store
        if extents[store].begin < start and len(members[store]) <= _MOST_PARTITIONS:
            starts[store] = min(start, starts.get(store, start))

    def ids_at(positions: Mapping[Store, int]) -> dict[Store, list[int | None]]:
        """Return the ids of the first messages from a position on in each partition; no list if one is not clear."""
        found = prober.probe((one, at) for store, at in positions.items() for one in members[store])
        answered = {
            store: [found[one, at] for one in members[store] if (one, at) in found] for store, at in positions.items()
        }
        return {
            store: [result.first_id for result in results]
            for store, results in answered.items()
            if len(results) == len(members[store])
        }

    def first_position(store: Store, extent: Extent) -> int:
        low, high = starts[store], extent.end
        while high - low > UNIT:
            middle = low + (high - low) // UNIT // 2 * UNIT
            low, high = (middle, high) if ids_at({store: middle}).get(store) == ids[store] else (low, middle)
        return high if all(one is None for one in ids[store]) else low

    ids, behind = ids_at(starts), ids_at({store: start + UNIT for store, start in starts.items()})
    suspects = {store: extents[store] for store in starts if store in ids and ids[store] == behind.get(store)}
    oldest = ids_at({store: extent.begin for store, extent in suspects.items()})
    return {
        store: first_position(store, extent) for store, extent in suspects.items() if oldest.get(store) == ids[store]
    }
