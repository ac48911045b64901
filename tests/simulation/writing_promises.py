# SPDX-License-Identifier: Apache-2.0
"""The invariants of writing: what must hold of each row and each stored message, in every schedule, always.

`Writing` learns of each attempt of a task when it begins, of each message when a broker has stored it, and of each
batch when the connector has committed it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.network import Socket
from tests.simulation.promises import BrokenError, granted_by
from tests.simulation.receipts import Receipts
from tests.simulation.servers import Message
from tests.simulation.stored_once import StoredOnce
from tests.simulation.world import Process
from tests.simulation.written import (
    Attempt,
    Copy,
    Entry,
    Origin,
    Plan,
    Wanted,
    attributes_of,
    bodies_in,
    is_bad,
    places_of,
)
from tests.without_spark.sink import Cells
from tubemq_spark.client.producer.record_batch import OVERHEAD
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit import Written

if TYPE_CHECKING:
    from tests.simulation.writing import OperatedWriting

STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")
_COUNT = re.compile(r"(\d+) of (\d+) messages of task partition (\d+) are acknowledged")
_OF_SYSTEM = frozenset({"$msgType$", "$msgTime$", "spark_compression", "spark_digest", *STAMP})


class Writing:
    """The rows of one streaming query and of the batch writes beside it, and the invariants about them."""

    def __init__(self, schedule: OperatedWriting, query_id: str) -> None:
        self.schedule, self.query_id = schedule, query_id
        self.entries: dict[tuple[str, bytes], Entry] = {}
        self.of_batch: dict[Origin, list[Entry]] = defaultdict(list)
        self.attempts: dict[tuple[Origin, int], list[Attempt]] = defaultdict(list)
        self.committed_at: dict[Origin, float] = {}
        self.once: set[Origin] = set()  # committed by a run with effectivelyOnce
        self.changed: set[Origin] = set()  # batches with another number of tasks in some attempt
        self.plans: dict[tuple[str, Origin], Plan] = {}  # by run and batch
        self.foreign: set[tuple[str, bytes]] = set()
        self.dead_letters: list[Message] = []
        self._of_process: dict[Process, list[Attempt]] = defaultdict(list)
        self.commits: Counter[Origin] = Counter()
        self.stored_once, self.receipts = StoredOnce(self), Receipts(self)

    # -- what the schedule tells ----------------------------------------------------------------------------------

    def want(self, origin: Origin, task: int, rows: Sequence[Cells], topic: str | None) -> None:
        """`rows` are those of a task, now. `topic` is the option."""
        for number, cells in enumerate(rows):
            name = topic if topic is not None else cells["topic"]
            body = cells["value"]
            if body is None:
                continue
            entry = self.entries.get((name, body))
            if entry is None:
                entry = self.entries[name, body] = Entry(name, body, origin)
                self.of_batch[origin].append(entry)
            entry.origin = origin
            entry.rows = [row for row in entry.rows if row[:3] != (origin, task, number)]
            entry.rows.append(Wanted(origin, task, number, cells))

    def unwant(self, origin: Origin) -> None:
        """The rows of a batch are divided in another way from now on."""
        self.changed.add(origin)
        self.once.discard(origin)  # until it is committed again
        for entry in self.of_batch[origin]:
            entry.rows = [row for row in entry.rows if row.origin != origin]

    def wanted(self, origin: Origin, tasks: Sequence[Sequence[Cells]], topic: str | None) -> None:
        """A batch that copies another topic was committed with these rows: earlier attempts may have read others."""
        for entry in self.of_batch[origin]:
            entry.rows = [row for row in entry.rows if row.origin != origin]
        for task, rows in enumerate(tasks):
            self.want(origin, task, rows, topic)

    def planned(self, run: str, origin: Origin, plan: Plan) -> None:
        could_mark = all(one.could_mark for (_, of), one in self.plans.items() if of == origin)
        self.plans[run, origin] = plan._replace(could_mark=plan.could_mark and could_mark)

    def has_planned(self, run: str, origin: Origin) -> None:
        self.plans[run, origin] = self.plans[run, origin]._replace(until=self.schedule.world.now)

    def begun(self, attempt: Attempt) -> None:
        """An attempt has got its rows and begins to write."""
        same = self.attempts[attempt.origin, attempt.task]
        for other in same:
            if other.run != attempt.run:
                continue
            if other.stage != attempt.stage:  # the one of the earlier stage may begin to write last
                attempt.is_of_repeated_stage = other.is_of_repeated_stage = True
            elif other.process.alive and self._of_process[other.process][-1] is other:
                other.is_speculative = attempt.is_speculative = True
        same.append(attempt)
        self._of_process[attempt.process].append(attempt)

    def stored(self, message: Message, socket: Socket | None) -> None:
        """A broker has stored a message that has come over this connection; None for a foreign producer."""
        partition, process = message.partition, None if socket is None else socket.process
        times = (0.0, 0.0) if socket is None else (socket.held_for, socket.late_for)
        if partition.topic == self.schedule.dead_topic:
            self.dead_letters.append(message)
            return
        attributes = attributes_of(message)
        for index, body in enumerate(bodies_in(message, attributes)):
            entry = self.entries.get((partition.topic, body))
            if entry is None:
                if (partition.topic, body) in self.foreign and process is None:
                    continue
                raise BrokenError("nothing_invented", f"{message} was sent by nobody; {process} has brought it")
            attempt = self._attempt_of(process, entry)
            copy = Copy(message, attempt, *times, index)
            entry.copies.append(copy)
            self._check_message(entry, copy, attributes)
            if entry.origin in self.once:
                self.stored_once.check(entry)

    def _attempt_of(self, process: Process | None, entry: Entry) -> Attempt | None:
        if process is None:
            return None
        for attempt in reversed(self._of_process[process]):
            if attempt.origin == entry.origin and entry.body in attempt.bodies:
                return attempt
        return None

    def attempts_of(self, origin: Origin) -> list[Attempt]:
        return [one for (of, _), attempts in self.attempts.items() if of == origin for one in attempts]

    def committed(self, run: str, origin: Origin, tasks: Sequence[Sequence[Cells]], written: Sequence[Written]) -> None:
        """The connector has committed a batch; `tasks` are the rows of its tasks."""
        now = self.schedule.world.now
        self.commits[origin] += 1
        self.committed_at[origin] = now
        of_run = [one for one in self.attempts_of(origin) if one.run == run]
        is_once = any(one.once for one in of_run)
        guarded = self.schedule.guarded
        guarded(self._rows_stored, origin, of_run)
        if is_once:
            self.once.add(origin)
            for entry in self.of_batch[origin]:
                guarded(self.stored_once.check, entry)
        else:
            self.once.discard(origin)
        for number, (rows, one) in enumerate(zip(tasks, written, strict=True)):
            guarded(self._counts_true, origin, number, rows, one)
        if self.schedule.receipts is not None:
            guarded(self.receipts.check, origin, tasks, written)

    def at_end(self) -> None:
        """All batches are committed and nothing is in flight."""
        guarded = self.schedule.guarded
        for origin in self.once:
            for entry in self.of_batch[origin]:
                guarded(self.stored_once.check, entry)
        guarded(self.key_order)
        guarded(self.batches_in_order)
        guarded(self.key_has_one_partition)
        guarded(self.dead_letters_true)

    # -- invariants -----------------------------------------------------------------------------------------------

    def _rows_stored(self, origin: Origin, of_run: Sequence[Attempt]) -> None:
        """Each row of the batch that can be sent is stored, or was stored and lost after the batch began in this run.

        Each task that found its row as stored has looked for it in this run.
        """
        begun = min((one.at for one in of_run), default=0.0)
        for entry in self.of_batch[origin]:
            if is_bad(entry.body):
                continue
            there = sum(copy.message.lost is None or copy.message.lost_at >= begun for copy in entry.copies)
            if there < len(entry.rows):
                lost = [copy for copy in entry.copies if copy.message.lost]
                raise BrokenError(
                    "rows_stored",
                    f"{entry} is stored {there} times, and was written {len(entry.rows)} times, when {origin[0]} "
                    f"{origin[1]} was committed; {len(lost)} copies were lost before it began at {begun:.3f} s",
                )

    def _check_message(self, entry: Entry, copy: Copy, attributes: Mapping[str, str]) -> None:
        message, packed = copy.message, self.schedule.packed
        if is_bad(entry.body):
            raise BrokenError("nothing_invented", f"{message} is stored, and can never be sent")
        partition = message.partition
        if entry.rows and all(row.cells.get("broker_id") is not None for row in entry.rows):
            targets = {(row.cells["broker_id"], row.cells["partition"]) for row in entry.rows}
            if (partition.broker_id, partition.partition_id) not in targets:
                raise BrokenError("nothing_invented", f"{message} was for {targets}")
        own = {name: value for name, value in attributes.items() if name not in _OF_SYSTEM}
        if entry.rows and not packed and all(own != dict(row.cells.get("attributes") or {}) for row in entry.rows):
            raise BrokenError(
                "nothing_invented", f"{message} has {own}, and {entry} has {entry.rows[0].cells.get('attributes')}"
            )
        attempt = copy.attempt
        if attempt is None:
            raise BrokenError("nothing_invented", f"{message} was stored by none of the attempts that have {entry}")
        if attempt.stamped:
            self._stamp_true(entry, copy, attempt, attributes)

    def _stamp_true(self, entry: Entry, copy: Copy, attempt: Attempt, attributes: Mapping[str, str]) -> None:
        missing = [name for name in STAMP if name not in attributes]
        if missing:
            raise BrokenError("stamps_true", f"{copy.message} has no {', '.join(missing)}: {attributes}")
        kind, batch = attempt.origin
        query, spark_batch, task, number = (attributes[name] for name in STAMP)
        row = int(number) & 0xFFFFFFFF
        is_right = (
            (query == self.query_id and int(spark_batch) == batch if kind == "batch" else int(spark_batch) == 0)
            and int(task) == attempt.task
            and row < len(attempt.rows)
            and attempt.rows[row]["value"] == entry.body
        )
        if not is_right or (int(number) > 0xFFFFFFFF and not attempt.once):
            raise BrokenError(
                "stamps_true", f"{copy.message}, {entry}, has the stamp {query}, {spark_batch}, {task}, {number}"
            )

    def _counts_true(self, origin: Origin, task: int, rows: Sequence[Cells], written: Written) -> None:
        name = f"task {task} of {origin[0]} {origin[1]}"
        bad = sum(is_bad(row["value"]) for row in rows)
        told = {"drop": (bad, 0), "deadletter": (0, bad)}.get(self.schedule.failed_rows, (0, 0))
        acknowledged = sum(written.rows.values())
        total = acknowledged + written.already_stored + written.dropped
        if self.schedule.packed:
            if not acknowledged + written.dropped <= len(rows) or (len(rows) > bad and not acknowledged):
                raise BrokenError("counts_true", f"{name} had {len(rows)} rows, and reports {written}")
        elif total != len(rows):
            raise BrokenError("counts_true", f"{name} had {len(rows)} rows, and reports {written}")
        if (written.dropped, written.dead_letters) != told:
            raise BrokenError("counts_true", f"{name} had {bad} bad rows, and reports {written}")
        if origin[0] == "batch" and written.id != self.query_id:
            raise BrokenError("counts_true", f"{name} reports the query {written.id}")
        if self.schedule.packed:
            return
        by_partition: Counter[str] = Counter()
        for entry in self.entries.values():  # also a message that an earlier batch should copy, and did not
            if any(row[:2] == (origin, task) for row in entry.rows):
                by_partition.update(str(copy.message.partition) for copy in entry.copies)
        for partition, count in written.rows.items():
            dead = bad if partition.split(":")[1] == self.schedule.dead_topic else 0
            if count > by_partition[partition] + dead:
                raise BrokenError(
                    "counts_true",
                    f"{name} reports {count} rows acknowledged in {partition}, where {by_partition[partition]} were "
                    "stored",
                )

    def error_true(self, origin: Origin, text: str) -> None:
        """An error that counts the rows acknowledged tells the truth."""
        for acknowledged, accepted, task in (tuple(map(int, found)) for found in _COUNT.findall(text)):
            attempts = self.attempts[origin, task]
            most = max((len(one.rows) for one in attempts), default=0)
            stored = max((self._stored_of(one) for one in attempts), default=0)
            if acknowledged > accepted or accepted > most or (acknowledged > stored and not self.schedule.packed):
                raise BrokenError(
                    "counts_true",
                    f"task {task} of {origin[0]} {origin[1]} has {most} rows, of which {stored} are stored, and its "
                    f"error says {acknowledged} of {accepted}",
                )

    def _stored_of(self, attempt: Attempt) -> int:
        """Return how many rows of the attempt are stored: by it or, as look-ups find with effectivelyOnce, by another
        attempt of the task. `entry.rows` are those of the task's last attempt, which may have got others."""
        dead = sum(message.at >= attempt.at for message in self.dead_letters)
        rows = Counter(row["value"] for row in attempt.rows)
        known = self.attempts[attempt.origin, attempt.task] if attempt.once else [attempt]
        return dead + sum(
            min(rows[entry.body], sum(any(copy.attempt is one for one in known) for copy in entry.copies))
            for entry in self.of_batch[attempt.origin]
        )

    def bounded_memory(self, process: Process, given: Sequence[Cells]) -> None:
        """A task that asks for more rows than `given` has not too much in flight: each row of which no message is
        stored takes `OVERHEAD` bytes at least."""
        attempt = self._of_process[process][-1]
        if attempt.had_rows_at is None:
            attempt.had_rows_at = self.schedule.world.now
        if self.schedule.packed:  # a pack waits for more rows
            return
        stored: Counter[bytes] = Counter()
        for entry in self.entries.values():
            stored[entry.body] += len(entry.copies)
        rows = Counter(row["value"] for row in given if not is_bad(row["value"]))
        in_flight = (rows - stored).total()
        if in_flight * OVERHEAD > attempt.most_bytes:
            raise BrokenError(
                "bounded_memory",
                f"{attempt} takes more rows with {in_flight} in flight, which need {OVERHEAD} bytes each, of "
                f"{attempt.most_bytes}",
            )

    def key_order(self) -> None:
        """Rows of a key, written by a task with one attempt, are in row order: by their first and by their last copies.

        A reader that keeps the first message of a row sees the first copies; one that upserts sees the last ones.
        """
        for origin, entries in self.of_batch.items():
            if origin not in self.committed_at or origin in self.changed:
                continue
            lanes: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
            for entry in entries:
                if len(entry.rows) != 1:
                    continue
                row = entry.rows[0]
                key = row.cells.get("key")
                if key is None or len(self.attempts[origin, row.task]) != 1:
                    continue
                target = row.cells.get("broker_id"), row.cells.get("partition")
                lanes[entry.topic, key, target, row.task].append(entry)
            for (_, key, _, task), lane in lanes.items():
                bodies = [row["value"] for row in self.attempts[origin, task][0].rows]  # in the order of the attempt
                self._check_lane(key, sorted(lane, key=lambda entry: bodies.index(entry.body)))

    def _check_lane(self, key: bytes, lane: Sequence[Entry]) -> None:
        for which, choose in (("first", min), ("last", max)):
            last: dict[Partition, tuple[tuple[float, int, int], Entry]] = {}
            for entry in lane:
                for partition, places in places_of(entry).items():
                    place = choose(places)
                    if partition in last and last[partition][0] > place:
                        before = last[partition][1]
                        raise BrokenError(
                            "key_order",
                            f"of key {key!r} in {partition}, the {which} copy of {entry} at {place[1]} precedes that "
                            f"of {before} at {last[partition][0][1]}; copies: {'; '.join(map(str, before.copies))}",
                        )
                    last[partition] = place, entry

    @granted_by(
        "concepts/positions.md", "loses what it had not flushed, and uses the same positions for other messages later"
    )
    def _positions_come_again(self) -> bool:
        return any(self.schedule.crashes.values())

    def batches_in_order(self) -> None:
        """The first copies of a batch in a partition precede those of the next one."""
        if self._positions_come_again():
            return
        last: dict[Partition, tuple[int, Entry]] = {}
        for batch in sorted(number for kind, number in self.committed_at if kind == "batch"):
            ends: dict[Partition, tuple[int, Entry]] = {}
            for entry in self.of_batch["batch", batch]:
                if not entry.copies:
                    continue
                first = min(entry.copies, key=lambda copy: copy.message.at).message
                partition, place = first.partition, first.position
                if partition in last and place < last[partition][0]:
                    raise BrokenError(
                        "batches_in_order",
                        f"{entry} is at {place} of {partition}, before {last[partition][1]} of an earlier batch",
                    )
                if place >= ends.get(partition, (0, entry))[0]:
                    ends[partition] = place, entry
            last.update(ends)

    @granted_by("sink.md", "then does without its partitions; their keys go to others")
    def _batch_does_without_a_broker(self) -> bool:
        """Return True if a broker may have been down when a batch with effectivelyOnce was planned."""
        is_once = any(one.once for of in self.attempts.values() for one in of)
        return is_once and self.schedule.broker_failed_since(0.0)

    def key_has_one_partition(self) -> None:
        """As long as the partitions stay, all rows of a key are in one of them."""
        if self.schedule.partitions_changed or self._batch_does_without_a_broker():
            return
        homes: dict[tuple[str, bytes], dict[Partition, Entry]] = defaultdict(dict)
        for entry in self.entries.values():
            for row in entry.rows:
                if row.cells.get("key") is not None and row.cells.get("broker_id") is None:
                    for copy in entry.copies:
                        homes[entry.topic, row.cells["key"]].setdefault(copy.message.partition, entry)
        for (topic, key), places in homes.items():
            if len(places) > 1:
                shown = ", ".join(f"{entry} in {partition}" for partition, entry in places.items())
                raise BrokenError("key_has_one_partition", f"key {key!r} of topic {topic}: {shown}")

    def dead_letters_true(self) -> None:
        """Each bad row of a committed batch, and no other row, is a dead letter."""
        there = Counter(message.body for message in self.dead_letters)
        for body in there:
            if not is_bad(body):
                raise BrokenError("dead_letters_true", f"{body!r} is among the dead letters, and can be sent")
        if self.schedule.failed_rows != "deadletter":
            return
        for origin in self.committed_at:
            for entry in self.of_batch[origin]:
                if is_bad(entry.body) and not there[entry.body]:
                    raise BrokenError("dead_letters_true", f"{entry} is not among the dead letters")
