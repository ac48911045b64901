"""Effectively once: a task that is tried again sends only those of its rows that do not stand yet.

Each row has a stamp, which names it, and a digest of its content. A task that may have been tried before looks at what
was stored since its batch began (`client.bookmarks` tells since where, `client.look` reads), and finds its rows there
by their digests: the rows of a task need not come in the same order again, but they must be the same rows. A send that
was not answered is looked for in its partition before it is made again.

Most tasks have no earlier try, and look at nothing: those of a batch before which this worker has seen another of the
same run. For the first batch that a worker sees of a run it looks once, for all its tasks.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tubemq_spark.client.bookmarks import Bookmark, read_bookmarks
from tubemq_spark.client.look import Seen, entries, look
from tubemq_spark.client.master import ProducerSession
from tubemq_spark.client.outgoing import Stored
from tubemq_spark.client.whole_topic import all_partitions
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.consume import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import parse
from tubemq_spark.sink.options import OnceOptions
from tubemq_spark.sink.origin import Task

_log = logging.getLogger(__name__)

SETTLING = 3.0
"""Seconds within which an earlier try has ended, and brokers have handled what it sent. Spark gives a worker 2 s to end
when its task is cancelled (spark.python.task.killTimeout)."""

AWAY_AFTER = 2.0  # seconds without an answer after which a batch does without a broker

_AFTER_FAILURE = 3  # times as long: a broker that is stuck is why tries fail

_HASTE = 5.0  # seconds to retry a look within a task, where other rows wait meanwhile
_ADVICE = (
    "Restore the query's input, or set option 'effectivelyOnceUncertain' to sendAgain, which sends all rows of the "
    "task that were not found, and may store some twice"
)


Bookmarks = Mapping[Partition, Bookmark]


def bookmarks_of(
    session: ProducerSession,
    options: OnceOptions,
    topic: str,
    *,
    also: Iterable[Partition] = (),
    anew: bool = False,
    away_after: float | None = AWAY_AFTER,
) -> dict[Partition, Bookmark]:
    """The bookmarks of all partitions of `topic` that the master lists, asked `anew` or a moment ago, and those in
    `also`; those are left out whose brokers are away for so many seconds. Raises as `read_bookmarks` and
    `all_partitions`."""
    partitions = all_partitions(session, f"{options.group}_look_{topic}", topic, anew=anew).union(also)
    return read_bookmarks(session, options.group, sorted(partitions), within=away_after)


class Standing:
    """The rows of one task that an earlier try has stored in a topic."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str, Stored]] = {}
        self._left: dict[str, list[int]] = {}  # those that no row of this try was found to be, by digest

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int, digest: str, stored: Stored) -> None:
        if row not in self._rows:  # one that stands twice is one
            self._rows[row] = digest, stored
            self._left.setdefault(digest, []).append(row)

    def take(self, row: int, digest: str) -> tuple[int, Stored] | None:
        """The number under which an equal row stands, and where; the same one is not given twice."""
        numbers = self._left.get(digest)
        if not numbers:
            return None
        number = row if row in numbers else numbers[0]
        numbers.remove(number)
        return number, self._rows[number][1]

    def free_number(self, row: int) -> int:
        """For a row that does not stand: its own number unless another row stands under that."""
        while row in self._rows:
            row += 1 << 32
        return row

    @property
    def unclaimed(self) -> int:
        """How many stand that were not taken."""
        return sum(len(numbers) for numbers in self._left.values())


class Found:
    """What earlier runs have stored of a batch in a topic, by task. `is_whole` unless that is too much to keep."""

    _MOST = 500_000

    def __init__(self, marks: Bookmarks) -> None:
        """`marks` were read when the tries of earlier runs were over."""
        self.marks = marks
        self.is_whole = True
        self._count = 0
        self._rows: dict[int, list[tuple[int, str, Stored]]] = {}

    def add(self, task: int, row: int, digest: str, stored: Stored) -> None:
        self._count += 1
        if self._count > self._MOST:
            self.is_whole = False
            self._rows.clear()
        if self.is_whole:
            self._rows.setdefault(task, []).append((row, digest, stored))

    def of(self, task: int) -> Standing:
        standing = Standing()
        for found in self._rows.get(task, ()):
            standing.add(*found)
        return standing


class Runs:
    """What this process knows of the runs of queries: the first batch that it has seen of each, for all later ones
    cannot have been tried before the run began; and what earlier runs have stored of that first one, by topic."""

    _MOST = 100

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._known: OrderedDict[tuple[str | None, str | None], tuple[int, dict[str, Found]]] = OrderedDict()

    def is_later(self, task: Task) -> bool:
        """Whether `task` is of a later batch than the first that was seen of its run."""
        if task.run is None:
            return False
        first, found = self._of(task)
        if task.batch > first:
            found.clear()
        return task.batch > first

    def found(self, task: Task) -> dict[str, Found]:
        """By topic, for the first batch of the task's run; to be filled."""
        return {} if task.run is None else self._of(task)[1]

    def _of(self, task: Task) -> tuple[int, dict[str, Found]]:
        known = self._known.setdefault((task.id, task.run), (task.batch, {}))
        self._known.move_to_end((task.id, task.run))
        while len(self._known) > self._MOST:
            self._known.popitem(last=False)
        return known


RUNS = Runs()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RUNS.forget)


class Once:
    """The ledger of one try of a task; see `client.producer.Ledger`."""

    def __init__(
        self,
        options: OnceOptions,
        session: ProducerSession,
        task: Task,
        bookmarks: Bookmarks,
        planned_at: int,
        unmarked: str | None = None,
    ) -> None:
        """`bookmarks` are those that the driver read before the batch, at `planned_at` (milliseconds since the epoch):
        of all partitions whose brokers answered. Messages of the topic `unmarked` bear no stamps, and are sent with
        each try."""
        self._options = options
        self._unmarked = unmarked
        self._session = session
        self._task = task
        self._origin = task.origin
        self._batch = task.batch
        # Newer than those of all tries before it, by one clock, the driver's.
        self._claim = ClaimId(
            f"look-{task.id}-{task.partition}", planned_at, task.batch, task.partition, task.attempt << 20
        )
        self._bookmarks = dict(bookmarks)
        self._away: set[Partition] = set()
        self._is_first_try = RUNS.is_later(task) and task.attempt == 0
        self._is_retry = task.attempt > 0
        self._topics: dict[str, Standing] = {}
        self._alive_at: dict[int, float] = {}  # when brokers were first heard in this try

    def __repr__(self) -> str:
        return f"<Once {self._origin} in {self._options.group}>"

    @property
    def topics(self) -> frozenset[str]:
        """Those that the task has rows for, be it that all stood already."""
        return frozenset(self._topics)

    def place(self, topic: str, row: int, digest: str) -> tuple[int, Stored | None]:
        """The number that a row is to be stamped with; or under which it stands already, and where."""
        standing = self._topics.get(topic)
        if standing is None:
            standing = self._topics[topic] = self._begin(topic)
        if not standing:
            return row, None
        return standing.take(row, digest) or (standing.free_number(row), None)

    def finish(self) -> None:
        """To be called when all rows are stored: did an earlier try store rows that this one does not have?"""
        if self._is_retry:  # it may have none at all
            for topic in {one.topic for one in self._bookmarks} - self._topics.keys():
                self._topics[topic] = self._begin(topic)
        unclaimed = sum(standing.unclaimed for standing in self._topics.values())
        if unclaimed:
            self._uncertain(
                ConfigError(
                    f"{unclaimed} rows that an earlier try of the task has stored are not among its rows now: the "
                    "query gives other rows when it is run again, and effectivelyOnce needs one that gives the same"
                )
            )

    def usable(self, partitions: Sequence[Partition], *, needed: bool) -> list[Partition]:
        missing = [
            one
            for one in partitions
            if one not in self._bookmarks and one.topic != self._unmarked and (needed or one not in self._away)
        ]
        if missing:
            found = read_bookmarks(self._session, self._options.group, missing, within=None if needed else AWAY_AFTER)
            self._bookmarks |= found
            # Those stay away as long as the task lasts, lest keys move to and fro.
            self._away.update(one for one in missing if one not in found)
        return [one for one in partitions if one in self._bookmarks or one.topic == self._unmarked]

    def greet(self, partitions: Sequence[Partition]) -> None:
        try:
            answered = read_bookmarks(self._session, self._options.group, partitions, within=AWAY_AFTER)
        except ServerError as error:
            raise TransportError(str(error)) from error
        if missing := [one for one in partitions if one not in answered]:
            raise TransportError(f"{missing[0]}: its broker does not answer")

    def find(self, partition: Partition, floor: int | None, marks: Collection[object]) -> Mapping[object, Stored]:
        since = self._bookmarks[partition].before(self._batch) if floor is None else floor
        found: dict[object, Stored] = {}
        try:
            for seen in self._look_at(partition, since, retry_for=_HASTE):
                stamp = parse(seen.attributes)
                # With the digest: an earlier try may have given the number to another row.
                if stamp is not None and stamp.origin == self._origin and (stamp.row, stamp.digest) in marks:
                    found[stamp.row, stamp.digest] = _stored(partition, seen)
        except DataLossError as loss:
            self._uncertain(loss)
        except FencedError:
            raise
        except (TransportError, ServerError, PositionMovedError, PartitionOccupiedError) as error:
            raise TransportError(str(error)) from error
        return found

    def _begin(self, topic: str) -> Standing:
        if not any(one.topic == topic for one in self._bookmarks):
            self._bookmarks |= bookmarks_of(self._session, self._options, topic)
        if self._is_first_try:
            return Standing()
        try:
            if self._is_retry:  # of this run: that try may just have failed
                return self._standing(topic, self._settled(topic))
            # Tries in an earlier run ended when this one began, or soon after. They are looked for once in a process,
            # for all tasks of the batch.
            before = RUNS.found(self._task)
            if topic not in before:
                found = Found(self._settled(topic))
                self._look(topic, found.marks, found.add)
                before[topic] = found
            found = before[topic]
            return found.of(self._origin.partition) if found.is_whole else self._standing(topic, found.marks)
        except TubeMQError as error:
            self._uncertain(error)
            return Standing()

    def _settled(self, topic: str) -> Bookmarks:
        """The bookmarks, read when what was sent before has been handled: of all partitions that an earlier try can
        have known."""
        known = [one for one in self._bookmarks if one.topic == topic]
        alive = bookmarks_of(self._session, self._options, topic, also=known, anew=True, away_after=None)
        heard_at = time.monotonic()
        last = max((self._alive_at.setdefault(one.broker_id, heard_at) for one in alive), default=heard_at)
        time.sleep(max(0.0, last + SETTLING * (_AFTER_FAILURE if self._is_retry else 1) - heard_at))
        return bookmarks_of(self._session, self._options, topic, also=known, anew=True, away_after=None)

    def _look(self, topic: str, now: Bookmarks, add: Callable[[int, int, str, Stored], None]) -> None:
        """Finds what stands of the batch: task, row, digest and place of each."""
        self._bookmarks = {**now, **self._bookmarks}
        since = {one: self._bookmarks[one].before(self._batch) for one in now}
        count = _messages(now, since)
        if count > self._options.max_offsets:
            raise ConfigError(
                f"topic {topic} got {count} messages since the batch began, and option 'effectivelyOnceMaxOffsets' "
                f"lets a task read {self._options.max_offsets} to find its own among them; raise it"
            )
        # In no order, lest the tasks of a batch all queue at the same partition.
        for partition, mark in random.sample(list(now.items()), len(now)):
            try:
                for seen in self._look_at(partition, since[partition], until=mark.end):
                    stamp = parse(seen.attributes)
                    if stamp is not None and stamp.digest is not None and stamp.origin[:2] == self._origin[:2]:
                        add(stamp.origin.partition, stamp.row, stamp.digest, _stored(partition, seen))
            except DataLossError as loss:
                if self._options.fails_when_uncertain:
                    raise
                self._uncertain(loss)  # of this partition alone

    def _standing(self, topic: str, now: Bookmarks) -> Standing:
        """What stands of this task alone."""
        standing = Standing()

        def add(task: int, row: int, digest: str, stored: Stored) -> None:
            if task == self._origin.partition:
                standing.add(row, digest, stored)

        self._look(topic, now, add)
        return standing

    def _look_at(
        self, partition: Partition, since: int, *, until: int | None = None, retry_for: float | None = None
    ) -> Iterator[Seen]:
        # Each look is newer than the ones before it: those of tries that were killed leave their claims behind.
        self._claim = replace(self._claim, attempt=self._claim.attempt + 1)
        return look(
            self._session,
            self._options.group,
            partition,
            since,
            until=until,
            claim=self._claim,
            retry_for=retry_for,
        )

    def _uncertain(self, problem: TubeMQError) -> None:
        what = f"task partition {self._origin.partition} of batch {self._origin.batch}"
        if not self._options.fails_when_uncertain:
            _log.warning("%s: %s; its rows may stand twice, as option 'effectivelyOnceUncertain' says", what, problem)
            return
        if isinstance(problem, DataLossError):
            raise problem.advising(_ADVICE)
        if isinstance(problem, ConfigError):
            raise ConfigError(f"{what}: {problem}. {_ADVICE}") from problem
        raise problem


def _messages(now: Bookmarks, since: Mapping[Partition, int]) -> int:
    """How many stand behind `since`: those of a store, which its partitions share, once."""
    counts: dict[tuple[int, int], int] = {}
    for one, mark in now.items():
        store = one.broker_id, one.store_id
        counts[store] = max(counts.get(store, 0), entries(since[one], mark.end, behind=0))
    return sum(counts.values())


def _stored(partition: Partition, seen: Seen) -> Stored:
    return Stored(partition, seen.message_id, seen.position, None)
