# SPDX-License-Identifier: Apache-2.0
"""Administration of the embedded cluster: topics, consumer groups and flow rules, as the masters' admin API changes
them on a real one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection
from typing import TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.testing.broker.flow_control import parse_data_limits
from tubemq_spark.testing.broker.group_offsets import Key
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.catalog import Catalog, FlowRule, TopicLayout
from tubemq_spark.testing.deployment import deploy
from tubemq_spark.testing.servers import Server, Servers

T = TypeVar("T")


class Administration:
    """What an administrator can do. Every method runs on the servers' thread and may be called from any other."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._spread = itertools.count()  # for the round-robin of `_target`
        self._rule_ids = itertools.count(1)  # of flow rules and of orders to consume from the latest

    @property
    def topics(self) -> list[str]:
        return self._on_thread(lambda: sorted(self._catalog.topics))

    def create_topic(
        self,
        name: str,
        partitions: int = 3,
        stores: int = 1,
        *,
        max_msg_size: int | None = None,
        brokers: Collection[int] | None = None,
    ) -> None:
        """Create a topic on every broker, or on `brokers`, with `stores` stores of `partitions` partitions each.

        A topic that exists grows to these numbers. `max_msg_size` is in bytes, by default the cluster's.
        """
        if re.fullmatch(r"[a-zA-Z]\w{0,63}", name, re.ASCII) is None:
            raise ConfigError(
                f"the topic name {name!r} must start with a letter and have 1 to 64 letters, digits and _"
            )
        if partitions < 1 or stores < 1:
            raise ConfigError(f"topic {name} needs at least one partition and one store, not {partitions} and {stores}")
        if brokers is not None and not brokers:
            raise ConfigError(f"topic {name} needs at least one broker")

        def create() -> None:
            for broker_id in self._servers.brokers if brokers is None else brokers:
                deploy(self._servers, name, broker_id, partitions, stores, max_msg_size)

        self._on_thread(create)

    def close_topic(self, name: str, *, publish: bool = True, subscribe: bool = True) -> None:
        """Close the topic for producers, consumers or both, until `open_topic`."""
        self._set_access(name, publish=not publish, subscribe=not subscribe)

    def open_topic(self, name: str) -> None:
        self._set_access(name, publish=True, subscribe=True)

    def delete_topic(self, name: str) -> None:
        """Delete the topic with all its messages; the groups keep their offsets."""

        def delete() -> None:
            self._layouts(name)
            del self._catalog.topics[name]
            for broker in self._servers.brokers.values():
                broker.service.stores.drop_topic(name)

        self._on_thread(delete)

    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Return the group's confirmed position; None when it has none there."""

        def confirmed() -> int | None:
            self._target(topic, f"{broker_id}:{partition}")
            return self._servers.broker(broker_id).service.offsets.confirmed(Key(group, topic, partition))

        return self._on_thread(confirmed)

    def move_group(self, group: str, topic: str, broker_id: int, partition: int, position: int) -> None:
        """Set the group's confirmed position, whichever client reads there: the next fetch begins at it."""

        def move() -> None:
            self._target(topic, f"{broker_id}:{partition}")
            broker = self._servers.broker(broker_id).service
            store = broker.stores.get(topic, partition // STORE_PARTITION_BASE)
            within = 0 if store is None else max(store.min_offset, min(position, store.max_offset))
            broker.offsets.move(Key(group, topic, partition), within)

        self._on_thread(move)

    def remove_group(self, group: str, broker_id: int | None = None) -> None:
        """Delete the group's positions on all brokers or on one."""

        def remove() -> None:
            for broker in self._chosen(broker_id):
                broker.service.offsets.remove(group)

        self._on_thread(remove)

    def authorize(self, topic: str, *groups: str) -> None:
        """Let only groups that were named here read the topic; remove these from its blacklist."""

        def change() -> None:
            self._layouts(topic)
            rules = self._catalog.rules
            rules.authorized.setdefault(topic, set()).update(groups)
            rules.blacklist -= {(topic, group) for group in groups}

        self._on_thread(change)

    def revoke(self, topic: str, group: str) -> None:
        """Put the group on the topic's blacklist."""

        def change() -> None:
            self._layouts(topic)
            self._catalog.rules.blacklist.add((topic, group))
            self._catalog.rules.authorized.get(topic, set()).discard(group)

        self._on_thread(change)

    def restrict(self, topic: str, group: str, *msg_types: str) -> None:
        """Let the group read only these types of the topic, which must be under authorisation.

        Without types the restriction ends.
        """

        def change() -> None:
            self._layouts(topic)
            if topic not in self._catalog.rules.authorized:
                raise ConfigError(f"topic {topic} is not under authorisation: call authorize({topic!r}, …) first")
            if msg_types:
                self._catalog.rules.filters[topic, group] = frozenset(msg_types)
            else:
                self._catalog.rules.filters.pop((topic, group), None)

        self._on_thread(change)

    def consume_from_max(self, group: str) -> None:
        """Order the group to continue at the latest message.

        Clients that support the order (Java's with client-side balance) follow it at their next heartbeat.
        """

        def change() -> None:
            self._catalog.rules.from_max[group] = next(self._rule_ids)

        self._on_thread(change)

    def set_flow_rule(self, info: str, group: str | None = None, *, qry_priority_id: int = 301) -> None:
        """Set the default flow rule or that of a group; `info` is JSON as the admin API takes it."""
        try:
            parse_data_limits(info)
        except ValueError as error:
            raise ConfigError(str(error)) from None

        def change() -> None:
            rule = FlowRule(next(self._rule_ids), info, qry_priority_id)
            if group is None:
                self._catalog.default_flow = rule
            else:
                self._catalog.group_flows[group] = rule

        self._on_thread(change)

    @property
    def _catalog(self) -> Catalog:
        return self._servers.catalog

    def _on_thread(self, function: Callable[[], T]) -> T:
        return self._servers.host.call(function)

    def _set_access(self, topic: str, *, publish: bool, subscribe: bool) -> None:
        def change() -> None:
            for layout in self._layouts(topic).values():
                layout.accept_publish, layout.accept_subscribe = publish, subscribe

        self._on_thread(change)

    # The following run on the servers' thread.

    def _layouts(self, topic: str) -> dict[int, TopicLayout]:
        try:
            return self._catalog.topics[topic]
        except KeyError:
            raise ConfigError(f"there is no topic {topic!r}: create it with create_topic") from None

    def _chosen(self, broker_id: int | None) -> list[Server[BrokerService]]:
        return list(self._servers.brokers.values()) if broker_id is None else [self._servers.broker(broker_id)]

    def _target(self, topic: str, partition: int | str | None) -> tuple[int, int]:
        """Return broker id and partition id; without `partition` the next one on a running broker, round-robin."""
        layouts = self._layouts(topic)
        targets = [(n, p) for n, layout in sorted(layouts.items()) for p in layout.partition_ids]
        if partition is None:
            running = [target for target in targets if self._servers.broker(target[0]).is_open]
            if not running:
                raise ConfigError(f"all brokers of topic {topic} are down: start one with start_broker")
            return running[next(self._spread) % len(running)]
        broker_text, _, partition_text = str(partition).rpartition(":")
        try:
            target = int(broker_text or min(layouts)), int(partition_text)
        except ValueError:
            raise ConfigError(f"{partition!r} is neither a partition id nor brokerId:partitionId") from None
        if target not in targets:
            known = ", ".join(f"{n}:{p}" for n, p in targets)
            raise ConfigError(f"topic {topic} has no partition {partition!r}; it has {known}")
        return target
