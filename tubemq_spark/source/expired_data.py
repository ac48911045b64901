# SPDX-License-Identifier: Apache-2.0
"""Finds messages whose data files retention has removed, and not yet their index files.

Both have segments of their own, so the index lasts longer where messages have more than about 1.5 kB. A broker passes
over the entries without a word (wire: MsgFileStore), so a read from there would miss messages without an error. Later
batches of a stream notice it, because the last message that it has read is gone as well (`truncation_check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

    def ids_at(positions: Mapping[Store, int], most: int | None = None) -> dict[Store, dict[Partition, int | None]]:
        """Return the id of each partition's first message from a position on; nothing of a store if one is not clear.
        `most` is how many partitions of each store count."""
        found = prober.probe((one, at) for store, at in positions.items() for one in members[store][:most])
        ids: dict[Store, dict[Partition, int | None]] = {}
        for store, at in positions.items():
            results = {one: found.get((one, at)) for one in members[store][:most]}
            if None not in results.values():
                ids[store] = {one: result.first_id for one, result in results.items() if result is not None}
        return ids

    suspects = {store: extents[store].begin for store in starts}
    for most in (_SAMPLE, None):
        at_begin, at_start = ids_at(suspects, most), ids_at({store: starts[store] for store in suspects}, most)
        suspects = {
            store: at
            for store, at in suspects.items()
            if store in at_begin and store in at_start and _no_message_between(at_begin[store], at_start[store])
        }
    behind = ids_at({store: starts[store] + UNIT for store in suspects})
    return {
        store: _first_position(prober, at_start[store], starts[store], extents[store].end)
        for store in suspects
        if store in behind and _no_message_between(at_start[store], behind[store])
    }


def _no_message_between(ids: Mapping[Partition, int | None], later: Mapping[Partition, int | None]) -> bool:
    """Whether each partition's first message is the same from both positions on. `later` was asked for after `ids`, so
    a message that only `later` has came meanwhile, at the end of the store."""
    return all(first_id in (None, later[one]) for one, first_id in ids.items())


def _first_position(prober: Prober, first_ids: Mapping[Partition, int | None], low: int, end: int) -> int:
    """Return the position of the first message in [low, end), or `end`. `first_ids` are those of all partitions of the
    store from `low` on; some may have come since the store ended at `end`."""

    def have_none_before(position: int, partitions: Iterable[Partition]) -> list[bool]:
        places = [(one, position) for one in partitions]
        found = prober.probe(places)
        return [place in found and found[place].first_id == first_ids[place[0]] for place in places]

    candidates = [one for one, first_id in first_ids.items() if first_id is not None]
    while candidates:  # each search leaves those that have an earlier message
        begin, behind = low, end + UNIT
        while behind - begin > UNIT:
            middle = begin + (behind - begin) // UNIT // 2 * UNIT
            [has_none_before] = have_none_before(middle, candidates[:1])
            begin, behind = (middle, behind) if has_none_before else (begin, middle)
        end = begin
        candidates = [one for one, no in zip(candidates, have_none_before(end, candidates), strict=True) if not no]
    return end
