# SPDX-License-Identifier: Apache-2.0
"""Reads the bookmarks of a query, and searches a topic for the rows of a batch that earlier attempts have stored.

A bookmark is a position. All messages of a batch are stored behind its bookmark, and those of the query's earlier
batches before it. `client.consumer.bookmarks` explains how brokers keep bookmarks, and why an old one is never wrong.

A message of the batch before the bookmark shows that the bookmark is too late. The servers may have dropped the query's
groups, which then started again at the end; somebody may have moved them; or a broker lost messages in a crash and gave
their positions to others. The search then goes back until it meets a message of an earlier batch, or the beginning of
the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tubemq_spark.client import system
from tubemq_spark.client.cluster.deployed_topics import all_partitions
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.bookmarks import Bookmark, read_bookmarks
from tubemq_spark.client.consumer.partition_scan import MARGIN, ScannedMessage, scan_partition
from tubemq_spark.client.consumer.working_group import scan_group
from tubemq_spark.client.producer.record_batch import RecordMetadata
from tubemq_spark.errors import ConfigError, DataLossError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.stamp import Stamp, parse
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.stored_rows import StoredRows
from tubemq_spark.sink.task_attempts import WriteTask

_log = logging.getLogger(__name__)

# Times as long, after an attempt of this run: a broker that hangs is what makes attempts fail.
_SETTLING_AFTER_FAILURE = 3


Bookmarks = Mapping[Partition, Bookmark]


class QueryBookmarks:
    """The bookmarks that one batch of a query needs.

    `known` has the first bookmark of each partition that was read for this attempt of the batch. A later reading cannot
    replace it, because the messages that this attempt sends are behind the first one only.
    """

    def __init__(self, session: ProducerSession, options: EffectivelyOnceOptions, planned: Bookmarks) -> None:
        """`planned` are the bookmarks that the driver has read before the batch began."""
        self._session = session
        self._options = options
        self._away_after = session.settings.timings.broker_away_after
        self._away: set[Partition] = set()
        self.known: dict[Partition, Bookmark] = dict(planned)

    def of_topic(self, topic: str) -> list[Partition]:
        return [partition for partition in self.known if partition.topic == topic]

    def read_missing(self, partitions: Sequence[Partition], *, needed: bool) -> None:
        """Make the bookmarks of `partitions` known.

        A partition whose broker does not answer stays without one as long as the task lasts, so that keys do not move
        to and fro. If all partitions are `needed`, raise `TransportError` instead.
        """
        missing = [one for one in partitions if one not in self.known and (needed or one not in self._away)]
        if missing:
            found = self.read(missing, skip_away=not needed)
            self.known |= found
            self._away.update(one for one in missing if one not in found)

    def read_for_batch(self, topic: str | None, earlier_topics: Iterable[str]) -> Bookmarks:
        """Return the bookmarks that the tasks of a batch need, read on the driver.

        These are the bookmarks of all partitions of `topic`, the option, and of those that the session knows of
        `earlier_topics`, to which the query has written before. They need not accept messages now: tasks leave marks by
        them. A task reads further ones itself.
        """
        partitions: set[Partition] = set()
        if topic is not None:
            partitions |= self._all_partitions(topic)
        for other in sorted(set(earlier_topics) - {topic}):
            try:
                self._session.add_topics([other])
            except ConfigError as error:  # a row for this topic fails with the same error
                _log.info("the plan reads no bookmarks of topic %s: %s", other, error)
            partitions.update(self._session.cluster.partitions(other))
        return self.read(partitions)

    def read_topic(
        self, topic: str, *, refresh: bool = False, skip_away: bool = True, begins: bool = True
    ) -> dict[Partition, Bookmark]:
        """Return the present bookmarks of all partitions of `topic`: those that the master lists and the known ones.

        With `refresh`, ask the master for its list even if it was asked a moment ago.
        """
        partitions = self._all_partitions(topic, refresh=refresh).union(self.of_topic(topic))
        return self.read(partitions, skip_away=skip_away, begins=begins)

    def read(
        self, partitions: Iterable[Partition], *, skip_away: bool = True, begins: bool = True
    ) -> dict[Partition, Bookmark]:
        """Return the present bookmarks of `partitions`.

        With `skip_away`, leave out partitions whose broker does not answer soon; without, raise `TransportError` for
        them. `begins` is False for a caller that does not send yet.
        """
        within = self._away_after if skip_away else None
        group = self._options.group
        return read_bookmarks(self._session, group, sorted(partitions), within=within, begin_batch=begins)

    def _all_partitions(self, topic: str, *, refresh: bool = False) -> frozenset[Partition]:
        return all_partitions(self._session, scan_group(self._options.group, topic), topic, refresh=refresh)


class StoredRowsSearch:
    """Searches topics for what earlier attempts of a task's batch have stored."""

    def __init__(
        self,
        session: ProducerSession,
        options: EffectivelyOnceOptions,
        task: WriteTask,
        bookmarks: QueryBookmarks,
        planned_at: int,
        report_uncertain: Callable[[TubeMQError], None],
    ) -> None:
        """`planned_at` is the driver's time of the plan, in milliseconds since the epoch.

        `report_uncertain` is called for each partition that has lost messages, if the option allows that.
        """
        self._session = session
        self._options = options
        self._task = task
        self._bookmarks = bookmarks
        # Newer than the claims of all earlier attempts, by one clock, the driver's.
        self._claim = ClaimId(
            f"look-{task.id}-{task.partition}", planned_at, task.batch, task.partition, task.attempt_id << 20
        )
        self._report_uncertain = report_uncertain
        self._first_answer: dict[int, float] = {}  # of each broker in this attempt, on the monotonic clock

    def rows_in(self, topic: str, *, of_all_tasks: bool) -> StoredRows:
        """Return the batch's rows in `topic`: of all tasks, or only of this task, which this run attempts again.

        Raise `ConfigError` if the topic has too many messages to read, or if a run without `effectivelyOnce` has begun
        the batch, `DataLossError` if retention may have removed rows, and otherwise as `scan_partition`.
        """
        ends = self._bookmarks_after_settling(topic, 1 if of_all_tasks else _SETTLING_AFTER_FAILURE)
        self._bookmarks.known = known = {**ends, **self._bookmarks.known}
        batch, limit = self._task.batch, self._options.max_offsets
        since = {one: known[one].before(batch) for one in ends}
        if _count_messages(ends, since) > limit:
            since |= {one: known[one].end for one in ends if known[one].is_untried(batch)}
        count = _count_messages(ends, since)
        if count > limit:
            raise ConfigError(
                f"topic {topic} received {count} messages since the batch began, but option "
                f"'effectivelyOnceMaxOffsets' lets a task read only {limit} to find its own among them. Raise it"
            )
        stored = StoredRows()
        # The order is random, so that the tasks of a batch do not all wait for the same partition.
        for partition, bookmark in system.randomizer.sample(list(ends.items()), len(ends)):
            try:
                self._collect(partition, since[partition], bookmark.end, stored, of_all_tasks)
            except (DataLossError, ConfigError) as problem:
                if self._options.fails_when_uncertain:
                    raise
                self._report_uncertain(problem)
        # Only now: if the search failed, the next attempt could not rule out that the batch had begun. Also where the
        # plan has marked it, because a broker may have lost that in a crash.
        self._bookmarks.read(ends, skip_away=not self._options.fails_when_uncertain)
        return stored

    def _bookmarks_after_settling(self, topic: str, times: int) -> Bookmarks:
        """Return the bookmarks of all partitions that an earlier attempt can know.

        They are read when the brokers have handled what earlier attempts sent: some time after each broker has answered
        for the first time.
        """
        answered = self._bookmarks.read_topic(topic, refresh=True, skip_away=False, begins=False)
        settings = self._session.settings
        now = settings.clock.monotonic()
        last = max((self._first_answer.setdefault(one.broker_id, now) for one in answered), default=now)
        settling = settings.timings.task_settling * times
        settings.clock.sleep(max(0.0, last + settling - now))
        return self._bookmarks.read_topic(topic, refresh=True, skip_away=False, begins=False)

    def _collect(self, partition: Partition, since: int, end: int, stored: StoredRows, of_all_tasks: bool) -> None:
        search = _PartitionSearch(partition, self._task, self._options.max_offsets, self.scan)
        without_digest: ScannedMessage | None = None
        try:
            for stamp, message in search.messages(since, end):
                task, digest = stamp.origin.partition, stamp.digest
                stored.tasks.add(task)
                if not (of_all_tasks or task == self._task.partition):
                    continue
                if digest is None:
                    without_digest = message
                else:
                    where = RecordMetadata(partition, message.message_id, message.position)
                    stored.add(task, stamp.row, digest, where)
        except DataLossError as loss:
            bookmark = self._bookmarks.known[partition]
            if since >= bookmark.end or not bookmark.is_untried(self._task.batch):
                raise
            _log.info("%s; but no attempt of the batch had begun before this run", loss)
            self._collect(partition, bookmark.end, end, stored, of_all_tasks)
        if without_digest is not None:
            raise ConfigError(
                f"{partition}: message {without_digest.message_id} is a row of the batch without a digest. A run "
                "without 'effectivelyOnce' has begun the batch, so it is unknown which rows are stored. Let such a run "
                "finish the batch, and stop it between two batches before you switch the option on"
            )

    def scan(
        self,
        partition: Partition,
        since: int,
        until: int | None = None,
        margin: int = MARGIN,
        retry_for: float | None = None,
    ) -> Iterator[ScannedMessage]:
        """Yield as `scan_partition` does, with a newer claim than before: a killed attempt leaves its claims behind."""
        self._claim = claim = replace(self._claim, attempt=self._claim.attempt + 1)
        group = self._options.group
        return scan_partition(
            self._session, group, partition, since, claim, until=until, margin=margin, retry_for=retry_for
        )


class _PartitionSearch:
    """Searches one partition for the messages of a task's batch, also where the bookmark is too late."""

    def __init__(
        self,
        partition: Partition,
        task: WriteTask,
        max_offsets: int,
        scan: Callable[[Partition, int, int, int], Iterator[ScannedMessage]],
    ) -> None:
        """The search reads at most `max_offsets` index entries before the bookmark."""
        self._partition = partition
        self._task = task
        self._max_offsets = max_offsets
        self._scan = scan
        self._has_met_earlier_batch = False
        self._first: ScannedMessage | None = None

    def messages(self, since: int, end: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        """Yield the batch's messages behind its bookmark `since`, and all that are before it, up to `end`.

        A message may come twice. Raise as `scan_partition`, and `ConfigError` if there is too much to read before the
        bookmark.
        """
        yield from self._read(since, end, MARGIN)
        stop = min(since, end)
        start = max(0, stop - MARGIN * UNIT)
        if self._first is None or self._has_met_earlier_batch or start == 0 or not self._is_before(stop, start):
            return
        count = MARGIN
        while start > 0 and not self._has_met_earlier_batch:
            count *= 2
            if count > max(self._max_offsets, MARGIN):
                raise ConfigError(
                    f"{self._too_late(since)}. Option 'effectivelyOnceMaxOffsets' lets a task read only "
                    f"{self._max_offsets} messages to find the first one. Raise it"
                )
            begin = max(0, start - count * UNIT)
            yield from self._read_before(begin, start, since)
            start = begin

    def _read_before(self, begin: int, end: int, since: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        try:
            yield from self._read(begin, end, 0)
        except DataLossError as loss:
            if loss.offered < end:
                yield from self._read(loss.offered, end, 0)
            if not self._has_met_earlier_batch:
                raise loss_of(
                    self._partition,
                    f"{self._too_late(since)}. It is unknown what an earlier attempt has stored, because retention has "
                    f"removed messages in [{begin}, {loss.offered})",
                    asked=begin,
                    offered=loss.offered,
                ) from None

    def _too_late(self, since: int) -> str:
        return (
            f"{self._partition}: messages of the batch are stored before the query's bookmark at {since}, which is too "
            "late: the servers dropped the query's groups, or somebody moved them"
        )

    def _read(self, since: int, end: int, margin: int) -> Iterator[tuple[Stamp, ScannedMessage]]:
        has_met_batch = False
        batch = self._task.batch
        for message in self._scan(self._partition, since, end, margin):
            stamp = parse(message.attributes)
            if stamp is None or stamp.origin.id != self._task.id:
                continue
            if stamp.origin.batch < batch:
                self._has_met_earlier_batch = self._has_met_earlier_batch or not has_met_batch
            elif stamp.origin.batch == batch:
                has_met_batch = True
                # A run without `effectivelyOnce` had no bookmarks, so the first messages without digest show nothing.
                if stamp.digest is not None:
                    self._first = self._first or message
                yield stamp, message

    def _is_before(self, stop: int, start: int) -> bool:
        """Return True if a message of the batch is stored between `start` and `stop`, the bookmark."""
        assert self._first is not None
        if self._first.position is not None:
            return self._first.position < stop
        return any(True for _ in self._read(start, stop, 0))


def _count_messages(ends: Bookmarks, since: Mapping[Partition, int]) -> int:
    """Return how many messages are behind `since`. Partitions of one store share its messages, which count once."""
    counts: dict[tuple[int, int], int] = {}
    for partition, bookmark in ends.items():
        store = partition.broker_id, partition.store_id
        counts[store] = max(counts.get(store, 0), (bookmark.end - since[partition]) // UNIT)
    return sum(counts.values())
