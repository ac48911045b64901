# SPDX-License-Identifier: Apache-2.0
"""The metadata cache of a session: the brokers and topics that the masters listed.

The lists of a master are short for a while after a failover, because its brokers register with it one by one. So the
registry only adds to its `cluster`, and knows by when (`complete_by`) a topic that exists must be listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import (
    Address,
    Broker,
    Partition,
    TopicOnBroker,
    check_brokers,
    check_sizes,
    parse_brokers,
    parse_layouts,
)  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """An immutable value: brokers by id, and the layout of each topic by (topic, broker id)."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    layouts: Mapping[tuple[str, int], TopicOnBroker] = field(default_factory=dict)

    def with_more(self, brokers: Mapping[int, Broker], layouts: Iterable[TopicOnBroker]) -> Cluster:
        """Return the union. Newer values replace older ones, but a topic never loses partitions on a broker.

        Raise `ProtocolError` if the union has more brokers or partitions than a cluster can have.
        """
        merged = dict(self.layouts)
        for layout in layouts:
            known = merged.get((layout.topic, layout.broker_id))
            if known is None or layout.stores * layout.partitions >= known.stores * known.partitions:
                merged[layout.topic, layout.broker_id] = layout
        known_brokers = {**self.brokers, **brokers}
        check_brokers(len(known_brokers), "; ".join(map(str, list(brokers.values())[:1])))
        check_sizes(merged.values())
        return Cluster(known_brokers, merged)

    @cached_property
    def _by_topic(self) -> Mapping[str, list[Partition]]:
        found: dict[str, list[Partition]] = {}
        for (topic, broker_id), layout in sorted(self.layouts.items(), key=itemgetter(0)):
            if broker_id in self.brokers:
                found.setdefault(topic, []).extend(layout.all_partitions())
        return found

    def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of `topic` on brokers whose address is known, ordered by broker and id."""
        return list(self._by_topic.get(topic, ()))

    def store_members(self, partition: Partition) -> list[Partition]:
        """Return the partitions that share the store of `partition`, itself included; none if the store is unknown."""
        layout = self.layouts.get((partition.topic, partition.broker_id))
        return [] if layout is None else layout.store_partitions(partition.store_id)

    def store_ids(self, partition: Partition) -> range:
        """Return the ids of the partitions that share the store of `partition`; none if the store is unknown."""
        members = self.store_members(partition)
        return range(members[0].partition_id, members[-1].partition_id + 1) if members else range(0)

    def owns_store(self, partition: Partition) -> bool:
        """Return True if no other partition shares the store of `partition`."""
        layout = self.layouts.get((partition.topic, partition.broker_id))
        return layout is not None and layout.partitions == 1

    def missing(self, topics: Iterable[str]) -> list[str]:
        """Return those of `topics` that have no partition here."""
        return [topic for topic in topics if not self.partitions(topic)]


def by_store(partitions: Iterable[Partition]) -> Mapping[Store, list[Partition]]:
    """Return those of the partitions that each store has."""
    stores: defaultdict[Store, list[Partition]] = defaultdict(list)
    for partition in partitions:
        stores[partition.store].append(partition)
    return stores


@dataclass(frozen=True)
class KnownTopics:
    """What one producer's session knows of `topics`, as plain values for a session in another process."""

    topics: frozenset[str]
    cluster: Cluster
    listed: Mapping[tuple[str, int], TopicOnBroker]
    max_message_size: int
    visit_token: int


class TopicRegistry:
    """`cluster` is the union of all lists, `listed` the last list of topics alone, by (topic, broker id)."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster()
        self.listed: Mapping[tuple[str, int], TopicOnBroker] = {}
        self.complete_by = float("-inf")  # on the monotonic clock
        self._settings = settings
        self._has_brokers = False  # whether the current master has listed its brokers

    def add_brokers(self, master: Address, brokers: Sequence[str]) -> None:
        """Add the brokers that `master` listed. Raise `ProtocolError` if the list cannot be used."""
        with _naming(master):
            listed = parse_brokers(brokers, self._settings.default_broker_port)
            reached = {broker.broker_id: broker for broker in self._settings.broker_addresses}
            self.cluster = self.cluster.with_more(
                {number: reached.get(number, listed[number]) for number in listed}, ()
            )
        self._has_brokers |= bool(brokers)

    def set_topics(self, master: Address, topics: Sequence[str], parse: Callable[[str], list[TopicOnBroker]]) -> None:
        """Replace `listed` by the list of `master`, and add it to `cluster`. Raise `ProtocolError` if the list cannot
        be used.
        """
        with _naming(master):
            layouts = parse_layouts(topics, parse)
            cluster = self.cluster.with_more({}, layouts)
        listed = {(layout.topic, layout.broker_id): layout for layout in layouts}
        if self.listed.keys() - listed.keys():
            self.expect_short_lists()
        # In this order: a thread that sees the new cluster must also see the new list.
        self.listed = listed
        self.cluster = cluster

    def adopt(self, known: KnownTopics) -> None:
        """Add what another session knows."""
        self.listed = {**known.listed, **self.listed}
        self.cluster = known.cluster.with_more(self.cluster.brokers, self.cluster.layouts.values())

    def keep_listed(self, topics: Collection[str]) -> None:
        """Drop all other topics from the last list, because the next one will not have them."""
        self.listed = {key: layout for key, layout in self.listed.items() if layout.topic in topics}

    def keep(self, topics: Collection[str]) -> None:
        """Drop the partitions of all other topics."""
        layouts = {key: layout for key, layout in self.cluster.layouts.items() if layout.topic in topics}
        if len(layouts) < len(self.cluster.layouts):
            self.cluster = Cluster(self.cluster.brokers, layouts)

    def forget_unlisted(self) -> None:
        """Drop the partitions that the last list does not have."""
        self.cluster = Cluster(self.cluster.brokers, self.listed)

    def lists(self, partition: Partition) -> bool:
        """Return True if the last list has `partition`."""
        layout = self.listed.get((partition.topic, partition.broker_id))
        return layout is not None and partition in layout.all_partitions()

    def lists_any(self, topic: str, broker_id: int | None = None) -> bool:
        """Return True if the last list has any partition of `topic`, on broker `broker_id` if one is given."""
        return any(topic == name and broker_id in (None, listed) for name, listed in self.listed)

    def expect_short_lists(self) -> None:
        """Allow the lists some time to fill up, because a master began to collect them."""
        timings = self._settings.timings
        self._has_brokers = False
        self.complete_by = self._settings.clock.monotonic() + min(timings.topic_lists_fill_up, self._settings.retry_for)

    @property
    def is_complete(self) -> bool:
        """True if all brokers have registered with the master. It knows the brokers from its configuration, and their
        topics from the brokers themselves.
        """
        return self._has_brokers and self.cluster.brokers.keys() <= {broker_id for _, broker_id in self.listed}

    def excludes_broker(self, broker_id: int) -> bool:
        """Return True if the current master has listed its brokers, and `broker_id` is none of them."""
        return self._has_brokers and broker_id not in self.cluster.brokers


@contextmanager
def _naming(master: Address) -> Iterator[None]:
    """Name `master` in a `ProtocolError` about its lists."""
    try:
        yield
    except ProtocolError as error:
        raise ProtocolError(
            f"the master {master} sent lists that cannot be used: {error}. Check that option 'tubemq.master' names the "
            "masters of a TubeMQ cluster, and what they list"
        ) from None
