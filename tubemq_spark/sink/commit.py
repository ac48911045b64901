"""What a task reports, and what is left to do when a batch is written.

Spark calls this on the driver, in a process of its own and with a writer made anew. All rows are stored by then.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from pyspark.sql.datasource import WriterCommitMessage

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.bookmarks import move_bookmarks
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit_note import CommitNote, read_commit_note, write_commit_note
from tubemq_spark.sink.deduplicator import AWAY_AFTER
from tubemq_spark.sink.options import OnceOptions, SinkOptions
from tubemq_spark.sink.receipts import write_receipts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What became of a task's rows. `rows` counts messages stored, by TubeMQ's partition key
    (`brokerId:topic:partitionId`), dead letters too; `stood` the rows that an earlier try had stored. `id` is the
    query's or write's, `run` that of the query's run; `task` is the task's number. `receipts` are what
    `Receipts.packed` gave; `topics` those with bookmarks to be moved; `tried` is what `Once.tried` tells."""

    rows: Mapping[str, int] = field(default_factory=dict)
    id: str | None = None
    dropped: int = 0
    dead: int = 0
    stood: int = 0
    topics: frozenset[str] = frozenset()
    receipts: bytes | None = field(default=None, repr=False)
    run: str | None = None
    task: int = 0
    tried: Mapping[str, frozenset[int]] = field(default_factory=dict, repr=False)


def commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    """Writes the receipts, moves the query's bookmarks; `batch` is None for a batch write. Doing it again changes
    nothing. Raises as `write_receipts`; `ConfigError` when rows of an earlier try are no task's any more."""
    written = [message for message in messages if isinstance(message, Written)]
    if options.once is not None and batch is not None:
        _check_tasks(options.once, batch, written)
    if options.receipts is not None and written:
        parts = [message.receipts for message in written if message.receipts is not None]
        file = write_receipts(options.receipts, written[0].id or "local", batch, parts)
        _log.info("%s: receipts in %s", _name(batch), file)
    if options.once is not None and batch is not None:
        _move_bookmarks(options, options.once, batch, written)
    dropped = sum(message.dropped for message in written)
    if dropped:
        _log.warning("%s: %d rows could never be sent and were dropped (failedRows=drop)", _name(batch), dropped)
    _log.debug("%s is committed: %s", _name(batch), _summary(messages))


def note_abort(messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    """What is stored stays stored."""
    _log.warning(
        "%s failed; what is stored stays, and another attempt may store it again: %s, and perhaps rows of others",
        _name(batch),
        _summary(messages),
    )


def _check_tasks(once: OnceOptions, batch: int, written: Sequence[Written]) -> None:
    """Rows of an earlier try belong to a task that has rows of the topic now too, and has hence compared them."""
    here = {one.task: one for one in written}
    for topic in sorted({topic for one in written for topic in one.tried}):
        tried = frozenset[int]().union(*(one.tried.get(topic, ()) for one in written))
        left = sorted(number for number in tried if number not in here or topic not in here[number].topics)
        if not left:
            continue
        gone = [number for number in left if number not in here]
        what = (
            f"batch {batch}: an earlier try has stored rows of task {_some(left)} in topic {topic}, and these have no "
            f"such rows now: the batch has {len(here)} tasks{', and had more' if gone else ''}. The rows may be "
            "another task's now and stand twice, for effectivelyOnce needs a query that gives the same rows to the "
            "task of the same number"
        )
        if not once.fails_when_uncertain:
            _log.warning("%s; nothing is done about it, as option 'effectivelyOnceUncertain' says", what)
            continue
        raise ConfigError(
            f"{what}. Keep what decides on the number of tasks (spark.sql.shuffle.partitions, the source's read "
            "limits, the cores where these count) when a query is started again. To go on with this batch as it is, "
            "set option 'effectivelyOnceUncertain' to sendAgain"
        )


def _some(numbers: Sequence[int], most: int = 5) -> str:
    return ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")


def _move_bookmarks(options: SinkOptions, once: OnceOptions, batch: int, written: Sequence[Written]) -> None:
    topics = {topic for message in written for topic in message.topics}
    if options.topic is not None:
        topics.add(options.topic)
    # Those of earlier batches too: each of the two groups would else lag behind in topics that few batches write to.
    last = read_commit_note(once.group)
    earlier = set(last.topics)
    try:
        with SESSIONS.lease(options.client) as session:
            partitions = {topic: _partitions(session, topic) for topic in sorted(earlier | topics)}
            for topic in earlier - topics:
                if not any(map(session.lists, partitions[topic])):  # closed or gone: it would cost each commit a wait
                    del partitions[topic]
                    earlier.discard(topic)
            for group in filter(None, (once.former_group, once.group)):
                move_bookmarks(session, group, batch, chain(*partitions.values()), within=AWAY_AFTER)
    except (TransportError, ServerError) as error:
        # A bookmark that is too old only means that a retry of the next batch has more to read.
        _log.warning("%s: not all bookmarks could be moved: %s", _name(batch), error)
    note = CommitNote(written[0].id, written[0].run, batch) if written else last
    write_commit_note(once.group, replace(note, topics=frozenset(earlier | topics)))


def _partitions(session: ProducerSession, topic: str) -> list[Partition]:
    """None of a topic that takes no messages any more."""
    try:
        session.add_topics([topic])
    except ConfigError as error:
        _log.info("the bookmarks of topic %s are left where they are: %s", topic, error)
    return session.cluster.partitions(topic)


def _name(batch: int | None) -> str:
    return "a batch write" if batch is None else f"batch {batch}"


def _summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    rows: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            rows.update(message.rows)
    return f"{rows.total()} rows in {len(rows)} partitions by tasks that finished"
