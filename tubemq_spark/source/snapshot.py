# SPDX-License-Identifier: Apache-2.0
"""What the driver saw of the partitions before a micro-batch, and what it decides from that. No I/O.

All positions are bytes of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.data_loss import lost_tails
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.input_partition import exclusive_stores
from tubemq_spark.source.offset import Positions, StreamOffset
from tubemq_spark.source.truncation_check import Checked


@dataclass(frozen=True)
class PartitionView:
    """What the driver saw of one partition. The batch begins at `begin`, and its store ends at `log_end`.

    `flushed_end`: the broker may not deliver what is behind it before it is in files; None if it delivers all. A
    partition that `is_new` enters with the batch at `begin`, and is read from the next one on: then the checkpoint has
    both ends of every range.
    """

    begin: int
    log_end: int
    flushed_end: int | None = None
    is_new: bool = False

    @property
    def readable_end(self) -> int | None:
        """Where a read must end, None if the broker delivers all."""
        return None if self.flushed_end is None else max(self.begin, min(self.log_end, self.flushed_end))


@dataclass(frozen=True)
class Snapshot:
    """The partitions of a micro-batch that begins at `start`. `is_first`: the query has read nothing before."""

    start: StreamOffset
    partitions: Mapping[Partition, PartitionView]
    is_first: bool = False

    @property
    def begin(self) -> dict[Partition, int]:
        return {one: view.begin for one, view in self.partitions.items()}

    @property
    def log_ends(self) -> dict[Partition, int]:
        return {one: view.log_end for one, view in self.partitions.items()}

    @property
    def readable_ends(self) -> dict[Partition, int]:
        """Where a read must end, for partitions of which the broker may not deliver all."""
        return {one: view.readable_end for one, view in self.partitions.items() if view.readable_end is not None}

    @property
    def unflushed(self) -> list[Partition]:
        """The partitions that have messages which the broker may not deliver yet."""
        views = self.partitions.items()
        return [one for one, view in views if view.flushed_end is not None and view.flushed_end < view.log_end]

    @property
    def read(self) -> Snapshot:
        """The partitions that the batch reads."""
        return replace(self, partitions={one: view for one, view in self.partitions.items() if not view.is_new})

    @property
    def new(self) -> Snapshot:
        return replace(self, partitions={one: view for one, view in self.partitions.items() if view.is_new})


class Decision(NamedTuple):
    """The end of the micro-batch, `start` itself if it brings nothing, and the `losses` of tails before it."""

    end: StreamOffset
    losses: dict[Partition, DataLossError]


def decide(
    seen: Snapshot, ends: Positions, checked: Checked, empty: frozenset[Partition], cluster: Cluster
) -> Decision:
    """Return the end of the batch that reads up to `ends`, where `checked` has no other one (see `batch_end`), and the
    losses. `empty` are the partitions that have no message in the batch."""
    start, begin = seen.start, seen.begin
    losses = lost_tails(begin, checked.ends, seen.log_ends)
    ends = {**ends, **checked.ends}
    if ends == start.positions:
        return Decision(start, losses)
    end = StreamOffset(
        start.query,
        ends,
        seen.read.begin if seen.is_first else None,
        {store: marks for store, marks in checked.fingerprints.items() if marks},  # as the checkpoint keeps them
        exclusive_stores(cluster, ends),
        empty,
        {partition: at for partition, at in start.left_without(begin).items() if partition not in begin},
    )
    return Decision(end, losses)
