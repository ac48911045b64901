# SPDX-License-Identifier: Apache-2.0
"""What all servers of a cluster share: its configuration, its time, and its visit tokens.

Masters serve the configuration to clients, brokers follow it, and `Administration` changes it as the admin API does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tubemq_spark.protocol.constants import OFFSET_HISTORY, STORE_PARTITION_BASE
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig

HISTORY_PARTITIONS = 10  # of the brokers' own topic
_KEPT_BY_BROKERS = 6  # visit tokens


@dataclass
class TopicLayout:
    """The partitions and settings of one topic on one broker."""

    partitions: int  # in each store
    stores: int
    max_msg_size: int | None = None  # bytes; None: that of the cluster
    accept_publish: bool = True
    accept_subscribe: bool = True
    delete_policy: str = "delete,168h"  # what clients are told; `expire` deletes messages

    def grown(self, partitions: int, stores: int, max_msg_size: int | None = None) -> TopicLayout:
        """Return a layout with at least these numbers. None keeps the limit of messages."""
        limit = self.max_msg_size if max_msg_size is None else max_msg_size
        return replace(
            self, partitions=max(partitions, self.partitions), stores=max(stores, self.stores), max_msg_size=limit
        )

    @property
    def partition_ids(self) -> list[int]:
        return [s * STORE_PARTITION_BASE + p for s in range(self.stores) for p in range(self.partitions)]

    def has_partition(self, partition_id: int) -> bool:
        """Return True if a store has the partition; brokers check its number within the store only."""
        within = partition_id if partition_id < STORE_PARTITION_BASE else partition_id % STORE_PARTITION_BASE
        return 0 <= within < self.partitions


@dataclass
class BrokerEntry:
    """A broker in the masters' list. `online` is False while the masters miss its heartbeats."""

    broker_id: int
    host: str
    port: int
    tls_port: int | None = None
    online: bool = True
    accept_publish: bool = True
    accept_subscribe: bool = True


@dataclass
class GroupRules:
    """Access rules for consumer groups, as the admin API sets them.

    A group reads a topic of `authorised_topics` if `may_consume` has it with True, another topic unless it has it with
    False: that is the topic's black list. `filters` restricts a group to some msgTypes. Pairs are (topic, group).
    """

    authorised_topics: set[str] = field(default_factory=set)
    may_consume: dict[tuple[str, str], bool] = field(default_factory=dict)
    filters: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    from_max: dict[str, int] = field(default_factory=dict)  # group -> id of its last order, growing

    def is_disabled(self, topic: str, group: str) -> bool:
        """Return True if `group` may subscribe to `topic` but receives no partitions of it."""
        return self.may_consume.get((topic, group)) is False


@dataclass(frozen=True)
class FlowRule:
    """A flow rule of the admin API: its JSON text and its read policy."""

    rule_id: int
    info: str = "[]"
    qry_priority_id: int = 301


class VisitTokens:
    """The tokens that clients receive from the masters and show to the brokers; each is its creation time in ms.

    The masters create one after each four fifths of `visit_token_valid_period`. Clients receive the last but one, which
    every broker knows by then (wire: SimpleVisitTokenManager).
    """

    def __init__(self, clock: Clock, config: ServerConfig) -> None:
        self._clock = clock
        self._period = config.visit_token_valid_period * 4 / 5
        self._next = clock.now() + self._period
        self._tokens = [clock.wall_ms()]

    @property
    def current(self) -> int:
        """The token that clients receive now."""
        self._rotate()
        return self._tokens[-2] if len(self._tokens) > 1 else self._tokens[0]

    @property
    def accepted(self) -> tuple[int, ...]:
        """The tokens that brokers accept now, oldest first."""
        self._rotate()
        return tuple(self._tokens)

    def rotate(self) -> None:
        """Create the next token now; the one after it follows a whole period later."""
        self._rotate()
        self._next = self._clock.now()
        self._rotate()

    def _rotate(self) -> None:
        now = self._clock.now()
        while now >= self._next:
            made = self._clock.wall_ms() - int((now - self._next) * 1000)
            self._tokens = [*self._tokens, max(made, self._tokens[-1] + 1)][-_KEPT_BY_BROKERS:]
            self._next += self._period


@dataclass
class Catalog:
    """The cluster's settings and clock, its brokers, the topics on each of them, and rules for consumer groups."""

    config: ServerConfig
    clock: Clock
    brokers: dict[int, BrokerEntry] = field(default_factory=dict)
    topics: dict[str, dict[int, TopicLayout]] = field(default_factory=dict)  # topic -> broker id -> layout
    rules: GroupRules = field(default_factory=GroupRules)
    default_flow: FlowRule | None = None
    group_flows: dict[str, FlowRule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = VisitTokens(self.clock, self.config)

    def layouts(self, topic: str) -> Mapping[int, TopicLayout]:
        """Return the topic's layout by broker id; empty for a topic that is not deployed."""
        if topic == OFFSET_HISTORY:
            return {broker_id: TopicLayout(HISTORY_PARTITIONS, stores=1) for broker_id in self.brokers}
        return self.topics.get(topic, {})

    def max_msg_size(self, topic: str) -> int:
        """Return the limit that the masters tell for the topic, in bytes: its own, or the cluster's."""
        sizes = (layout.max_msg_size for layout in self.layouts(topic).values())
        return next((size for size in sizes if size is not None), self.config.max_msg_size)

    def layout(self, topic: str, broker_id: int) -> TopicLayout | None:
        """Return the topic's layout on the broker; None when the broker does not have it."""
        return self.layouts(topic).get(broker_id)
