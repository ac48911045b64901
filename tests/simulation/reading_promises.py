# SPDX-License-Identifier: Apache-2.0
"""The invariants of reading: what must hold of each row of a query, and of each loss that it reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.connector import Row
from tests.simulation.promises import UNIT, BrokenError, granted_by
from tests.simulation.servers import CRASH, DAMAGED, DELETED, RETENTION, Message, StoreKey
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.testing import ServerConfig

if TYPE_CHECKING:
    from tests.simulation.reading import OperatedReading
    from tests.simulation.spark import Checkpoint, StreamQuery


class Report:
    """A loss that the connector reported, by an error or by a line in the log."""

    def __init__(self, loss: DataLossError, at: float) -> None:
        self.partition = Partition(loss.broker_id, loss.topic, loss.partition)
        self.first, self.end = sorted((loss.asked, loss.offered))
        self.whole = loss.offered < 0  # the partition is gone
        self.text, self.at = str(loss), at

    def covers(self, message: Message) -> bool:
        return message.partition == self.partition and (self.whole or self.first <= message.position < self.end)


# Disturbances that take the end of a store, perhaps what retention had removed the data of
_TAKES_TAILS = frozenset({"crash broker", "empty disk", "lose tail", "refill tail", "swap brokers", "topic anew"})


class Reading:
    """The rows of one streaming query, and the invariants about them."""

    def __init__(self, schedule: OperatedReading, checkpoint: Checkpoint) -> None:
        self.schedule, self.checkpoint = schedule, checkpoint
        self.batches: dict[int, list[Row]] = {}
        self.reports: list[Report] = []
        self.skipped: list[tuple[StoreKey, int, int]] = []  # where the log says that messages may be new
        self._delivered: dict[int, tuple[int, Message]] = {}  # by id of the message of the truth
        self._losses_at: dict[int, int] = {}  # how many losses there were when a batch was written
        self._reports_at: dict[int, int] = {}  # how many reports there were then
        self._starts: dict[Partition, int] = {}
        self._found_later: set[Partition] = set()  # partitions that the query's first offset does not have
        self._starts_of = 0
        self._parsed: dict[str, StreamOffset] = {}
        self._indexes: dict[StoreKey, tuple[int, dict[tuple[int, bytes], Message]]] = {}

    # -- what a query has done -----------------------------------------------------------------------------------

    def written(self, query: StreamQuery, batch: int, scans: Sequence[Sequence[Row]]) -> None:
        """The files of a micro-batch were written; Spark commits it next, unless somebody kills it."""
        losses = len(self.schedule.truth.losses)
        rows = list(scans[0])
        for other in scans[1:]:
            if Counter(other) != Counter(rows) and not losses:
                raise BrokenError("scans_equal", f"two scans of batch {batch} gave {len(rows)} and {len(other)} rows")
        before = self.batches.get(batch)
        if before is not None and self._losses_at[batch] == losses:
            expected = self._without_reported(before, self.reports[self._reports_at[batch] :])
            if not _alike(expected, rows):
                raise BrokenError(
                    "repeated_batch_equal", f"batch {batch} had {_bodies(expected)} first, and {_bodies(rows)} later"
                )
        self.batches[batch] = rows
        self._losses_at[batch], self._reports_at[batch] = losses, len(self.reports)
        self._check_batch(batch, rows)

    @granted_by("delivery.md", "with `failOnDataLoss=false`, without those that were lost meanwhile")
    def _without_reported(self, rows: Sequence[Row], reports: Sequence[Report]) -> list[Row]:
        """Return the rows that no report covers: it may be about a topic that was left out."""
        messages = ((row, self._message(row)) for row in rows)
        return [row for row, one in messages if one is None or not any(report.covers(one) for report in reports)]

    def reported(self, loss: DataLossError, *, ended: bool) -> None:
        """The connector has reported a loss; `ended` says whether the query has ended by it."""
        report = Report(loss, self.schedule.world.now)
        is_repeated = any(
            (one.partition, one.first, one.end) == (report.partition, report.first, report.end) for one in self.reports
        )
        self.reports.append(report)
        if not is_repeated:  # by another attempt of a task, perhaps after its batch was committed
            self.loss_has_range(report, ended=ended)

    @property
    def ends(self) -> Mapping[Partition, int]:
        """Where the last committed batch ends."""
        return self.end_of(self.checkpoint.committed - 1)

    @property
    def left(self) -> Mapping[Partition, int]:
        """Where the query was in partitions that it has left."""
        number = self.checkpoint.committed - 1
        return {} if number < 0 else self._offset(number).left

    @property
    def logged(self) -> Mapping[Partition, int]:
        """Where the last batch in the offset log ends."""
        return self.end_of(len(self.checkpoint.offsets) - 1)

    @property
    def starts(self) -> dict[Partition, int]:
        """Where the query began to read each partition."""
        offsets = self.checkpoint.offsets
        for number in range(self._starts_of, len(offsets)):
            offset = self._offset(number)
            for partition, position in {**offset.positions, **(offset.initial or {})}.items():
                if partition not in self._starts and partition not in (offset.initial or {}):
                    self._found_later.add(partition)
                self._starts.setdefault(partition, position)
        self._starts_of = len(offsets)
        return self._starts

    def end_of(self, number: int) -> Mapping[Partition, int]:
        return self._offset(number).positions if 0 <= number < len(self.checkpoint.offsets) else {}

    def _offset(self, number: int) -> StreamOffset:
        text = self.checkpoint.offsets[number]
        if text not in self._parsed:
            self._parsed[text] = StreamOffset.from_json(text)
        return self._parsed[text]

    # -- invariants ----------------------------------------------------------------------------------------------

    def _check_batch(self, batch: int, rows: Sequence[Row]) -> None:
        last: dict[Partition, int] = {}
        begin = self.end_of(batch - 1)
        end = self.end_of(batch)
        for row in rows:
            message = self._message(row)
            if message is None:
                raise BrokenError("rows_exact", f"batch {batch} has {row.body!r}, which was never stored")
            number, _ = self._delivered.setdefault(id(message), (batch, message))
            if number != batch:
                raise BrokenError(
                    "rows_exact", f"{message} is in batch {number} and in batch {batch}{self._of(message)}"
                )
            if not self.is_wanted(message):
                raise BrokenError("rows_exact", f"{message} is damaged or of another type, and is in batch {batch}")
            if row.offset is not None and row.offset != message.position:
                raise BrokenError("offset_true", f"{message} has offset {row.offset}")
            if (
                row.offset is None
                and self._has_offset(batch, row.partition)
                and not self._is_behind_gaps(message, begin)
            ):
                raise BrokenError("offset_true", f"{message} has no offset in batch {batch}, whose plan gave it one")
            if not begin.get(row.partition, 0) <= message.position < end.get(row.partition, 0):
                raise BrokenError("rows_exact", f"{message} is in batch {batch}, whose range does not have it")
            if message.position < last.get(row.partition, -1):
                raise BrokenError("rows_exact", f"{message} comes out of order in batch {batch}")
            if message.position == last.get(row.partition):
                raise BrokenError("rows_exact", f"{message} is twice in batch {batch}")
            last[row.partition] = message.position

    @granted_by("limits.md", "after more than 16 positions without a message of the partition: the remaining rows have")
    def _is_behind_gaps(self, message: Message, begin: Mapping[Partition, int]) -> bool:
        """Return True if a partition that was added later, or lost data, has so many entries before the message in its
        batch that positions behind them are not counted."""
        start = begin.get(message.partition, 0)
        stored = (m for m in self.schedule.truth.of(message.partition) if start <= m.position < message.position)
        own = {m.position for m in stored if m.lost is None}
        return (message.position - start) // UNIT - len(own) > MAX_EMPTY_ENTRIES

    def _has_offset(self, batch: int, partition: Partition) -> bool:
        """Return True if the plan of the batch says that the partition has its store for itself."""
        if batch >= len(self.checkpoint.offsets) or "filters" in self.schedule.options:
            return False
        exclusive = self._offset(batch).exclusive
        return exclusive is not None and partition.broker_id in exclusive.get(partition.topic, ())

    def removal_reported(self) -> None:
        """A partition that the query names and that leaves the offsets was reported as removed."""
        gone = {report.partition for report in self.reports if report.whole}
        for number in range(1, len(self.checkpoint.offsets)):
            for partition in self.end_of(number - 1).keys() - self.end_of(number).keys() - gone:
                if partition.topic not in self.schedule.left_out:
                    raise BrokenError("loss_reported", f"{partition} left the query, and its removal was not reported")

    def rows_exact(self) -> None:
        """Each message between the query's begin and its last commit is in the output, or its loss is reported."""
        starts, ends = self.starts, self.ends
        given = {key for key, (batch, _) in self._delivered.items() if batch < self.checkpoint.committed}
        for partition, start in starts.items():
            end = ends.get(partition)
            for message in self.schedule.truth.of(partition):
                if id(message) in given or not self.is_wanted(message):
                    continue
                if message.position < start and (message.lost is not None or partition not in self._found_later):
                    continue
                if message.lost is None:
                    is_missing = end is not None and message.position < end and not self._is_reported(message)
                    if is_missing and not self._is_logged(message) and not self._was_moved_before_a_crash(partition):
                        raise BrokenError(
                            "rows_exact", f"{message} is missing; the query is at {end}{self._of(message)}"
                        )
                elif self._must_be_reported(message, end) and not self._is_reported(message):
                    if self._left_no_trace(message):
                        continue
                    if self._is_refilled(message) and self._is_reported_in_part(message):
                        continue
                    raise BrokenError(
                        "loss_reported", f"{message} is missing, and its loss was not reported{self._of(message)}"
                    )

    def available_read(self, began: float) -> None:
        """A run with trigger AvailableNow ends when it has read all that was stored when it began."""
        ends = self.ends
        for partition in self.schedule.partitions_of_query():
            if self._is_left_to_the_next_run(partition):
                continue
            for message in self.schedule.truth.of(partition):
                if message.lost is None and message.at < began and message.position >= ends.get(partition, 0):
                    raise BrokenError("available_read", f"a run from {began:.3f} s on has not read {message}")

    @granted_by("delivery.md", "A run of one micro-batch, and `Trigger.AvailableNow`, may leave them to the next run")
    def _is_left_to_the_next_run(self, partition: Partition) -> bool:
        """Return True if a partition is new, and its broker may have been away."""
        is_quiet = not (self.schedule.has_weather or self.schedule.recent_troubles())
        return partition not in self.ends and not is_quiet

    def is_wanted(self, message: Message) -> bool:
        """Return True if options `filters` and `corruptMessages` want the message."""
        types = self.schedule.options.get("filters")
        return not message.body.startswith(DAMAGED) and (
            types is None or any(f"$msgType$={one}".encode() in message.header for one in types.split(","))
        )

    def _of(self, message: Message) -> str:
        """Return what happened to the topic of a message, for a breach."""
        partition = message.partition
        if any(loss.store == partition.store and loss.how == DELETED for loss in self.schedule.truth.losses):
            return ", in a store that was created anew"
        if partition.topic in self.schedule.left_out:
            return ", of a topic that was left out for a while"
        return ", at a position that a crash had freed" if self._took_a_place(message) else ""

    def _took_a_place(self, message: Message) -> bool:
        """Return True if the message has the position of one that was lost before."""
        return any(
            loss.store == message.partition.store
            and loss.first <= message.position < loss.end
            and loss.at <= message.at
            for loss in self.schedule.truth.losses
        )

    @granted_by("limits.md", "skips the doubtful ones and logs their range")
    def _is_logged(self, message: Message) -> bool:
        return any(
            store == message.partition.store and first <= message.position < end for store, first, end in self.skipped
        )

    @granted_by("limits.md", "If retention removes these new messages before they are read, nothing shows it")
    def _left_no_trace(self, message: Message) -> bool:
        """Return True if a message at a position that a crash had freed was removed by retention."""
        return message.lost == RETENTION and self._took_a_place(message)

    @granted_by("limits.md", "reports only the part of the loss that it can prove")
    def _is_refilled(self, message: Message) -> bool:
        """Return True if other messages took the place of a lost tail before the query looked."""
        stored = self.schedule.truth.messages[message.partition.store]
        ids_turn = self.schedule.setting.config.message_id_phase != ServerConfig().message_id_phase
        # One fingerprint that is gone does not show that the messages before it are, too.
        is_anew = message.lost == DELETED and message.position < self.end_of(0).get(message.partition, 0)
        return (message.lost == CRASH or is_anew or ids_turn) and any(
            other.position == message.position and other.at >= message.lost_at for other in stored
        )

    def _is_reported_in_part(self, message: Message) -> bool:
        """Return True if a loss of the store was reported since the message was lost."""
        return any(
            report.partition.store == message.partition.store and report.at >= message.lost_at
            for report in self.reports
        )

    @granted_by("limits.md", "if the broker crashes before the task's next request and loses the end of the task's")
    def _was_moved_before_a_crash(self, partition: Partition) -> bool:
        """Return True if the group of the tasks was moved, and a crash may have taken the proof."""
        moved = self.schedule.moved_tasks.get(partition)
        return moved is not None and any(
            loss.store == partition.store and loss.how == CRASH and loss.at > moved
            for loss in self.schedule.truth.losses
        )

    def _is_reported(self, message: Message) -> bool:
        return any(report.covers(message) for report in self.reports)

    def _must_be_reported(self, message: Message, end: int | None) -> bool:
        if message.lost in (CRASH, DELETED):  # it may never have been part of a plan
            planned = self.schedule.logged_at.get(message.lost_at, {}).get(message.partition, 0)
            # An older plan means messages that had these positions before.
            has_plan = any(message.at <= at <= message.lost_at for at in self.checkpoint.logged_at)
            return has_plan and message.position < planned
        if end is None or message.position >= end or message.lost != RETENTION:
            return False
        if message.partition not in self.schedule.logged_at.get(message.lost_at, {}):
            return False  # the query had not begun to read the partition
        # Else the store was another one when the query came so far.
        return not any(
            loss.store == message.partition.store and loss.how == DELETED and loss.at >= message.lost_at
            for loss in self.schedule.truth.losses
        )

    def loss_has_range(self, report: Report, *, ended: bool) -> None:
        """A reported range is one that the servers lost."""
        losses = [loss for loss in self.schedule.truth.losses if loss.store == report.partition.store]
        if report.whole:
            if not losses and report.partition not in self.schedule.removed:
                raise BrokenError("loss_has_range", f"nothing is lost of {report.partition}: {report.text}")
            return
        if report.partition.topic in self.schedule.left_out and "do not name" in report.text:
            batch = self.checkpoint.committed
            begin = self.end_of(batch - 1) if batch else self.starts
            if (begin.get(report.partition), self.end_of(batch).get(report.partition)) != (report.first, report.end):
                raise BrokenError("loss_has_range", f"the batch has another range than this: {report.text}")
            return
        met = [loss for loss in losses if loss.first < report.end and report.first < loss.end]
        if any(loss.has_index for loss in met):
            self._covers_lost_data(report)
            if all(loss.how == RETENTION for loss in met) and not _TAKES_TAILS.intersection(self.schedule.came):
                self._covers_what_is_missing(report, ended=ended)
            if self._shares_entries(report.partition):
                return
        first = report.first
        while first < report.end:
            ends = [loss.end for loss in losses if loss.first <= first < loss.end]
            if not ends:
                raise BrokenError("loss_has_range", f"[{report.first}, {report.end}) was not lost: {report.text}")
            first = max(ends)

    def _covers_lost_data(self, report: Report) -> None:
        """No message of the range is there. It may end at the first one that is left of its partition, and of what is
        between nobody can know whether it had messages of the partition."""
        for message in self.schedule.truth.of(report.partition):
            is_there = message.lost is None and not self._took_a_place(message)
            if is_there and report.covers(message) and self.is_wanted(message):
                raise BrokenError("loss_has_range", f"{message} is there: {report.text}")

    def _covers_what_is_missing(self, report: Report, *, ended: bool) -> None:
        """Retention costs a query no more than what it has not read. A range that is told while another attempt writes
        the rows may be that of the last batch."""
        committed = self.checkpoint.committed
        read = self.end_of(committed - (1 if ended else 2)).get(report.partition, 0)
        if report.first < read:
            raise BrokenError("loss_has_range", f"the query has read up to {read} before retention came: {report.text}")
        if self._shares_entries(report.partition):
            return
        given = {key for key, (batch, _) in self._delivered.items() if batch < committed - 1}
        missing = [m for m in self.schedule.truth.of(report.partition) if m.lost and id(m) not in given]
        if not any(map(report.covers, missing)):
            raise BrokenError("loss_has_range", f"nothing is missing of [{report.first}, {report.end}): {report.text}")

    @granted_by("limits.md", "If partitions share a store, or with `filters`, a reported range may include messages")
    def _shares_entries(self, partition: Partition) -> bool:
        """Return True if an index entry may be of another partition or type, so that readers cannot count them."""
        layout = self.schedule.tubemq.servers.catalog.layout(partition.topic, partition.broker_id)
        return "filters" in self.schedule.options or layout is None or layout.partitions > 1

    def _message(self, row: Row) -> Message | None:
        stored = self.schedule.truth.messages[row.partition.store]
        size, index = self._indexes.get(row.partition.store, (0, {}))
        if size < len(stored):
            for message in stored[size:]:
                index[message.message_id, message.body] = message
            self._indexes[row.partition.store] = len(stored), index
        found = index.get((row.message_id, row.body))
        return found if found is not None and found.partition == row.partition else None


def _alike(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Return True if two outputs of a batch are equal. Rows of different partitions may change places."""
    if len(one) != len(other):
        return False
    return all(
        a.message_id == b.message_id and a.body == b.body and a.offset == b.offset
        for a, b in zip(_by_partition(one), _by_partition(other), strict=True)
    )


def _by_partition(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.partition)


def _bodies(rows: Sequence[Any]) -> str:
    shown = [row.body[:24].decode("latin-1") for row in rows[:8]]
    return f"{len(rows)} rows ({', '.join(shown)}{', …' if len(rows) > 8 else ''})"
