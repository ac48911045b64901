"""What is deployed on the cluster: the brokers, the topics on each of them, and what groups may do.

The masters hand it out, the brokers go by it, and the methods of `EmbeddedTubeMQ` change it as the admin API would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tubemq_spark.protocol.constants import STORE_PARTITION_BASE

OFFSET_HISTORY = "__offset_history__"
"""The brokers' own topic: on each of them, and open to readers only."""


@dataclass
class TopicLayout:
    """One topic on one broker."""

    partitions: int  # of each store
    stores: int
    max_msg_size: int | None = None  # bytes; None: the cluster's
    accept_publish: bool = True
    accept_subscribe: bool = True

    @property
    def partition_ids(self) -> list[int]:
        return [s * STORE_PARTITION_BASE + p for s in range(self.stores) for p in range(self.partitions)]


@dataclass
class BrokerEntry:
    """A broker as the masters list it. `online` is False while it does not answer the masters."""

    broker_id: int
    host: str
    port: int
    tls_port: int | None = None
    online: bool = True
    accept_publish: bool = True
    accept_subscribe: bool = True


@dataclass
class GroupRules:
    """What the admin API holds about consumer groups.

    `authorized` has the topics under authorisation, with the groups that may read each. `filters` restricts a group
    on a topic to some msgTypes. All pairs are (topic, group).
    """

    authorized: dict[str, set[str]] = field(default_factory=dict)
    blacklist: set[tuple[str, str]] = field(default_factory=set)
    filters: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    from_max: dict[str, int] = field(default_factory=dict)  # group -> id of its order to jump to the latest; they grow

    def is_disabled(self, topic: str, group: str) -> bool:
        """Whether `group` is kept from `topic` although it may ask."""
        return (topic, group) in self.blacklist


@dataclass(frozen=True)
class FlowRule:
    """A flow rule as the admin API takes it: its JSON text, and the read policy that goes with it."""

    rule_id: int
    info: str = "[]"
    qry_priority_id: int = 301


@dataclass
class Catalog:
    brokers: dict[int, BrokerEntry] = field(default_factory=dict)
    topics: dict[str, dict[int, TopicLayout]] = field(default_factory=dict)  # topic -> broker id -> layout
    rules: GroupRules = field(default_factory=GroupRules)
    default_flow: FlowRule | None = None
    group_flows: dict[str, FlowRule] = field(default_factory=dict)

    def layouts(self, topic: str) -> Mapping[int, TopicLayout]:
        """How each broker holds the topic; nothing for one that is not deployed."""
        if topic == OFFSET_HISTORY:
            return {broker_id: TopicLayout(partitions=10, stores=1) for broker_id in self.brokers}
        return self.topics.get(topic, {})

    def layout(self, topic: str, broker_id: int) -> TopicLayout | None:
        """How the broker holds the topic, None when it does not."""
        if topic == OFFSET_HISTORY:
            return self.layouts(topic).get(broker_id)
        return self.topics.get(topic, {}).get(broker_id)
