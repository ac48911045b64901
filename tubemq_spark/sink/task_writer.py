"""From a task's rows to stored messages; and before, on the driver, whether that can work at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import StructType

from tubemq_spark.client.cluster.deployed_topics import add_topics
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.bookmarks import Bookmark
from tubemq_spark.client.producer.pending_record import PendingRecord, RecordId, RecordMetadata
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol import stamp
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.body_codec import BodyCodec
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.commit_note import CommitNote, read_commit_note
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.deduplicator import Deduplicator, planned_bookmarks
from tubemq_spark.sink.gc_pause import rare_collections
from tubemq_spark.sink.options import DEAD_LETTER, EFFECTIVELY_ONCE, FAIL, SinkOptions
from tubemq_spark.sink.receipts import Receipts, check_folder
from tubemq_spark.sink.row_encoder import BadRowError, Parts, RowEncoder, digest_of, with_digest
from tubemq_spark.sink.schema import Cells, cells_of_batch, cells_of_row, check_columns, columns_read
from tubemq_spark.sink.task_context import WriteTask, this_task

_log = logging.getLogger(__name__)

_SLICE = 1000  # rows of a batch that are taken out of Arrow at a time
_SHOWN = 5  # failed rows of a task that are told one by one
_ADVICE = "; drop or mend such rows in the query, or set option 'failedRows' to drop or deadLetter"


@dataclass(frozen=True)
class Plan:
    """What the driver gives to the tasks of a batch: plain values. `write_id` is None for streams; `made_at` is in
    milliseconds since the epoch; `note` is what the last commit left, with `effectivelyOnce`."""

    options: SinkOptions
    write_id: str | None = None
    bookmarks: Mapping[Partition, Bookmark] = field(default_factory=dict, repr=False)
    made_at: int = 0
    note: CommitNote | None = None


def plan(raw: Mapping[str, str], schema: StructType, overwrite: bool, write_id: str | None = None) -> Plan:
    """All that can be checked before a task runs. `ConfigError` for options, columns, a mode or a topic that cannot be
    used, `AuthError`, `TransportError` when no master answers, a topic's brokers are all down, or, with
    `effectivelyOnce`, one is."""
    if overwrite:
        raise ConfigError("TubeMQ only appends: write with mode('append'), or stream with outputMode('append')")
    if write_id is not None and EFFECTIVELY_ONCE.get(raw):
        raise ConfigError("option 'effectivelyOnce' is for streams; a batch write may use option 'stampRows'")
    options = SinkOptions.from_options(raw)
    check_columns(schema, options.topic, options.message_format)
    names = schema.fieldNames()
    if ignored := [name for name in names if name not in columns_read(tuple(names), options.topic)]:
        _log.info("the sink ignores the columns %s: option 'topic' wins, or they say where rows were read", ignored)
    if options.receipts is not None:
        check_folder(options.receipts)
    topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic is not None]
    if topics:
        with SESSIONS.lease(options.client) as session:
            add_topics(session, topics)
        options = replace(options, client=replace(options.client, are_proven=True))
    return Plan(options, write_id)


def ready_for_tasks(planned: Plan) -> Plan:
    """The plan with what tasks need to know of the moment before they begin, when the options say `effectivelyOnce`:
    to be called once for each try of a batch. Raises as `plan`; `TransportError` when a broker does not answer."""
    once = planned.options.once
    if once is None or planned.made_at:
        return planned
    note = read_commit_note(once.group)
    bookmarks: Mapping[Partition, Bookmark] = {}
    if planned.options.topic is not None or note.topics:
        with SESSIONS.lease(planned.options.client) as session:
            bookmarks = planned_bookmarks(session, once, planned.options.topic, note.topics)
    return replace(planned, bookmarks=bookmarks, made_at=time.time_ns() // 1_000_000, note=note)


def write_batches(planned: Plan, batches: Iterable[pa.RecordBatch]) -> Written:
    """Sends all rows; returns when they are stored. For a row that can never be sent a `ConfigError` that names it,
    after the rows before it are stored, unless option `failedRows` says otherwise; else raises as `Producer.send` and
    `flush` do."""
    slices = (batch.slice(start, _SLICE) for batch in batches for start in range(0, batch.num_rows, _SLICE))
    return _TaskWriter(planned, this_task(planned.write_id)).write(
        cells for part in slices for cells in cells_of_batch(part, planned.options.topic)
    )


def write_rows(planned: Plan, rows: Iterable[Row]) -> Written:
    """As `write_batches`, for rows as Spark gives them to writers without Arrow."""
    topic = planned.options.topic
    return _TaskWriter(planned, this_task(planned.write_id)).write(cells_of_row(row, topic) for row in rows)


class _TaskWriter:
    """Writes the rows of one task, once."""

    def __init__(self, planned: Plan, task: WriteTask) -> None:
        self._options = options = planned.options
        self._planned = planned
        self._task = task
        self._name = f"of task partition {task.partition}" if task.id is not None else "of the task"
        self._encoder = RowEncoder(
            options.topic, BodyCodec(options.message_format, options.compression), stamped=options.stamp_rows
        )
        self._stamp = b"," + stamp.encode(task.origin) if options.stamp_rows else b""
        self._receipts = Receipts(task.partition) if options.receipts is not None else None
        self._once: Deduplicator | None = None
        self._dropped = self._dead = self._stood = 0

    @rare_collections()
    def write(self, rows: Iterator[Cells]) -> Written:
        options = self._options
        with SESSIONS.lease(options.client) as session:
            if options.once is not None:
                self._once = Deduplicator(
                    options.once,
                    session,
                    self._task,
                    self._planned.bookmarks,
                    self._planned.made_at,
                    note=self._planned.note,
                    topic=options.topic,
                    unmarked=options.dead_letter_topic,
                )
            with Producer(
                options.client,
                options.max_in_flight,
                rows_of=self._name,
                max_bytes=options.max_bytes,
                lookup=self._once,
                on_stored=self._note if self._receipts is not None else None,
            ) as producer:
                if options.topic is not None:
                    producer.prepare(options.topic)
                try:
                    self._send(producer, rows)
                except ConfigError as error:
                    if producer.has_failed:
                        raise
                    # The rows before the bad one are on their way: let what is stored not depend on chance.
                    try:
                        producer.flush()
                    except TubeMQError as trouble:
                        said = str(error).removesuffix(_ADVICE)
                        advice = str(error)[len(said) :]
                        raise ConfigError(
                            f"{said}; and of the rows before it not all could be stored: {trouble}{advice}"
                        ) from None
                    raise
                stored = producer.flush()
            if self._once is not None:
                self._once.finish()
        if self._dropped:
            _log.warning("%d rows %s can never be sent and were dropped (failedRows=drop)", self._dropped, self._name)
        return Written(
            {str(partition): count for partition, count in sorted(stored.items())},
            self._task.id,
            dropped=self._dropped,
            dead=self._dead,
            stood=self._stood,
            topics=self._once.topics if self._once is not None else frozenset(),
            run=self._task.run,
            task=self._task.partition,
            tried=self._once.tried if self._once is not None else {},
            receipts=self._receipts.packed() if self._receipts is not None else None,
        )

    def _send(self, producer: Producer, rows: Iterator[Cells]) -> None:
        parts_of, once, mark_of = self._encoder.parts, self._once, self._stamp
        dead_letter_topic = self._options.dead_letter_topic
        for row, cells in enumerate(rows):
            try:
                parts = parts_of(cells)
                if parts.topic == dead_letter_topic:
                    raise BadRowError(
                        "topic", "it is the dead letter topic's name; dead letters need a topic of their own"
                    )
                record_id: RecordId | None = None
                attributes = parts.attributes
                if once is not None:
                    _check_topic(producer, parts.topic)
                    digest = digest_of(cells)
                    number, stored = once.place(parts.topic, row, digest)
                    if stored is not None:
                        self._note_standing(number, stored)
                        continue
                    record_id = number, digest
                    attributes += mark_of + with_digest(number, digest)
                elif mark_of:
                    attributes += b"%b%d" % (mark_of, row)
            except BadRowError as bad:
                self._fail(producer, row, cells, str(bad))
                continue
            self._hand_over(producer, row, cells, parts, attributes, record_id)

    def _hand_over(
        self, producer: Producer, row: int, cells: Cells, parts: Parts, attributes: bytes, record_id: RecordId | None
    ) -> None:
        try:
            producer.send(
                parts.topic,
                parts.body,
                attributes,
                parts.msg_type,
                parts.msg_time,
                row,
                key=parts.key,
                target=parts.target,
                record_id=record_id,
            )
        except ConfigError as error:
            if producer.has_failed:
                raise
            self._fail(producer, row, cells, str(error).removeprefix(f"row {row} {self._name}: "))

    # Rows that can never be sent

    def _fail(self, producer: Producer, row: int, cells: Cells, reason: str) -> None:
        if self._options.failed_rows == FAIL:
            joint = ", " if reason.startswith("column '") else ": "
            raise ConfigError(f"row {row} {self._name}{joint}{reason}{_ADVICE}") from None
        if self._dropped + self._dead < _SHOWN:
            _log.warning("row %d %s can never be sent: %s", row, self._name, reason)
        if self._options.failed_rows != DEAD_LETTER:
            self._dropped += 1
            return
        topic = self._options.dead_letter_topic
        assert topic is not None
        task = self._task
        letter = DeadLetter(
            cells if self._options.topic is None else cells._replace(topic=self._options.topic),
            reason,
            time.time(),
            task.id,
            task.batch if self._planned.write_id is None else None,
            task.partition,
            row,
        )
        try:
            messages = letter.messages(producer.limit(topic))
        except ConfigError as error:
            raise ConfigError(f"row {row} {self._name} cannot become a dead letter in topic {topic}: {error}") from None
        for body, attributes in messages:
            producer.send(topic, body, attributes, row=row)
        self._dead += 1

    # What became of them

    def _note(self, message: PendingRecord, stored: RecordMetadata) -> None:
        assert self._receipts is not None
        row = message.record_id[0] if isinstance(message.record_id, tuple) else message.row
        if row is not None and message.topic != self._options.dead_letter_topic:
            self._receipts.add(row, *_place(stored))

    def _note_standing(self, number: int, stored: RecordMetadata) -> None:
        self._stood += 1
        if self._receipts is not None:
            self._receipts.add(number, *_place(stored))


def _check_topic(producer: Producer, topic: str) -> None:
    """`BadRowError` for one that is unknown."""
    try:
        producer.limit(topic)
    except ConfigError as error:
        raise BadRowError("", str(error).removeprefix("a message: ")) from None


def _place(stored: RecordMetadata) -> tuple[str, int, int, int | None, int, int | None]:
    partition = stored.partition
    return (
        partition.topic,
        partition.broker_id,
        partition.partition_id,
        stored.offset,
        stored.message_id,
        stored.append_time,
    )
