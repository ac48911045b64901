# SPDX-License-Identifier: Apache-2.0
"""What one reader reads, and what its planner knew: values that travel to executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.log_fingerprint import UNKNOWN_IDS, Fingerprint, KnownIds
from tubemq_spark.protocol.metadata import Broker, Partition


@dataclass(frozen=True)
class RangeToRead:
    """The messages of one partition from offset `start` (inclusive) to `end` (exclusive), in bytes of the index, 28 a
    message. All fields describe the data and stay true however late the range is read.

    `owns_store` is True if the partition shares its store with no other partition and no filter is set. `filters` are
    the message types that the broker is asked for, none for all; it compares hash codes, so messages of other types may
    come, too. `ids` are the message ids that the range had when it was planned, as far as they are known. A broker that
    crashed since then may have given the positions to other messages, which do not belong to the range.
    """

    partition: Partition
    start: int
    end: int
    owns_store: bool
    filters: tuple[str, ...] = ()
    ids: KnownIds = UNKNOWN_IDS


@dataclass(frozen=True)
class PartitionSnapshot:
    """The state of a partition's broker when its range was planned. It may have changed since.

    `look_group` is where the reader may look at other partitions of the store; `store_ids` are the ids of them all.
    `first` is a message at the begin of the store's index, if the planner knows one.
    `flow_rules` are the master's rate limits for the user's group.
    """

    broker: Broker
    look_group: str
    store_ids: range = range(0)
    flow_rules: FlowRules = field(default_factory=FlowRules)
    first: Fingerprint | None = None
