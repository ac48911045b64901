"""Effectively once: a task that is tried again sends only those of its rows that do not stand yet.

Each row has a stamp, which names it, and a digest of its content. A task that may have been tried before looks at what
was stored since its batch began (`client.bookmarks` tells since where, `client.look` reads), and finds its rows there
by their digests: the rows of a task need not come in the same order again, but they must be the same rows. A send that
was not answered is looked for in its partition before it is made again.

Most tasks have no earlier try, and look at nothing: those of a batch before which the same run has committed another
one. The driver notes each commit for the plan of the next batch (`sink.note`), because Spark ends idle workers and
nothing that they remember lasts. For the first batch of a run each worker looks once, for all its tasks (`sink.runs`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.topic_partitions import all_partitions
from tubemq_spark.client.consumer.bookmarks import Bookmark, read_bookmarks
from tubemq_spark.client.consumer.partition_scan import MARGIN, ScannedMessage, entries, scan_partition
from tubemq_spark.client.producer.pending_record import RecordMetadata
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
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import parse
from tubemq_spark.sink.commit_note import CommitNote
from tubemq_spark.sink.options import OnceOptions
from tubemq_spark.sink.run_cache import RUNS
from tubemq_spark.sink.stored_rows import StoredRows, StoredRowsOfTask
from tubemq_spark.sink.stored_rows_search import StoredRowsSearch
from tubemq_spark.sink.task_context import WriteTask

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
    begins: bool = True,
) -> dict[Partition, Bookmark]:
    """The bookmarks of all partitions of `topic` that the master lists, asked `anew` or a moment ago, and those in
    `also`; those are left out whose brokers are away for so many seconds. Who does not send yet does not `begin`, and
    asks only. Raises as `read_bookmarks` and `all_partitions`."""
    partitions = all_partitions(session, f"{options.group}_look_{topic}", topic, anew=anew).union(also)
    return _read(session, options, sorted(partitions), within=away_after, begins=begins)


def planned_bookmarks(
    session: ProducerSession, options: OnceOptions, topic: str | None, others: Iterable[str]
) -> dict[Partition, Bookmark]:
    """The bookmarks that the tasks of a batch need: of all partitions of `topic`, as `bookmarks_of`, and of those that
    take messages of `others`, to which the query has written before. Tasks ask for those that are missing."""
    partitions: set[Partition] = set()
    if topic is not None:
        partitions |= all_partitions(session, f"{options.group}_look_{topic}", topic)
    for other in sorted(set(others) - {topic}):
        try:
            session.add_topics([other])
        except ConfigError as error:  # a row that goes there will say so
            _log.info("no bookmarks of topic %s are read: %s", other, error)
        partitions.update(one for one in session.cluster.partitions(other) if session.lists(one))
    return _read(session, options, sorted(partitions), within=AWAY_AFTER)


def _read(
    session: ProducerSession,
    options: OnceOptions,
    partitions: Sequence[Partition],
    *,
    within: float | None,
    begins: bool = True,
) -> dict[Partition, Bookmark]:
    """By both names that the query may have at the brokers; the older bookmark is never wrong."""
    marks = read_bookmarks(session, options.group, partitions, within=within, read_plan=True, begin_batch=begins)
    if options.former_group is None or not marks:
        return marks
    former = read_bookmarks(
        session, options.former_group, list(marks), within=within, read_plan=True, begin_batch=begins
    )
    return {one: mark.older(former[one]) for one, mark in marks.items() if one in former}


class Deduplicator:
    """The ledger of one try of a task; see `client.producer.producer.RecordLookup`."""

    def __init__(
        self,
        options: OnceOptions,
        session: ProducerSession,
        task: WriteTask,
        bookmarks: Bookmarks,
        planned_at: int,
        note: CommitNote | None = None,
        topic: str | None = None,
        unmarked: str | None = None,
    ) -> None:
        """`bookmarks` are those that the driver read before the batch, at `planned_at` (milliseconds since the epoch):
        of all partitions whose brokers answered. `note` is what the driver noted at the last commit. `topic` is the one
        of all rows that name none. Messages of the topic `unmarked` bear no stamps, and are sent with each try."""
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
        is_later = RUNS.is_later(task) or (note is not None and note.is_before(task.id, task.run, task.batch))
        self._is_first_try = is_later and task.attempt == 0
        self._is_retry = task.attempt > 0
        self._main_topic = topic
        self._topics: dict[str, StoredRowsOfTask] = {}
        self._tried: dict[str, frozenset[int]] = {}
        self._alive_at: dict[int, float] = {}  # when brokers were first heard in this try

    def __repr__(self) -> str:
        return f"<Once {self._origin} in {self._options.group}>"

    @property
    def topics(self) -> frozenset[str]:
        """Those that the task has rows for, be it that all stood already."""
        return frozenset(self._topics)

    @property
    def tried(self) -> Mapping[str, frozenset[int]]:
        """By topic, the numbers of the tasks of this batch that were found to have rows there from earlier tries."""
        return self._tried

    def place(self, topic: str, row: int, digest: str) -> tuple[int, RecordMetadata | None]:
        """The number that a row is to be stamped with; or under which it stands already, and where."""
        standing = self._topics.get(topic)
        if standing is None:
            standing = self._topics[topic] = self._begin(topic)
        if not standing:
            return row, None
        return standing.take(row, digest) or (standing.free_number(row), None)

    def finish(self) -> None:
        """To be called when all rows are stored: did an earlier try store rows that this one does not have?"""
        # A task without rows looks too, or rows of an earlier try would go unnoticed: of a task its own. For tasks that
        # there are no more, or that have no rows now, the first one looks; `sink.commit` judges what it found.
        looks = self._is_retry or (not self._is_first_try and self._origin.partition == 0)
        if looks and self._main_topic is not None and self._main_topic not in self._topics:
            self._topics[self._main_topic] = self._begin(self._main_topic)
        unclaimed = sum(standing.unclaimed for standing in self._topics.values())
        if unclaimed:
            self._uncertain(
                ConfigError(
                    f"{unclaimed} rows that an earlier try of the task has stored are not among its rows now: the "
                    "query gives other rows when it is run again, and effectivelyOnce needs one that gives the same "
                    "rows to the task of the same number"
                )
            )

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> list[Partition]:
        missing = [
            one
            for one in partitions
            if one not in self._bookmarks and one.topic != self._unmarked and (needed or one not in self._away)
        ]
        if missing:
            found = _read(self._session, self._options, missing, within=None if needed else AWAY_AFTER)
            self._bookmarks |= found
            # Those stay away as long as the task lasts, lest keys move to and fro.
            self._away.update(one for one in missing if one not in found)
        return [one for one in partitions if one in self._bookmarks or one.topic == self._unmarked]

    def ping(self, partitions: Sequence[Partition]) -> None:
        try:
            answered = read_bookmarks(self._session, self._options.group, partitions, within=AWAY_AFTER)
        except ServerError as error:
            raise TransportError(str(error)) from None
        if missing := [one for one in partitions if one not in answered]:
            raise TransportError(f"{missing[0]}: its broker does not answer")

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[object]
    ) -> Mapping[object, RecordMetadata]:
        # The bookmark was read before this try has sent anything, hence its messages stand behind the end of then.
        since = self._bookmarks[partition].end if start is None else start
        found: dict[object, RecordMetadata] = {}
        try:
            for seen in self._look_at(partition, since, retry_for=_HASTE):
                stamp = parse(seen.attributes)
                # With the digest: an earlier try may have given the number to another row.
                if stamp is not None and stamp.origin == self._origin and (stamp.row, stamp.digest) in record_ids:
                    found[stamp.row, stamp.digest] = _stored(partition, seen)
        except DataLossError as loss:
            self._uncertain(loss)
        except FencedError:
            raise
        except (TransportError, ServerError, PositionMovedError, PartitionOccupiedError) as error:
            raise TransportError(str(error)) from None
        return found

    def _begin(self, topic: str) -> StoredRowsOfTask:
        is_planned = any(one.topic == topic for one in self._bookmarks)
        if not is_planned:
            # Who looks first begins after that, lest the tasks of other processes find that the batch has begun.
            self._bookmarks |= bookmarks_of(self._session, self._options, topic, begins=self._is_first_try)
        if self._is_first_try:
            return StoredRowsOfTask()
        standing = self._found(topic)
        if not is_planned:
            known = [one for one in self._bookmarks if one.topic == topic]
            _read(self._session, self._options, known, within=None)
        return standing

    def _found(self, topic: str) -> StoredRowsOfTask:
        try:
            # Tries in an earlier run ended when this one began, or soon after. They are looked for once in a process,
            # for all tasks of the batch. A try in this run may just have failed.
            before = {} if self._is_retry else RUNS.found(self._task)
            if topic not in before:
                before[topic] = self._look(topic, self._settled(topic))
            found = before[topic]
        except TubeMQError as error:
            self._uncertain(error)
            return StoredRowsOfTask()
        self._tried[topic] = frozenset(found.tasks)
        return found.of(self._origin.partition)

    def _settled(self, topic: str) -> Bookmarks:
        """The bookmarks, read when what was sent before has been handled: of all partitions that an earlier try can
        have known."""
        known = [one for one in self._bookmarks if one.topic == topic]
        alive = bookmarks_of(self._session, self._options, topic, also=known, anew=True, away_after=None, begins=False)
        heard_at = time.monotonic()
        last = max((self._alive_at.setdefault(one.broker_id, heard_at) for one in alive), default=heard_at)
        time.sleep(max(0.0, last + SETTLING * (_AFTER_FAILURE if self._is_retry else 1) - heard_at))
        return bookmarks_of(self._session, self._options, topic, also=known, anew=True, away_after=None)

    def _look(self, topic: str, now: Bookmarks) -> StoredRows:
        """What stands of the batch: of all its tasks, and of a task that is tried again in the same run its own."""
        self._bookmarks = {**now, **self._bookmarks}
        since = {one: self._bookmarks[one].before(self._batch) for one in now}
        if _messages(now, since) > self._options.max_offsets:
            since |= {one: self._bookmarks[one].end for one in now if self._is_untried(one)}
        count = _messages(now, since)
        if count > self._options.max_offsets:
            raise ConfigError(
                f"topic {topic} got {count} messages since the batch began, and option 'effectivelyOnceMaxOffsets' "
                f"lets a task read {self._options.max_offsets} to find its own among them; raise it"
            )
        found = StoredRows()
        # In no order, lest the tasks of a batch all queue at the same partition.
        for partition, mark in random.sample(list(now.items()), len(now)):
            try:
                self._search(partition, since[partition], mark.end, found)
            except DataLossError as loss:
                if self._options.fails_when_uncertain:
                    raise
                self._uncertain(loss)  # of this partition alone
        return found

    def _search(self, partition: Partition, since: int, end: int, found: StoredRows) -> None:
        try:
            self._search_from(partition, since, end, found)
        except DataLossError as loss:
            begun = self._bookmarks[partition].end
            if since >= begun or not self._is_untried(partition):
                raise
            _log.info("%s; but no try of the batch had begun before this run", loss)
            self._search_from(partition, begun, end, found)

    def _search_from(self, partition: Partition, since: int, end: int, found: StoredRows) -> None:
        def look_at(since: int, until: int, behind: int) -> Iterator[ScannedMessage]:
            return self._look_at(partition, since, until=until, behind=behind)

        search = StoredRowsSearch(partition, self._origin.id, self._batch, look_at, self._options.max_offsets)
        for stamp, seen in search.messages(since, end):
            task, digest = stamp.origin.partition, stamp.digest
            assert digest is not None
            found.tasks.add(task)
            if not self._is_retry or task == self._origin.partition:
                found.add(task, stamp.row, digest, _stored(partition, seen))

    def _is_untried(self, partition: Partition) -> bool:
        return self._bookmarks[partition].is_untried(self._batch)

    def _look_at(
        self,
        partition: Partition,
        since: int,
        *,
        until: int | None = None,
        behind: int = MARGIN,
        retry_for: float | None = None,
    ) -> Iterator[ScannedMessage]:
        # Each look is newer than the ones before it: those of tries that were killed leave their claims behind.
        self._claim = replace(self._claim, attempt=self._claim.attempt + 1)
        return scan_partition(
            self._session,
            self._options.group,
            partition,
            since,
            until=until,
            margin=behind,
            claim=self._claim,
            retry_for=retry_for,
        )

    def _uncertain(self, problem: TubeMQError) -> None:
        what = f"task partition {self._origin.partition} of batch {self._origin.batch}"
        if not self._options.fails_when_uncertain:
            _log.warning("%s: %s; its rows may stand twice, as option 'effectivelyOnceUncertain' says", what, problem)
            return
        if isinstance(problem, DataLossError):
            raise problem.advising(_ADVICE) from None
        if isinstance(problem, ConfigError):
            raise ConfigError(f"{what}: {problem}. {_ADVICE}") from None
        raise problem


def _messages(now: Bookmarks, since: Mapping[Partition, int]) -> int:
    """How many stand behind `since`: those of a store, which its partitions share, once."""
    counts: dict[tuple[int, int], int] = {}
    for one, mark in now.items():
        store = one.broker_id, one.store_id
        counts[store] = max(counts.get(store, 0), entries(since[one], mark.end, margin=0))
    return sum(counts.values())


def _stored(partition: Partition, seen: ScannedMessage) -> RecordMetadata:
    return RecordMetadata(partition, seen.message_id, seen.position, None)
