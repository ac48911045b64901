# SPDX-License-Identifier: Apache-2.0
"""Writes the rows of one task: encodes each row, and hands the ones that are not stored yet to the producer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Row

from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.producer.record_batch import RecordId, RecordPlaces
from tubemq_spark.errors import ConfigError, RowError, TubeMQError
from tubemq_spark.protocol import stamp
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.dead_letter import ADVICE, FailedRows
from tubemq_spark.sink.deduplicator import Deduplicator
from tubemq_spark.sink.inlong.pack_format import PackFormat
from tubemq_spark.sink.inlong.packs import Packs
from tubemq_spark.sink.receipts import Receipts
from tubemq_spark.sink.row_encoder import RowEncoder, digest_of
from tubemq_spark.sink.schema import BadRowError, Cells, cells_of_batch, cells_of_row, cells_together
from tubemq_spark.sink.task_attempts import WriteTask, this_task
from tubemq_spark.sink.task_input import TaskInput
from tubemq_spark.sink.value_formats import format_of
from tubemq_spark.sink.write_plan import WritePlan

_DIGEST = f",{stamp.DIGEST_KEY}=".encode()
# The rows of a batch that are converted from Arrow at a time, and their bytes if that is more than one row. Spark's
# batches have 10 000 rows: as Python objects all at once they would take much more memory than as Arrow.
_SLICE = 1000
_SLICE_BYTES = 1 << 20


def write_batches(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> Written:
    """Send all rows, and return when they are stored.

    Raise `RowError` for a row that can never be sent, when the rows before it are stored, unless option `failedRows`
    says otherwise. Raise as `Producer.send` and `Producer.flush` as well.
    """
    slices = (one for batch in batches for one in _slices(batch))
    return TaskWriter(plan, this_task(plan.write_id)).write(slices)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batch` in parts, which share its memory."""
    is_small = batch.nbytes <= _SLICE_BYTES  # seldom asked, because that takes time
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        yield from [part] if is_small else _halves(part)


def _halves(part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `part` in parts that have `_SLICE_BYTES` at most, or one row."""
    middle = part.num_rows // 2
    if not middle or part.nbytes <= _SLICE_BYTES:
        yield part
        return
    yield from _halves(part.slice(0, middle))
    yield from _halves(part.slice(middle))


def write_rows(plan: WritePlan, rows: Iterable[Row]) -> Written:
    """Send all rows as `write_batches` does, where Spark has no Arrow writers."""
    topic = plan.options.topic
    return TaskWriter(plan, this_task(plan.write_id)).write([cells_of_row(row, topic)] for row in rows)


class TaskWriter:
    """Writes the rows of one attempt of a task; usable once."""

    def __init__(self, plan: WritePlan, task: WriteTask) -> None:
        options = plan.options
        self._plan = plan
        self._task = task
        self._rows_of = f"of task partition {task.partition}" if task.id is not None else "of the task"
        self._form = format_of(options)
        self._encoder = RowEncoder(options.topic, self._form, stamped=options.stamp_rows)
        self._stamp = b"," + stamp.encode(task.origin) if options.stamp_rows else b""
        self._receipts = Receipts(task.partition) if options.receipts is not None else None
        self._failed_rows = FailedRows(options, task, self._rows_of, is_stream=plan.write_id is None)
        self._deduplicator: Deduplicator | None = None
        self._already_stored = 0
        is_plain = self._encoder.is_raw and options.effectively_once is None
        self._together = is_plain or options.packs is not None
        self._packs: Packs | None = None

    def write(self, parts: Iterable[pa.RecordBatch | Sequence[Cells]]) -> Written:
        """Send the rows of all `parts`, and return when they are stored; raise as `write_batches`."""
        options = self._plan.options
        with SESSIONS().lease(options.client) as session:
            if self._plan.known is not None:
                session.add_known_topics(self._plan.known)
            if options.effectively_once is not None:
                self._deduplicator = Deduplicator(session, self._task, self._plan)
            task_input = TaskInput(self._task)
            with Producer(
                options.client,
                options.limits,
                self._rows_of,
                lookup=self._deduplicator,
                on_stored=self._add_receipts if self._receipts is not None else None,
                before_sending=lambda: self._check_attempt(task_input),
            ) as producer:
                if options.topic is not None:
                    producer.prepare(options.topic)
                try:
                    if options.packs is not None and isinstance(self._form, PackFormat):
                        self._packs = Packs(self._form, options.packs, options.client.clock, producer)
                    self._send_parts(producer, parts)
                    task_input.check_end()
                    if self._packs is not None:
                        self._packs.send_all()
                except ConfigError as error:
                    if not producer.has_failed:
                        self._flush_before(producer, error)
                    raise
                stored = producer.flush()
            if self._deduplicator is not None:
                self._deduplicator.finish()
        self._failed_rows.log_dropped()
        return Written(
            {str(partition): count for partition, count in sorted(stored.items())},
            self._task.id,
            dropped=self._failed_rows.dropped,
            dead_letters=self._failed_rows.dead_letters,
            already_stored=self._already_stored,
            topics=self._deduplicator.topics if self._deduplicator is not None else frozenset(),
            plan=self._deduplicator.plan if self._deduplicator is not None else "",
            task=self._task.partition,
            earlier_tasks=self._deduplicator.earlier_tasks if self._deduplicator is not None else {},
            receipts=self._receipts.packed() if self._receipts is not None else None,
        )

    def _send_parts(self, producer: Producer, parts: Iterable[pa.RecordBatch | Sequence[Cells]]) -> None:
        row = 0
        for part in parts:
            if self._packs is not None:
                self._packs.send_due()
            if isinstance(part, pa.RecordBatch):
                sent = self._send_together(producer, part, row) if self._together else 0
                row, part = row + sent, cells_of_batch(part.slice(sent), self._plan.options.topic)
            row = self._send_rows(producer, part, row)

    def _check_attempt(self, task_input: TaskInput) -> None:
        """Raise `FencedError` if other attempts send the task's remaining rows, or if none does."""
        task_input.check()
        if self._deduplicator is not None:
            self._deduplicator.check_attempt()

    def _send_together(self, producer: Producer, batch: pa.RecordBatch, row: int) -> int:
        """Send rows together, numbered from `row` on. Return how many; none if they differ in more than value, key and
        attributes. What is unusual about a row is left to `_send_rows`.
        """
        cells = cells_together(batch, self._plan.options.topic)
        bodies, keys, own = map(cells.get, ("value", "key", "attributes"))
        if not bodies:
            return 0
        first = next(cells_of_batch(batch.slice(0, 1), self._plan.options.topic))
        try:
            encoded = self._encoder.encode(first._replace(attributes=None))
        except BadRowError:
            return 0
        texts = None if own is None else self._encoder.own_attributes(own)
        if encoded.topic == self._plan.options.dead_letter_topic or (own is not None and texts is None):
            return 0
        attributes: bytes | list[bytes] = encoded.attributes
        if texts is not None:
            attributes = [b"%b,%b" % (encoded.attributes, one) if one else encoded.attributes for one in texts]
        if self._packs is not None:
            is_one = own is None and (keys is None or len({*keys}) == 1)
            return self._packs.add(row, encoded, first, bodies) if is_one else 0
        if self._stamp:
            each = [attributes] * len(bodies) if isinstance(attributes, bytes) else attributes
            attributes = [b"%b%b%d" % (one, self._stamp, number) for number, one in enumerate(each, row)]
        is_sent = producer.send_together(
            encoded.topic, bodies, attributes, encoded.msg_type, encoded.msg_time, first_row=row, keys=keys
        )
        return len(bodies) if is_sent else 0

    def _send_rows(self, producer: Producer, rows: Iterable[Cells], first: int) -> int:
        """Send `rows`, numbered from `first` on, and return the number of the row behind them."""
        encode, deduplicator, stamp_of_task = self._encoder.encode, self._deduplicator, self._stamp
        dead_letter_topic = self._plan.options.dead_letter_topic
        row = first - 1
        for row, cells in enumerate(rows, first):
            try:
                encoded = encode(cells)
                if encoded.topic == dead_letter_topic:
                    raise BadRowError(
                        "topic", "it is the dead letter topic, which takes no other rows: write another one"
                    )
                record_id: RecordId | None = None
                attributes = encoded.attributes + encoded.format_attributes
                if deduplicator is not None:
                    _check_topic(producer, deduplicator, encoded.topic)
                    digest = digest_of(cells)
                    number, stored = deduplicator.match(encoded.topic, row, digest)
                    if stored is not None:
                        self._already_stored += 1
                        if self._receipts is not None:
                            self._receipts.add([number], stored.places)
                        continue
                    record_id = number, digest
                    attributes += b"%b%d%b%b" % (stamp_of_task, number, _DIGEST, digest.encode())
                elif stamp_of_task:
                    attributes += b"%b%d" % (stamp_of_task, row)
            except BadRowError as bad:
                self._failed_rows.handle(producer, row, cells, str(bad))
                continue
            if self._packs is not None and self._packs.add(row, encoded, cells, [cells.value or b""]):
                continue
            try:
                producer.send(
                    encoded.topic,
                    encoded.body,
                    attributes,
                    encoded.msg_type,
                    encoded.msg_time,
                    row,
                    key=encoded.key,
                    target=encoded.target,
                    record_id=record_id,
                )
            except ConfigError as error:
                if producer.has_failed:
                    raise
                reason = str(error).removeprefix(f"row {row} {self._rows_of}: ").removeprefix("a message: ")
                self._failed_rows.handle(producer, row, cells, reason)
        return row + 1

    def _flush_before(self, producer: Producer, error: ConfigError) -> None:
        """Store the rows before the bad one that `error` names, so that what is stored does not depend on chance."""
        try:
            if self._packs is not None:
                self._packs.send_all()
            producer.flush()
        except TubeMQError as cause:
            text = str(error).removesuffix(ADVICE)
            advice = str(error)[len(text) :]
            raise RowError(f"{text}; and not all rows before it could be stored: {cause}{advice}") from None

    def _add_receipts(self, rows: Sequence[int | None], ids: Sequence[RecordId | None], places: RecordPlaces) -> None:
        if self._receipts is not None and places.partition.topic != self._plan.options.dead_letter_topic:
            numbers = [one[0] if isinstance(one, tuple) else row for row, one in zip(rows, ids, strict=True)]
            self._receipts.add(numbers, places)


def _check_topic(producer: Producer, deduplicator: Deduplicator, topic: str) -> None:
    """Raise `BadRowError` for an unknown topic, and for one that the driver has not planned."""
    if not deduplicator.takes(topic):
        raise BadRowError("topic", "effectivelyOnce writes to topics that option 'effectivelyOnceTopics' names: add it")
    try:
        producer.limit(topic)
    except ConfigError as error:
        raise BadRowError("", str(error).removeprefix("a message: ")) from None
