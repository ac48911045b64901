# SPDX-License-Identifier: Apache-2.0
"""Administration of the embedded cluster: topics, consumer groups and flow rules, as the masters' admin API changes
them on a real one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection
from typing import Concatenate, ParamSpec, TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import TOPIC_NAME
from tubemq_spark.testing.broker.flow_control import parse_data_limits
from tubemq_spark.testing.broker.group_offsets import Key
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.catalog import FlowRule, TopicLayout
from tubemq_spark.testing.servers import Server, Servers

A = TypeVar("A", bound="Administration")
P = ParamSpec("P")
T = TypeVar("T")


def on_thread(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[A, P], T]:
    """Run a method of `Administration` on the servers' thread, whichever thread calls it."""

    @functools.wraps(method)
    def run(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._on_thread(lambda: method(self, *args, **kwargs))

    return run


class Administration:
    """What an administrator can do. Every method runs on the servers' thread and may be called from any other."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._catalog = servers.catalog
        self._spread = itertools.count()  # for the round-robin of `_target`
        self._rule_ids = itertools.count(1)  # of flow rules and of orders to consume from the latest

    @property
    @on_thread
    def topics(self) -> list[str]:
        return sorted(self._catalog.topics)

    @on_thread
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

        A topic that exists grows to these numbers. `max_msg_size` is in bytes, by default the cluster's; for a topic
        that exists, it changes the limit.
        """
        if TOPIC_NAME.fullmatch(name) is None:
            raise ConfigError(
                f"the topic name {name!r} must start with a letter and have 1 to 64 letters, digits and _"
            )
        if partitions < 1 or stores < 1:
            raise ConfigError(f"topic {name} needs at least one partition and one store, not {partitions} and {stores}")
        if brokers is not None and not brokers:
            raise ConfigError(f"topic {name} needs at least one broker")
        wanted = self._servers.brokers if brokers is None else brokers
        for broker_id in wanted:
            self._servers.broker(broker_id)  # raises before one broker has the topic
        for broker_id in wanted:
            before = self._catalog.layout(name, broker_id) or TopicLayout(partitions, stores)
            self._servers.deploy(name, broker_id, before.grown(partitions, stores, max_msg_size))

    def close_topic(self, name: str, *, publish: bool = True, subscribe: bool = True) -> None:
        """Close the topic for producers, consumers or both, until `open_topic`."""
        self._set_access(name, publish=not publish, subscribe=not subscribe)

    def open_topic(self, name: str) -> None:
        self._set_access(name, publish=True, subscribe=True)

    @on_thread
    def delete_topic(self, name: str) -> None:
        """Delete the topic with all its messages; the groups keep their offsets."""
        self._layouts(name)
        for broker_id in self._servers.brokers:
            self._servers.undeploy(name, broker_id)

    @on_thread
    def group_offset(self, group: str, topic: str, broker_id: int, partition: int) -> int | None:
        """Return the group's confirmed position; None when it has none there."""
        self._target(topic, f"{broker_id}:{partition}")
        return self._servers.broker(broker_id).service.offsets.confirmed(Key(group, topic, partition))

    @on_thread
    def move_group(self, group: str, topic: str, broker_id: int, partition: int, position: int) -> None:
        """Set the group's confirmed position, whichever client reads there: the next fetch begins at it."""
        self._target(topic, f"{broker_id}:{partition}")
        broker = self._servers.broker(broker_id).service
        low, high = broker.stores.extent(topic, partition)
        broker.offsets.move(Key(group, topic, partition), max(low, min(position, high)))

    @on_thread
    def remove_group(self, group: str, broker_id: int | None = None) -> None:
        """Delete the group's positions on all brokers or on one."""
        for broker in self._chosen(broker_id):
            broker.service.offsets.remove(group)

    @on_thread
    def authorize(self, topic: str, *groups: str) -> None:
        """Let only groups that were named here read the topic; remove these from its blacklist."""
        self._layouts(topic)
        rules = self._catalog.rules
        rules.authorised_topics.add(topic)
        rules.may_consume |= {(topic, group): True for group in groups}

    @on_thread
    def revoke(self, topic: str, group: str) -> None:
        """Put the group on the topic's blacklist."""
        self._layouts(topic)
        self._catalog.rules.may_consume[topic, group] = False

    @on_thread
    def restrict(self, topic: str, group: str, *msg_types: str) -> None:
        """Let the group read only these types of the topic, which must be under authorisation.

        Without types the restriction ends.
        """
        self._layouts(topic)
        if topic not in self._catalog.rules.authorised_topics:
            raise ConfigError(f"topic {topic} is not under authorisation: call authorize({topic!r}, …) first")
        if msg_types:
            self._catalog.rules.filters[topic, group] = frozenset(msg_types)
        else:
            self._catalog.rules.filters.pop((topic, group), None)

    @on_thread
    def consume_from_max(self, group: str) -> None:
        """Order the group to continue at the latest message.

        Clients that support the order (Java's with client-side balance) follow it at their next heartbeat.
        """
        self._catalog.rules.from_max[group] = next(self._rule_ids)

    @on_thread
    def set_flow_rule(self, info: str, group: str | None = None, *, qry_priority_id: int = 301) -> None:
        """Set the default flow rule or that of a group; `info` is JSON as the admin API takes it."""
        parse_data_limits(info)  # refuses wrong ones
        rule = FlowRule(next(self._rule_ids), info, qry_priority_id)
        if group is None:
            self._catalog.default_flow = rule
        else:
            self._catalog.group_flows[group] = rule

    def _on_thread(self, function: Callable[[], T]) -> T:
        return self._servers.host.call(function)

    @on_thread
    def _set_access(self, topic: str, *, publish: bool, subscribe: bool) -> None:
        for layout in self._layouts(topic).values():
            layout.accept_publish, layout.accept_subscribe = publish, subscribe

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
