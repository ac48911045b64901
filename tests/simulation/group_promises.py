# SPDX-License-Identifier: Apache-2.0
"""The invariants about the group of a query, and about readers that have lost their partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.simulation.promises import BrokenError, granted_by
from tests.simulation.reading_promises import Reading
from tests.simulation.servers import RETENTION
from tubemq_spark.errors import FencedError
from tubemq_spark.protocol.metadata import Partition

if TYPE_CHECKING:
    from tests.simulation.reading import OperatedReading

_FRESH = 1.05  # seconds; `Timings.claim_proof_max_age`, and a little more


class Group:
    """The invariants about `tubemq.group`, for one query."""

    def __init__(self, reading: Reading, name: str) -> None:
        self.reading, self.name = reading, name
        self.schedule = reading.schedule
        self._excused: dict[Partition, set[int | None]] = defaultdict(set)
        self._at_begin: dict[Partition, set[int | None]] = defaultdict(set)

    @granted_by("delivery.md", "Before its first commit a new query leaves it where it was")
    def begin(self) -> None:
        """A run begins: wherever the group is now, the query may leave it for a moment."""
        for partition in self.partitions():
            self._at_begin[partition].add(self.position(partition))

    @granted_by("delivery.md", "If another client moves the group while the query runs, the query moves it back")
    def excuse(self, partition: Partition) -> None:
        """Somebody else has moved the group in `partition`."""
        self._excused[partition].add(self.position(partition))

    def partitions(self) -> Iterable[Partition]:
        return self.schedule.partitions_of_query()

    def position(self, partition: Partition) -> int | None:
        return self.schedule.group_position(self.name, partition)

    def group_never_ahead(self) -> None:
        """The group is never beyond what Spark has committed, not even for a moment."""
        self._check_limit("group_never_ahead")

    def group_not_ahead(self) -> None:
        """While no task and no probe of the query runs, the group is not beyond what Spark has committed."""
        self._check_limit("group_not_ahead")

    def _check_limit(self, invariant: str) -> None:
        """`position` may be behind the limit for a moment if nobody but the query puts it there."""
        ends, starts = self.reading.ends, self.reading.starts
        for partition in self.partitions():
            position = self.position(partition)
            if position is None or position in self._excused[partition] or self._is_cut(partition, position):
                continue
            start = starts.get(partition)
            is_unread = ends.get(partition, start) == start  # the query moves the group with its next batch
            is_momentary = invariant == "group_never_ahead"
            if (is_momentary or is_unread) and position in self._at_begin[partition]:
                continue
            limit = max(ends.get(partition, -1), starts.get(partition, -1), self.reading.left.get(partition, -1))
            if self._is_moved_by_retention(partition, position):
                self._excused[partition].add(position)  # it stays there
                continue
            if limit < 0:  # nothing is known of it yet: it is where it was, or its broker let it begin
                self._at_begin[partition].add(position)
                continue
            if self._began_anew(partition):
                continue
            if position > limit and not (is_momentary and self._was_reached(partition, position)):
                raise BrokenError(
                    invariant, f"group {self.name} is at {position} of {partition}, the checkpoint at {limit}"
                )

    @granted_by("delivery.md", "If another client moves the group while the query runs, the query moves it back")
    def _is_cut(self, partition: Partition, position: int) -> bool:
        """Return True if another client has moved the group, and its store, which lost its end, to what is left."""
        store = self.schedule.store_of(partition)
        return (
            self._is_shorter(partition)
            and store is not None
            and position == store.max_offset < max(one or 0 for one in self._excused[partition] | {0})
        )

    @granted_by("limits.md", "brokers move a group to the first message that is left")
    def _is_moved_by_retention(self, partition: Partition, position: int) -> bool:
        return position <= self.schedule.store_begin(partition)

    @granted_by("limits.md", "a broker crashes and forgets the last moves, or the group")
    def _began_anew(self, partition: Partition) -> bool:
        is_new = self.reading.checkpoint.committed <= 1 or self.schedule.options.get("commitoffsets") == "false"
        return is_new and bool(self.schedule.crashes[partition.broker_id])

    @granted_by(
        "concepts/group-commits.md", "a late request of the driver from before the loss may still move the group"
    )
    def _was_reached(self, partition: Partition, position: int) -> bool:
        """Return True if a batch before a lost tail ended there or later; the driver's next check moves it back."""
        return self._is_shorter(partition) and any(
            position <= self.reading.end_of(batch).get(partition, -1)
            for batch in range(self.reading.checkpoint.committed)
        )

    def _is_shorter(self, partition: Partition) -> bool:
        """Return True if the store of a partition has lost its end, or all of it."""
        return any(one.store == partition.store and one.how != RETENTION for one in self.schedule.truth.losses)

    def group_never_free(self) -> None:
        """While the query runs, its driver holds all its partitions in the group."""
        claims = self.schedule.tubemq.claims()
        present = set(self.partitions())
        for broker_id, topic, number in self.reading.ends.keys() & present:
            holder = claims.get((self.name, topic, broker_id, number), "nobody")
            if "_driver_" not in holder:
                raise BrokenError(
                    "group_never_free", f"{holder} holds {broker_id}:{topic}:{number} in group {self.name}"
                )

    def group_left_alone(self) -> None:
        """With `commitOffsets=false` the group is where the query found it, or where others put it."""
        for partition, start in self.reading.starts.items():
            position = self.position(partition)
            if self._is_shorter(partition) or self._began_anew(partition):  # brokers set it to the end of what is left
                continue
            usual = (None, 0, start, self.schedule.store_begin(partition))
            if position not in usual and position not in self._excused[partition] | self._at_begin[partition]:
                raise BrokenError(
                    "group_left_alone", f"group {self.name} is at {position} of {partition}, in spite of the option"
                )

    def group_follows(self) -> None:
        """After a clean end, the group is where the checkpoint is."""
        for partition, end in self.reading.ends.items():
            position = self.position(partition)
            if position != end:
                raise BrokenError(
                    "group_follows", f"group {self.name} is at {position} of {partition}, the query ended at {end}"
                )


class Fencing:
    """The invariant about readers of a group that have lost their partitions."""

    def __init__(self, schedule: OperatedReading, group: str) -> None:
        self.schedule, self.group = schedule, group
        self._holders: dict[Partition, str] = {}
        self._lost_at: dict[tuple[Partition, str], float] = {}

    def watch(self) -> None:
        """A broker has handled a claim."""
        for broker_id, broker in self.schedule.tubemq.servers.brokers.items():
            for key, claim in broker.service.claims.items():
                if key.group == self.group:
                    partition = Partition(broker_id, key.topic, key.partition_id)
                    before = self._holders.get(partition)
                    if before is not None and before != claim.client_id:
                        self._lost_at[partition, before] = self.schedule.world.now
                    self._holders[partition] = claim.client_id
                    self._lost_at.pop((partition, claim.client_id), None)

    def has_fenced(self, error: FencedError) -> bool:
        """Return True if another client has taken the partition of the reader that the error names."""
        return any(client_id in str(error) for _, client_id in self._lost_at)

    def fenced_delivers_nothing(self, partition: Partition, client_id: str) -> None:
        """A reader delivers nothing when another client has had its partition for longer than a proof is fresh."""
        lost_at = self._lost_at.get((partition, client_id))
        if lost_at is not None and (late := self.schedule.world.now - lost_at) > self._longest_delay():
            raise BrokenError(
                "fenced_delivers_nothing", f"{client_id} delivers {partition}, which it lost {late:.1f} s before"
            )

    @granted_by("delivery.md", "within 1 s or the time of an answer of the broker")
    def _longest_delay(self) -> float:
        """A proof is as old as its reply is late."""
        weather = self.schedule.setting.weather
        return _FRESH + (weather.longest if weather.late_reply else 0.0)
