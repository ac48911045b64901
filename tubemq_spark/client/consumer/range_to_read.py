# SPDX-License-Identifier: Apache-2.0
"""What one reader reads, and what its planner knew: values that travel to executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.log_fingerprint import UNKNOWN_IDS, KnownIds
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
    """The state of a partition's broker and consumer group when its range was planned. It may have changed since.

    The reader takes the driver's claim, of `previous_client_id`, over without asking. If the partition `is_doubtful`, a
    fetch of an earlier holder may still be running, and the reader reads the range twice and compares. It leaves the
    group where it finds it, or at `group_position` if a killed reader may have moved the group; with None it leaves the
    group at the start of the range. `flow_rules` are the master's rate limits for the group.
    """

    broker: Broker
    previous_client_id: str | None = None
    is_doubtful: bool = False
    group_position: int | None = None
    flow_rules: FlowRules = field(default_factory=FlowRules)
