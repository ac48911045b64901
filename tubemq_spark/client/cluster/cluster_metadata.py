"""The cluster's metadata as one immutable value: brokers with their addresses, topics with their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

from tubemq_spark.protocol.metadata import Broker, Partition, TopicOnBroker, check_brokers, check_sizes


@dataclass(frozen=True)
class Cluster:
    """Brokers by id, and the layout of each topic by (topic, broker id)."""

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

    def layout(self, partition: Partition) -> TopicOnBroker | None:
        """Return the layout of the partition's topic on the partition's broker, None if it is unknown."""
        return self.layouts.get((partition.topic, partition.broker_id))

    def partitions_in_store(self, partition: Partition) -> int:
        """Return how many partitions share the store of `partition`, itself included; 0 if the store is unknown."""
        layout = self.layout(partition)
        return layout.partitions if layout is not None and partition.store_id < layout.stores else 0

    def owns_store(self, partition: Partition) -> bool:
        """Return True if no other partition shares the store of `partition`."""
        layout = self.layout(partition)
        return layout is not None and layout.partitions == 1

    def missing(self, topics: Iterable[str]) -> list[str]:
        """Return those of `topics` that have no partition here."""
        return [topic for topic in topics if not self.partitions(topic)]
