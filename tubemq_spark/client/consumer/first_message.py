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
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_FILES
from tubemq_spark.protocol.log_fingerprint import Fingerprint, Store
from tubemq_spark.protocol.metadata import Partition

_LOOKED_BACK = 4000  # entries
_CHECKED_BEFORE = 4  # entries
_SAMPLE = 8  # partitions of a store that are probed first: most often one of them has a message


def has_message_before(
    prober: Prober, members: Sequence[Partition], position: int, optional: Collection[Partition] = frozenset()
) -> bool:
    """Return whether one of `members`, all partitions of a store, has a message before `position`: in a few thousand
    entries before it, as far as a probe shows, or at the entry before it. Positions are bytes of the index. Raises as
    `messages_at`."""
    low = max(0, position - _LOOKED_BACK * UNIT)
    for several in (members[:_SAMPLE], members[_SAMPLE:]):
        if any(prober.have_messages([(one, low, position) for one in several], optional).values()):
            return True
    store = members[0].store
    return store in messages_at(prober, {store: position - UNIT}, {store: members}, optional)


def messages_at(
    prober: Prober,
    entries: Mapping[Store, int],
    members: Mapping[Store, Sequence[Partition]],
    optional: Collection[Partition] = frozenset(),
) -> dict[Store, Fingerprint]:
    """Return the message at each store's entry, which one of its `members`, all partitions of the store, has. A store
    without a message there is left out.

    Positions are bytes of the index. A broker may not serve the `optional` partitions yet; these have no messages then.
    Raises as `Prober.messages_at`.
    """
    messages: dict[Store, Fingerprint] = {}
    for first, last in ((0, _SAMPLE), (_SAMPLE, None)):
        left = [store for store in entries if store not in messages]
        places = {one: entries[store] for store in left for one in members[store][first:last]}
        for one, first_id in prober.messages_at(places, optional).items():
            if first_id is not None:
                messages[one.store] = Fingerprint(places[one], one.partition_id, first_id, 0)
    return messages


def at_first_messages(
    prober: Prober, cluster: Cluster, starts: Mapping[Partition, int]
) -> tuple[dict[Partition, int], dict[Store, Fingerprint]]:
    """Return `starts`, where each one at the begin of its store's index becomes the position of the store's first
    message; and the messages at begins of stores, as far as they are known. Retention removes files only, so a store
    that begins in memory lacks nothing. Raises as `messages_at`."""
    extents = {partition.store: extent for partition, extent in prober.extents(starts, READ_FILES).items()}
    begins = {one.store: at for one, at in starts.items() if at == extents[one.store].begin < extents[one.store].end}
    members = {one.store: cluster.store_members(one) or [one] for one in starts if one.store in begins}
    optional = {one for several in members.values() for one in several if one not in starts}
    found = messages_at(prober, begins, members, optional)
    first = {
        store: first_message(prober, members[store], begins[store], extents[store].end, optional)
        for store in begins.keys() - found.keys()
    }
    moved = {
        one: max(at, first.get(one.store, at)) if at == begins.get(one.store) else at for one, at in starts.items()
    }
    return moved, found


def first_message(
    prober: Prober, members: Sequence[Partition], low: int, end: int, optional: Collection[Partition] = frozenset()
) -> int:
    """Return the position of the first message of `members`, all partitions of a store, behind the entry at `low`,
    which has none; `end` if there is none before that. Raises as `messages_at`.

    Single entries are probed, because fetches from `low` would pass many entries without data before they come to a
    message. An entry that no broker delivers looks like one without data, so the entries before the found one are
    probed, too.
    """
    store = members[0].store
    begin, behind = low, end
    while behind - begin > UNIT:
        middle = begin + (behind - begin) // UNIT // 2 * UNIT
        if messages_at(prober, {store: middle}, {store: members}, optional):
            behind = middle
        else:
            begin = middle
    for entry in range(behind - UNIT, max(low, behind - _CHECKED_BEFORE * UNIT), -UNIT):
        if messages_at(prober, {store: entry}, {store: members}, optional):
            behind = entry
    return behind
