# SPDX-License-Identifier: Apache-2.0
"""The invariants of writing: what must hold of each row and each stored message, in every schedule, always.

`Writing` learns of each attempt of a task when it begins, of each message when a broker has stored it, and of each
batch when the connector has committed it. The exceptions that docs/sink.md lists are conditions with a comment that
names the sentence.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from tests.simulation.network import Socket
from tests.simulation.promises import UNIT, BrokenError
from tests.simulation.servers import DELETED, RETENTION, Message
from tests.simulation.world import Process
from tests.without_spark.sink import Cells
from tubemq_spark.client.producer.record_batch import OVERHEAD
from tubemq_spark.compression import decompress
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink import stored_rows_search
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.options import PACK_CODECS

if TYPE_CHECKING:
    from tests.simulation.writing import WritingSchedule

STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")
LONGEST_SEND = 10.0  # seconds; "for a broker that handles a send more than 10 s after it answered another request"
SETTLING = 3.0  # seconds that a run gives to the attempts of an earlier one
STORED_AFTER = 11.0  # seconds in which the embedded brokers store a position for certain: two periods, 5 and 6 s

_BODY = re.compile(rb"[bwx]\d+/t\d+/r\d+;x*\.")  # of a row, within a pack
_PACK = b"\x0f\x01"  # the begin of a pack of InLong
_COUNT = re.compile(r"(\d+) of (\d+) rows of task partition (\d+) are acknowledged")
_OF_SYSTEM = frozenset({"$msgType$", "$msgTime$", "spark_compression", "spark_digest", *STAMP})

_KEY, _MESSAGE = ("topic", "spark_partition", "spark_row"), ("broker_id", "partition", "message_id")  # of receipts

Origin = tuple[str, int]
"""A batch: `batch` and its number, or `write` and the number of a batch write."""


def is_bad(body: bytes | None) -> bool:
    """Return True for a row that can never be sent."""
    return body is None or body.startswith(b"x")


class Wanted(NamedTuple):
    """A row that the query or a batch write gives to the connector."""

    origin: Origin
    task: int
    number: int
    cells: Cells

    def __str__(self) -> str:
        kind, number = self.origin
        return f"row {self.number} of task {self.task} of {kind} {number}"


@dataclass
class Attempt:
    """An attempt of a task that writes. `stamped` and `once` are its options."""

    process: Process
    app: str
    run: str
    origin: Origin
    task: int
    stage: int
    number: int
    at: float
    rows: Sequence[Cells]
    stamped: bool
    once: bool
    send_again: bool
    most_bytes: int  # in flight
    bodies: frozenset[bytes | None] = field(init=False)
    is_speculative: bool = False  # another attempt of the same stage ran as well
    is_of_repeated_stage: bool = False  # another attempt of the stage had an attempt of the task as well

    def __post_init__(self) -> None:
        self.bodies = frozenset(row["value"] for row in self.rows)

    def __str__(self) -> str:
        return f"attempt {self.number} of stage {self.stage} in {self.process}"


@dataclass
class Copy:
    """A message that has a row. `held_for` and `late_for` are those of the connection."""

    message: Message
    attempt: Attempt | None
    held_for: float
    late_for: float
    index: int = 0  # in a pack

    def __str__(self) -> str:
        late = f", {self.held_for:.1f} s after its send" if self.held_for > 0.1 else ""
        return (
            f"at {self.message.at:.3f} s at {self.message.position} of {self.message.partition} by {self.attempt}{late}"
        )


@dataclass
class Entry:
    """All rows with one body in one topic, and all messages that ever had it."""

    topic: str
    body: bytes
    origin: Origin
    rows: list[Wanted] = field(default_factory=list)  # none if the batch has other tasks in the next attempt
    copies: list[Copy] = field(default_factory=list)

    @property
    def live(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.message.lost is None]

    def __str__(self) -> str:
        return f"{self.body[:24].decode('latin-1')} ({self.rows[0] if self.rows else self.origin})"


class Plan(NamedTuple):
    """What the topics had when an attempt of a batch was planned."""

    at: float
    could_mark: bool  # a store of the topics that the plan knows holds enough messages
    option_topic: bool


class Writing:
    """The rows of one streaming query and of the batch writes beside it, and the invariants about them."""

    def __init__(self, schedule: WritingSchedule, query_id: str) -> None:
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
        self._first_write: dict[Partition, float] = {}
        self._commits: Counter[Origin] = Counter()
        self._receipts: dict[Origin, list[dict[str, Any]]] = {}  # of the last commit

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
        self.plans[run, origin] = plan

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
            self._first_write.setdefault(partition, message.at)
            self._check_message(entry, copy, attributes)
            if entry.origin in self.once:
                self._check_once(entry)

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
        self._commits[origin] += 1
        self.committed_at[origin] = now
        of_run = [one for one in self.attempts_of(origin) if one.run == run]
        is_once = any(one.once for one in of_run)
        guarded = self.schedule.guarded
        guarded(self._rows_stored, origin, of_run)
        if is_once:
            self.once.add(origin)
            for entry in self.of_batch[origin]:
                guarded(self._check_once, entry)
        else:
            self.once.discard(origin)
        for number, (rows, one) in enumerate(zip(tasks, written, strict=True)):
            guarded(self._counts_true, origin, number, rows, one)
        if self.schedule.receipts is not None:
            guarded(self._receipts_true, origin, tasks, written)

    def at_end(self) -> None:
        """All batches are committed and nothing is in flight."""
        guarded = self.schedule.guarded
        for origin in self.once:
            for entry in self.of_batch[origin]:
                guarded(self._check_once, entry)
        guarded(self.key_order)
        guarded(self.batches_in_order)
        guarded(self.key_has_one_partition)
        guarded(self.dead_letters_true)

    @property
    def topics_written(self) -> set[str]:
        """The topics that have got rows."""
        return {partition.topic for partition in self._first_write}

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

    def _check_once(self, entry: Entry) -> None:
        """Each row of a batch that a run with effectivelyOnce has committed is stored once.

        Nobody promises to remove what runs without the option have stored twice: runs with it add nothing to that.
        """
        live = entry.live
        if len(live) <= max(1, len(entry.rows)):
            return
        before = [copy.attempt for copy in live if copy.attempt is not None and not copy.attempt.once]
        if len(live) <= len(before):
            return
        if self._excuse(entry, live) is None:
            copies = "; ".join(map(str, live))
            on = f", {len(before)} times before effectivelyOnce was switched on" if before else ""
            raise BrokenError(
                "stored_once",
                f"{entry} is stored {len(live)} times{on}, and was written {len(entry.rows)} times: {copies}",
            )

    def _excuse(self, entry: Entry, live: Sequence[Copy]) -> str | None:
        """Return the exception of docs/sink.md that allows further copies, None if there is none."""
        origin = entry.origin
        attempts = [one for one in self.attempts_of(origin) if entry.body in one.bodies]
        # "or with `effectivelyOnceUncertain=sendAgain` sends the rows it did not find"
        if any(one.send_again for one in attempts):
            return "sendAgain"
        # "with `spark.speculation`: TubeMQ cannot prevent two attempts … that run at the same time from both writing"
        if any(one.is_speculative for one in attempts):
            return "speculation"
        # "if the option is switched on while a batch is unfinished that has no stamps: …"
        before = [copy.attempt for copy in live if copy.attempt is not None and not copy.attempt.once]
        if before and not any(attempt.stamped for attempt in before):
            return "switched on"
        # "… or whose messages lie more than 16 384 messages back in their store"
        again = min((c.message.at for c in live if c.attempt is not None and c.attempt.once), default=0.0)
        if before and all(self._is_far_back(c.message, again) for c in live if c.attempt in before):
            return "switched on"
        # "for a broker that handles a send more than 10 s after it answered another request"
        if any(copy.late_for > LONGEST_SEND for copy in live):
            return "late broker"
        # "for an executor whose sends still arrive more than 3 s after Spark gave it up": another run has begun since
        for copy in live:
            mine = copy.attempt
            if mine is not None and any(
                one.run != mine.run and mine.at < one.at < copy.message.at - SETTLING for one in attempts
            ):
                return "late executor"
        # "if Spark repeats a stage because shuffle files were lost, and the tasks could not leave marks"
        if self.is_unmarked(attempts):
            return "no mark"
        # "if a broker crashes within seconds after the query first wrote to a partition, before the broker has stored
        # the bookmark"
        for copy in live:
            partition = copy.message.partition
            first = self._first_write[partition]
            if any(first <= at < first + STORED_AFTER for at in self.schedule.crashes[partition.broker_id]):
                return "new partition"
        # "… or a broker lost its disk, and others have written more than 16 384 messages to a partition since"
        lost = {loss.store for loss in self.schedule.truth.losses if loss.how == DELETED}
        last = max(copy.message.at for copy in live)
        if any(c.message.partition.store in lost and self._is_far_back(c.message, last) for c in live):
            return "lost disk"
        return None

    def _is_far_back(self, message: Message, at: float) -> bool:
        """Return True if a search then began behind the message."""
        ends = [one.position for one in self.schedule.truth.messages[message.partition.store] if one.at < at]
        margin: int = vars(stored_rows_search)["MARGIN"]
        return message.position < max(ends, default=0) + UNIT * (1 - margin)

    def is_unmarked(self, attempts: Iterable[Attempt]) -> bool:
        """Return True if some of the attempts are of a repeated stage and perhaps could not leave marks."""
        for attempt in attempts:
            plan = self.plans.get((attempt.run, attempt.origin))
            if plan is None or not attempt.is_of_repeated_stage:
                continue
            # "no partition of the topic held 16 messages when the batch began, or …"
            if not plan.could_mark:
                return True
            # "… or retention has removed more than half of them"
            if any(loss.how == RETENTION and loss.at >= plan.at for loss in self.schedule.truth.losses):
                return True
            # "it is the first batch of a new driver that has rows, and only rows name the topic (column `topic`)"
            if not plan.option_topic and not self._has_written_before(attempt.run, attempt.origin):
                return True
            # "the broker of the mark fails meanwhile"
            if self.schedule.broker_failed_since(plan.at):
                return True
        return False

    def _has_written_before(self, run: str, origin: Origin) -> bool:
        """Return True if an earlier batch of the run had a row that names a topic."""
        return any(
            one.run == run and one.origin < origin and not all(map(is_bad, one.bodies))
            for attempts in self.attempts.values()
            for one in attempts
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
            stored = max((self._stored_by(origin, task, one) for one in attempts), default=0)
            if acknowledged > accepted or accepted > most or (acknowledged > stored and not self.schedule.packed):
                raise BrokenError(
                    "counts_true",
                    f"task {task} of {origin[0]} {origin[1]} has {most} rows, of which an attempt stored {stored}, "
                    f"and its error says {acknowledged} of {accepted}",
                )

    def _stored_by(self, origin: Origin, task: int, attempt: Attempt) -> int:
        dead = sum(message.at >= attempt.at for message in self.dead_letters)
        return dead + sum(
            min(len(entry.rows), sum(copy.attempt is attempt for copy in entry.copies))
            for entry in self.of_batch[origin]
            if any(row.task == task for row in entry.rows)
        )

    def _receipts_true(self, origin: Origin, tasks: Sequence[Sequence[Cells]], written: Sequence[Written]) -> None:
        """The file of a batch names each stored row once, and at that place is a message with its body."""
        folder = self.schedule.receipts
        assert folder is not None
        if not written or (origin in self.changed and not any(tasks)):
            return
        kind, batch = origin
        name = f"{self.query_id}-{batch:010d}.parquet" if kind == "batch" else f"{written[0].id}.parquet"
        file = Path(folder, name)
        if not file.exists():
            raise BrokenError("receipts_true", f"{kind} {batch} is committed, and there is no file {name}")
        rows = pq.read_table(file).to_pylist()
        shown = Counter((row["spark_partition"], row["spark_row"] & 0xFFFFFFFF) for row in rows)
        wanted = {(task, n) for task, of in enumerate(tasks) for n, row in enumerate(of) if not is_bad(row["value"])}
        # "Without `effectivelyOnce`, if the rows came in another order, it may contain the messages of both attempts."
        is_mixed = self.schedule.shuffled and self._commits[origin] > 1
        # Of equal rows, those that are found give their numbers to others.
        is_loose = self.schedule.shuffled or self.schedule.setting.extra["equal"] or origin in self.changed
        if (shown.keys() != wanted and not is_loose) or not wanted <= shown.keys() | (wanted if is_loose else set()):
            raise BrokenError(
                "receipts_true",
                f"the receipts of {kind} {batch} lack {sorted(wanted - shown.keys())[:5]} and name "
                f"{sorted(shown.keys() - wanted)[:5]} besides",
            )
        if not is_mixed and len(rows) != len(wanted) and origin not in self.changed:
            raise BrokenError(
                "receipts_true", f"the receipts of {kind} {batch} have {len(rows)}, not {len(wanted)} rows"
            )
        for row in rows:
            self._receipt_true(origin, tasks, row)
        now = {tuple(row[name] for name in _KEY): row for row in rows}
        for before in self._receipts.get(origin, ()):
            kept = now.get(tuple(before[name] for name in _KEY), {})
            is_same = all(kept.get(name) == before[name] for name in _MESSAGE)
            lost = [name for name, value in before.items() if value is not None and kept.get(name) is None]
            if lost and (is_same or not kept):
                raise BrokenError("receipts_true", f"the second commit of {kind} {batch} loses {lost} of {before}")
        self._receipts[origin] = rows

    def _receipt_true(self, origin: Origin, tasks: Sequence[Sequence[Cells]], row: Mapping[str, Any]) -> None:
        partition = Partition(row["broker_id"], row["topic"], row["partition"])
        of_task = tasks[row["spark_partition"]] if row["spark_partition"] < len(tasks) else []
        number = row["spark_row"] & 0xFFFFFFFF
        if origin in self.changed:
            bodies = {entry.body for entry in self.of_batch[origin]}
        elif self.schedule.shuffled:
            bodies = {one["value"] for one in of_task}
        else:
            bodies = {of_task[number]["value"]}
        there = [
            message
            for message in self.schedule.truth.of(partition)
            if message.message_id == row["message_id"]
            and bodies.intersection(bodies_in(message, attributes_of(message)))
        ]
        if not there or (row["offset"] is not None and all(one.position != row["offset"] for one in there)):
            raise BrokenError(
                "receipts_true",
                f"the receipts of {origin[0]} {origin[1]} name row {number} of task {row['spark_partition']} as "
                f"message {row['message_id']} at {row['offset']} of {partition}, where it is not",
            )

    def bounded_memory(self, process: Process, given: Sequence[Cells]) -> None:
        """A task that asks for more rows than `given` has not too much in flight: each row of which no message is
        stored takes `OVERHEAD` bytes at least."""
        attempt = self._of_process[process][-1]
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
            last: dict[Partition, tuple[tuple[int, int], Entry]] = {}
            for entry in lane:
                for partition, places in _places(entry).items():
                    place = choose(places)
                    if partition in last and last[partition][0] > place:
                        before = last[partition][1]
                        raise BrokenError(
                            "key_order",
                            f"of key {key!r} in {partition}, the {which} copy of {entry} at {place[0]} precedes that "
                            f"of {before} at {last[partition][0][0]}; copies: {'; '.join(map(str, before.copies))}",
                        )
                    last[partition] = place, entry

    def batches_in_order(self) -> None:
        """The first copies of a batch in a partition precede those of the next one."""
        if any(self.schedule.crashes.values()):  # a broker then gives positions again
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

    def key_has_one_partition(self) -> None:
        """As long as the partitions stay, all rows of a key are in one of them."""
        if self.schedule.partitions_changed:
            return
        # "A batch that starts while a broker is down waits 2 s for it and then does not use its partitions; their keys
        # go to others meanwhile."
        if any(one.once for of in self.attempts.values() for one in of) and self.schedule.broker_failed_since(0.0):
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


def attributes_of(message: Message) -> dict[str, str]:
    parts = (part.partition("=") for part in message.header.decode("latin-1").split(","))
    return {name: value for name, _, value in parts if name}


def bodies_in(message: Message, attributes: Mapping[str, str]) -> Iterable[bytes]:
    """Return the bodies of the rows of a message: of one, or of those in a pack."""
    body, codec = message.body, attributes.get("spark_compression")
    if codec is not None:
        body = decompress(codec, body)
    if (packed_with := attributes.get("compressType", "0")) != "0":
        body = decompress(PACK_CODECS[int(packed_with)], body)
    if body[:2] == _PACK or "msgCount" in attributes:
        return _BODY.findall(body)
    return [body]


def _places(entry: Entry) -> dict[Partition, list[tuple[int, int]]]:
    """Return where the copies are, or were until retention removed them, by partition."""
    found: dict[Partition, list[tuple[int, int]]] = defaultdict(list)
    for copy in entry.copies:
        if copy.message.lost in (None, RETENTION):
            found[copy.message.partition].append((copy.message.position, copy.index))
    return found


__all__ = ["UNIT", "Attempt", "Plan", "Writing", "is_bad"]
