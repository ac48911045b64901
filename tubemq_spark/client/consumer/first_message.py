# SPDX-License-Identifier: Apache-2.0
"""Finds where the messages of a store begin.

Retention removes data files and index files separately, each by its own last message. So the index may begin with
entries whose messages are gone, above all where messages have more than about 1.4 kB. A broker passes over such entries
without a word, and reports the begin of the index as that of the store (wire: MsgFileStore).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_FILES
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition

_SAMPLE = 8  # partitions of a store that are probed first: most often one of them has a message


def stores_without_message(
    prober: Prober,
    spans: Mapping[Store, tuple[int, int]],
    members: Mapping[Store, Sequence[Partition]],
    optional: Collection[Partition] = frozenset(),
) -> list[Store]:
    """Return the stores none of whose `members`, all partitions of the store, has a message in its span, [begin, end).

    Positions are bytes of the index. A broker may not serve the `optional` partitions yet; these have no messages then.
    Raise `TransportError` if a broker gives no clear answer, else as `Prober.extents`.
    """
    left = list(spans)
    for first, last in ((0, _SAMPLE), (_SAMPLE, None)):
        asked = [(one, *spans[store]) for store in left for one in members[store][first:last]]
        has = prober.have_messages(asked, optional)
        if unclear := [str(one) for one, *_ in asked if one not in has and one not in optional]:
            raise TransportError(f"the brokers do not say for now which messages {', '.join(unclear)} have")
        found = {one.store for one, is_there in has.items() if is_there}
        left = [store for store in left if store not in found]
    return left


def has_message_before(
    prober: Prober, members: Sequence[Partition], position: int, optional: Collection[Partition] = frozenset()
) -> bool:
    """Return whether one of `members`, all partitions of a store, has a message before `position`. Raises as
    `stores_without_message`."""
    store = members[0].store
    return not stores_without_message(prober, {store: (0, position)}, {store: members}, optional)


def at_first_messages(prober: Prober, cluster: Cluster, starts: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return `starts`, where each one at the begin of its store's index becomes the position of the store's first
    message. Retention removes files only, so a store that begins in memory lacks nothing. Raises as
    `stores_without_message`."""
    extents = {partition.store: extent for partition, extent in prober.extents(starts, READ_FILES).items()}
    begins = {one.store: at for one, at in starts.items() if at == extents[one.store].begin < extents[one.store].end}
    members = {one.store: cluster.store_members(one) or [one] for one in starts if one.store in begins}
    optional = {one for several in members.values() for one in several if one not in starts}
    spans = {store: (at, at + UNIT) for store, at in begins.items()}
    first = {
        store: first_message(
            prober, [one for one in members[store] if one in starts], begins[store], extents[store].end
        )
        for store in stores_without_message(prober, spans, members, optional)
    }
    return {one: max(at, first.get(one.store, at)) if at == begins.get(one.store) else at for one, at in starts.items()}


def first_message(prober: Prober, members: Sequence[Partition], low: int, end: int) -> int:
    """Return the position of the store's first message in [low, end), or `end`. All its partitions, `members`, may have
    it. Messages may have come since the store ended at `end`. Raises as `Prober.extents`."""
    candidates = list(members)
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
