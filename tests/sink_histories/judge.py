# SPDX-License-Identifier: Apache-2.0
"""Judges what is stored on the servers when all batches are committed."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from tests.sink_histories.jobs import OutRow
from tests.sink_histories.play import Committed
from tests.sink_histories.script import ONCE, PLAIN, Setting
from tests.sink_histories.world import DEAD, FOREIGN, Message
from tubemq_spark.protocol.metadata import Partition

_STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")


class BrokenError(AssertionError):
    """A broken promise of the sink."""


@dataclass
class Case:
    """What a history has left behind.

    `stored` are the messages on the servers, `lost` those that crashes removed, with the time, and `expired` those that
    retention removed. `accidents` happened to the cluster. Batches: `exempt` may have doubles, `committed_again` had
    several attempts of the commit, `changed_tasks` had attempts with different numbers of tasks.
    """

    setting: Setting
    query: str
    committed: Mapping[int, Sequence[Committed]]
    stored: Sequence[Message]
    lost: Mapping[Message, float] = field(default_factory=dict)
    expired: Sequence[Message] = ()
    accidents: frozenset[str] = frozenset()
    exempt: frozenset[int] = frozenset()
    receipts: Path | None = None
    committed_again: frozenset[int] = frozenset()
    changed_tasks: frozenset[int] = frozenset()
    doubles: int = field(default=0, init=False)


def judge(case: Case) -> None:
    """Raise `BrokenError` for the first broken promise; count allowed `doubles`."""
    _check_presence(case)
    _check_targets(case)
    if case.setting.mode != PLAIN:
        _check_stamps(case)
    _check_keys(case)
    _check_batches(case)
    _check_reports(case)
    _check_bad_rows(case)
    if case.receipts is not None:
        _check_receipts(case, case.receipts)


def _all_rows(case: Case) -> Iterable[tuple[int, int, OutRow]]:
    for batch, tasks in case.committed.items():
        for task, done in enumerate(tasks):
            for row in done.rows:
                if not row.bad:
                    yield batch, task, row


def _own(messages: Iterable[Message]) -> list[Message]:
    return [one for one in messages if not one.body.startswith(FOREIGN) and one.partition.topic != DEAD]


def _check_presence(case: Case) -> None:
    wanted = Counter((row.topic, row.body) for _, _, row in _all_rows(case))
    batches = {(row.topic, row.body): batch for batch, _, row in _all_rows(case)}
    there = Counter((one.partition.topic, one.body) for one in _own([*case.stored, *case.expired]))
    lost = Counter((one.partition.topic, one.body) for one in _own(case.lost))
    # What a crash took before a try began, that try has to send again.
    begun = {
        (row.topic, row.body): done.begun for tasks in case.committed.values() for done in tasks for row in done.rows
    }
    excused: Counter[tuple[str, bytes]] = Counter()
    for one in _own(case.lost):
        what = one.partition.topic, one.body
        excused[what] += case.lost[one] >= begun.get(what, 0.0)
    for what in there | lost:
        if what not in wanted:
            raise BrokenError(f"{what} stands there, and was never sent")
    for what, count in wanted.items():
        if there[what] + excused[what] < count:
            raise BrokenError(
                f"{what} stands there {there[what]} times (lost {excused[what]}), and was written {count} times"
            )
        if there[what] > count:
            if case.setting.mode == ONCE and batches[what] not in case.exempt:
                raise BrokenError(f"{what} stands there {there[what]} times, and was written {count} times only")
            case.doubles += there[what] - count


def _check_targets(case: Case) -> None:
    allowed: dict[tuple[str, bytes], set[tuple[int, int] | None]] = defaultdict(set)
    for _, _, row in _all_rows(case):
        allowed[row.topic, row.body].add(row.target)
    for one in _own(case.stored):
        places = allowed[one.partition.topic, one.body]
        if None not in places and (one.partition.broker_id, one.partition.partition_id) not in places:
            raise BrokenError(f"{one.body!r} was for {places}, and stands in {one.partition}")


def _check_stamps(case: Case) -> None:
    """Check that each message has its row's stamp, and with `effectivelyOnce`, that no two have the same."""
    seen: Counter[tuple[str, ...]] = Counter()
    for one in _own([*case.stored, *case.expired]):
        stamp = _stamp(one)
        query, batch, task, row = stamp
        if query != case.query:
            raise BrokenError(f"{one.body!r} has the stamp {stamp}, and the query is {case.query}")
        number = int(row) & 0xFFFFFFFF
        if int(batch) in case.changed_tasks:
            is_right = one.body in {other.body for done in case.committed[int(batch)] for other in done.rows}
        else:
            rows = case.committed[int(batch)][int(task)].rows
            if case.setting.shuffled:
                is_right = one.body in {other.body for other in rows}
            else:
                is_right = number < len(rows) and rows[number].body == one.body
        if not is_right:
            raise BrokenError(f"{one.body!r} has the stamp {stamp}, which is another row's")
        # A row that comes at another place in a later try is looked for in its topic alone, and numbered there.
        one_of = (one.partition.topic, *stamp) if case.setting.shuffled else stamp
        seen[one_of] += 1
        if seen[one_of] > 1 and case.setting.mode == ONCE and int(batch) not in case.exempt:
            raise BrokenError(f"{seen[one_of]} messages have the stamp {stamp}")


def _stamp(message: Message) -> tuple[str, ...]:
    attributes = dict(message.attributes)
    try:
        return tuple(attributes[name] for name in _STAMP)
    except KeyError as missing:
        raise BrokenError(f"{message.body!r} has no {missing}: {attributes}") from None


def _check_keys(case: Case) -> None:
    """Check that rows of a key are in order, and in one partition as long as the partitions stay."""
    first = _first_places([*case.stored, *case.expired])
    homes: dict[tuple[str, bytes], set[Partition]] = defaultdict(set)
    for batch, tasks in case.committed.items():
        for task, done in enumerate(tasks if batch not in case.changed_tasks else ()):
            counts = Counter(row.body for row in done.rows)
            last: dict[tuple[Partition, bytes], tuple[int, OutRow]] = {}
            for row in done.rows:
                if row.bad or row.key is None or counts[row.body] > 1:
                    continue
                for partition, place in first.get((row.topic, row.body), {}).items():
                    if row.target is None:
                        homes[row.topic, row.key].add(partition)
                    lane = partition, repr((row.key, row.target)).encode()
                    before = last.get(lane, (-1, row))
                    is_in_order = case.setting.shuffled or "crash" in case.accidents or before[0] < place
                    if not is_in_order:
                        raise BrokenError(f"{row} of batch {batch}, task {task} came before {before[1]} in {partition}")
                    last[lane] = place, row
    if not case.accidents & {"grow", "crash", "stop"}:
        for (topic, key), partitions in homes.items():
            if len(partitions) > 1:
                raise BrokenError(f"rows of key {key!r} of topic {topic} are in {sorted(partitions)}")


def _first_places(messages: Iterable[Message]) -> dict[tuple[str, bytes], dict[Partition, int]]:
    first: dict[tuple[str, bytes], dict[Partition, int]] = defaultdict(dict)
    for one in messages:
        places = first[one.partition.topic, one.body]
        places[one.partition] = min(one.place, places.get(one.partition, one.place))
    return first


def _check_batches(case: Case) -> None:
    """Check that each partition has the batches in order."""
    if "crash" in case.accidents:
        return
    batches = {(row.topic, row.body): batch for batch, _, row in _all_rows(case)}
    last: dict[Partition, tuple[int, int]] = {}
    for one in sorted(_own(case.stored), key=lambda one: (one.partition, one.place)):
        batch = batches[one.partition.topic, one.body]
        if batch < last.get(one.partition, (0, 0))[0]:
            raise BrokenError(f"{one.body!r} of batch {batch} stands behind batch {last[one.partition][0]}")
        last[one.partition] = batch, one.place


def _check_reports(case: Case) -> None:
    for batch, tasks in case.committed.items():
        for task, done in enumerate(tasks):
            written = done.written
            total = (
                sum(written.rows.values()) + written.already_stored + written.dropped
            )  # a dead letter is a message too
            bad = sum(bool(row.bad) for row in done.rows)
            told = {"fail": (0, 0), "drop": (bad, 0), "deadLetter": (0, bad)}[case.setting.failed_rows]
            if total != len(done.rows) or (written.dropped, written.dead_letters) != told:
                raise BrokenError(f"task {task} of batch {batch} had {len(done.rows)} rows, and reports {written}")
            if written.id != case.query:
                raise BrokenError(f"task {task} of batch {batch} reports the query {written.id}")


def _check_bad_rows(case: Case) -> None:
    """Check that each bad row, and no other, has a dead letter."""
    wanted: Counter[bytes] = Counter()
    begun: dict[bytes, float] = {}
    for tasks in case.committed.values():
        for done in tasks:
            wanted.update(row.body for row in done.rows if row.bad)
            begun |= {row.body: done.begun for row in done.rows}
    there = Counter(one.body for one in case.stored if one.partition.topic == DEAD)
    lost = Counter(
        one.body
        for one, moment in case.lost.items()
        if one.partition.topic == DEAD and moment >= begun.get(one.body, 0.0)
    )
    for body in there | lost:
        if body not in wanted:
            raise BrokenError(f"{body!r} is among the dead letters, and can be sent")
    for body, count in wanted.items():
        if case.setting.failed_rows == "deadLetter" and there[body] + lost[body] < count:
            raise BrokenError(f"there are {there[body]} dead letters of {body!r}, which are {count} rows")


def _tried(done: Committed) -> list[OutRow]:
    """Return the rows in the order of the attempt that counts."""
    return [done.rows[number] for number in done.order]


def _check_receipts(case: Case, folder: Path) -> None:
    known = {one.identity: one for one in [*case.stored, *case.lost, *case.expired]}
    for batch, tasks in case.committed.items():
        if not tasks or batch in case.changed_tasks:
            continue
        rows = pq.read_table(folder / f"{uuid.UUID(case.query)}-{batch:010d}.parquet").to_pylist()
        named = {(row["spark_partition"], row["spark_row"], row["topic"]) for row in rows}
        wanted = {
            (task, number) for task, done in enumerate(tasks) for number, row in enumerate(_tried(done)) if not row.bad
        }
        shown = {(task, number & 0xFFFFFFFF) for task, number, _ in named}
        # Where rows come in another order and are all sent again, a number is another row's each time.
        is_mixed = case.setting.shuffled and case.setting.mode != ONCE and batch in case.committed_again
        # A row that stands already may have been found in the place of an equal one, or at another place.
        is_exact = case.setting.shuffled or case.setting.equal or shown == wanted
        is_whole = wanted <= shown if is_mixed else is_exact and len(named) == len(wanted)
        if not is_whole or len(rows) != len(named):
            raise BrokenError(f"receipts of batch {batch} name {sorted(named)}, and the rows are {sorted(wanted)}")
        for row in rows:
            done = tasks[row["spark_partition"]]
            partition = Partition(row["broker_id"], row["topic"], row["partition"])
            bodies = [one.body for one in done.rows]
            if not case.setting.shuffled:
                bodies = [bodies[row["spark_row"] & 0xFFFFFFFF]]
            elif case.setting.mode != ONCE and not is_mixed:
                bodies = [bodies[done.order[row["spark_row"]]]]
            if not any((partition, row["message_id"], body) in known for body in bodies):
                raise BrokenError(f"a receipt of batch {batch} names what is not there: {row}, for {bodies[:3]}")
