# SPDX-License-Identifier: Apache-2.0
"""The topics and stores of one broker: look-ups by the names and numbers in requests, with the broker's error texts."""

from __future__ import annotations

from collections.abc import Callable

from tubemq_spark.protocol.constants import OFFSET_HISTORY, STORE_PARTITION_BASE
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing.broker.store import Store
from tubemq_spark.testing.catalog import Catalog, TopicLayout
from tubemq_spark.testing.dispatch import DeclinedError
from tubemq_spark.testing.request_checks import Field, required_text


class TopicStores:
    """Stores by topic and store number. A store is created when a request first reaches it."""

    def __init__(self, broker_id: int, catalog: Catalog) -> None:
        self._broker_id = broker_id
        self._catalog = catalog
        self._stores: dict[tuple[str, int], Store] = {}

    def get(self, topic: str, store_id: int) -> Store | None:
        return self._stores.get((topic, store_id))

    def extent(self, topic: str, partition_id: int) -> tuple[int, int]:
        """Return where the partition's store begins and ends; zeros for a store that no request has reached."""
        store = self.get(topic, partition_id // STORE_PARTITION_BASE)
        return (0, 0) if store is None else (store.min_offset, store.max_offset)

    def of_topic(self, topic: str) -> dict[int, Store]:
        """Return the topic's stores by number."""
        return {store_id: store for (name, store_id), store in self._stores.items() if name == topic}

    def resize(self, topic: str, layout: TopicLayout) -> None:
        """Apply the topic's new number of partitions or stores."""
        for store in self.of_topic(topic).values():
            store.set_layout(layout)

    def drop_topic(self, topic: str) -> None:
        """Delete the topic's files."""
        for key in [key for key in self._stores if key[0] == topic]:
            del self._stores[key]

    def clear(self) -> None:
        """Delete the files of all topics."""
        self._stores.clear()

    def each(self, act: Callable[[Store], None]) -> None:
        for store in self._stores.values():
            act(store)

    # -- look-ups for requests -----------------------------------------------------------------------------------

    def layout(self, name: str) -> tuple[str, TopicLayout]:
        """Return the trimmed topic name and its layout; `DeclinedError` when the broker does not have the topic."""
        topic = required_text(Field.TOPIC_NAME, name, self._catalog.config.release)
        layout = self._catalog.layout(topic, self._broker_id)
        if layout is None:
            raise DeclinedError(ErrCode.FORBIDDEN, f"topicName {topic} not existed, please check your configure")
        return topic, layout

    def layout_with(self, partition_id: int, name: str, *, produces: bool) -> tuple[str, TopicLayout]:
        """Return the same for a request that is declined unless the partition exists too."""
        if produces and name.strip() == OFFSET_HISTORY:
            raise DeclinedError(ErrCode.FORBIDDEN, f"topicName {OFFSET_HISTORY} does not allow producers to send data!")
        topic, layout = self.layout(name)
        if not layout.has_partition(partition_id):
            raise DeclinedError(
                ErrCode.FORBIDDEN, f"partitionId {topic}-{partition_id} not existed, please check your configure"
            )
        return topic, layout

    def open(self, topic: str, layout: TopicLayout, partition_id: int) -> Store:
        """Return the partition's store. Its number is not checked: a store that no list shows is created as well."""
        key = topic, max(partition_id, 0) // STORE_PARTITION_BASE
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = Store(layout, self._catalog.config, self._catalog.clock)
        return store
