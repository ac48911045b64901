# SPDX-License-Identifier: Apache-2.0
"""Finds messages whose data files retention has removed, and not yet their index files.

Both have segments of their own, so the index lasts longer where messages have more than about 1.5 kB. A broker passes
over the entries without a word (wire: MsgFileStore), so a read from there would miss messages without an error. Later
batches of a stream notice it, because the last message that it has read is gone as well (`truncation_check`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.bound import GROUP
from tubemq_spark.source.options import SourceOptions

_SAMPLE = 32  # partitions of a store that are probed first: most often one of them has a message before the start


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
        if extents[store].begin < start:
            starts[store] = min(start, starts.get(store, start))

    def empty(spans: Mapping[Store, tuple[int, int]], most: int | None = None) -> list[Store]:
        """Return the stores without a message in their span. `most` is how many partitions of each store count."""
        has = prober.have_messages((one, *spans[store]) for store in spans for one in members[store][:most])
        return [store for store in spans if not any(has.get(one, True) for one in members[store][:most])]

    suspects: Collection[Store] = starts
    for most in (_SAMPLE, None):
        suspects = empty({store: (extents[store].begin, starts[store]) for store in suspects}, most)
    # A message at the start itself has data.
    suspects = empty({store: (starts[store], starts[store] + UNIT) for store in suspects})
    return {store: _first_position(prober, members[store], starts[store], extents[store].end) for store in suspects}


def _first_position(prober: Prober, partitions: Sequence[Partition], low: int, end: int) -> int:
    """Return the position of the store's first message in [low, end), or `end`. All its `partitions` may have it, and
    messages may have come since the store ended at `end`."""
    candidates = list(partitions)
    while candidates:  # each search leaves those that have an earlier message
        begin, behind = low, end + UNIT
        while behind - begin > UNIT:
            middle = begin + (behind - begin) // UNIT // 2 * UNIT
            has = prober.have_messages([(candidates[0], low, middle)]).get(candidates[0], True)
            begin, behind = (begin, middle) if has else (middle, behind)
        end = begin
        earlier = prober.have_messages((one, low, end) for one in candidates[1:])
        candidates = [one for one in candidates[1:] if earlier.get(one, True)]
    return end
