# SPDX-License-Identifier: Apache-2.0
"""Cluster metadata: the lists of brokers and topics that a master returns, with the texts and ids of its replies.

wire: DefBrokerRunManager, BrokerTopicInfoView, TMaster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tubemq_spark.protocol.constants import BROKER_PORT, BROKER_TLS_PORT, OFFSET_HISTORY
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing.catalog import BrokerEntry, Catalog, TopicLayout
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.java import hash_order


class MetadataLists:
    """The deployment as one master lists it. A master that has just become active lists no broker for a while."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._clock = catalog.clock
        self._release = catalog.config.release
        self._filled_at = self._clock.now()
        self._known: tuple[list[str], list[str]] = ([], [])
        self._list_id = self._clock.wall_ms()

    def forget(self, fill_after: float) -> None:
        """List no brokers, and nothing on them, for `fill_after` seconds."""
        self._filled_at = self._clock.now() + fill_after
        self._known = ([], [])
        self._list_id = self.new_id(self._list_id)

    def new_id(self, last: int) -> int:
        """Return an id for a changed list (wire: SerialIdUtils)."""
        now = self._clock.wall_ms()
        return now if now > last else last + 10

    @property
    def deployed(self) -> Collection[str]:
        """The topics of all brokers, running or not."""
        return [OFFSET_HISTORY, *(topic for topic, layouts in self._catalog.topics.items() if layouts)]

    def brokers(self, tls: bool) -> tuple[int, list[str]]:
        """Return the list's id, and the texts of all configured brokers.

        One id covers plain and TLS lists, and changes with either.
        """
        entries = self._entries()
        blank_tls = BROKER_PORT if self._release is Release.V1_2 else BROKER_TLS_PORT
        lists = (
            [_broker_text(_broker(entry, tls=False), BROKER_PORT) for entry in entries],
            [_broker_text(_broker(entry, tls=True), blank_tls) for entry in entries],
        )
        if lists != self._known:
            self._known = lists
            self._list_id = self.new_id(self._list_id)
        return self._list_id, lists[tls]

    def broker(self, broker_id: int, *, tls: bool = False) -> Broker | None:
        """Return a running broker with the port for clients; None when it does not run."""
        entry = self._running(broker_id)
        return None if entry is None else _broker(entry, tls)

    def producer_topics(self, topics: Iterable[str]) -> list[str]:
        """Return one text for each of `topics` that accepts messages on some broker."""
        texts = []
        for topic in hash_order(topics):
            layouts = [
                f"{entry.broker_id}:{layout.partitions}:{layout.stores}"
                for entry, layout in self._on_running(topic)
                if entry.accept_publish and layout.accept_publish
            ]
            if layouts:
                size = "" if self._release is Release.V1_2 else f"#{self._topic_size(topic)}"
                texts.append(f"{topic}#{','.join(layouts)}{size}")
        return texts

    def consumer_topics(self, topics: Iterable[str], group: str) -> dict[str, str]:
        """Return the text of each deployed one of `topics`, readable now or not."""
        keys = [f"{broker_id}:{topic}" for topic in topics for broker_id in self._catalog.layouts(topic)]
        found: dict[str, list[str]] = {}
        for key in hash_order(keys):
            broker_id, topic = key.split(":", 1)
            layout = self._catalog.layouts(topic)[int(broker_id)]
            of_topic = found.setdefault(topic, [])
            available = self._is_readable(int(broker_id), layout) and not self._catalog.rules.is_disabled(topic, group)
            if self._release is Release.V1_2:
                # Its builder never resets the status: all brokers after an available one count as available.
                available = available or any(text.endswith(":1") for text in of_topic)
            of_topic.append(f"{broker_id}:{layout.stores}:{layout.partitions}:{int(available)}")
        return {topic: f"{topic}#{','.join(layouts)}" for topic, layouts in found.items()}

    def subscribable(self, topic: str) -> list[Partition]:
        """Return the partitions of `topic` that the master may assign to members."""
        return [
            Partition(entry.broker_id, topic, partition_id)
            for entry, layout in self._on_running(topic)
            if entry.accept_subscribe and layout.accept_subscribe
            for partition_id in layout.partition_ids
        ]

    def _entries(self) -> list[BrokerEntry]:
        if self._clock.now() < self._filled_at:
            return []
        return [self._catalog.brokers[broker_id] for broker_id in hash_order(self._catalog.brokers)]

    def _running(self, broker_id: int) -> BrokerEntry | None:
        entry = self._catalog.brokers.get(broker_id)
        return entry if entry is not None and entry.online and self._clock.now() >= self._filled_at else None

    def _on_running(self, topic: str) -> list[tuple[BrokerEntry, TopicLayout]]:
        layouts = self._catalog.layouts(topic)
        found = [(self._running(broker_id), layouts[broker_id]) for broker_id in hash_order(layouts)]
        return [(entry, layout) for entry, layout in found if entry is not None]

    def _is_readable(self, broker_id: int, layout: TopicLayout) -> bool:
        entry = self._running(broker_id)
        if entry is None or not layout.accept_subscribe:
            return False
        return entry.accept_subscribe or self._release is Release.V1_2  # which checks the topic only

    def _topic_size(self, topic: str) -> int | str:
        """Return the topic's own limit; nothing when the cluster's applies."""
        size = self._catalog.max_msg_size(topic)
        return "" if size == self._catalog.config.max_msg_size else size


def _broker(entry: BrokerEntry, tls: bool) -> Broker:
    port = (entry.tls_port or BROKER_TLS_PORT) if tls else entry.port
    return Broker(entry.broker_id, Address(entry.host, port))


def _broker_text(broker: Broker, default_port: int) -> str:
    """Return the text of a broker. The port is blank if it is the reader's default."""
    port = " " if broker.address.port == default_port else str(broker.address.port)
    return f"{broker.broker_id}:{broker.address.host}:{port}"
