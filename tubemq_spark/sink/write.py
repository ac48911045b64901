"""From a task's rows to stored messages; and before, on the driver, whether that can work at all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import StructType

from tubemq_spark.client.producer import Producer
from tubemq_spark.client.sessions import SESSIONS
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.message import encode_attributes, format_msg_time
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.schema import Cells, cells_of_batch, cells_of_row, check_columns

_SLICE = 1000  # rows of a batch that are taken out of Arrow at a time
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def plan(raw: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """All that can be checked before a task runs. `ConfigError` for options, columns, a mode or a topic that cannot be
    used, `AuthError`, `TransportError` when no master answers."""
    if overwrite:
        raise ConfigError("TubeMQ only appends: write with mode('append'), or stream with outputMode('append')")
    options = SinkOptions.from_options(raw)
    check_columns(schema, options.topic)
    if options.topic is not None:
        with SESSIONS.lease(options.client) as session:
            session.add_topics([options.topic])
    return options


def write_batches(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Written:
    """Sends all rows; returns when they are stored. For a row that can never be sent a `ConfigError` that names it,
    after the rows before it are stored; else raises as `Producer.send` and `flush` do."""
    slices = (batch.slice(start, _SLICE) for batch in batches for start in range(0, batch.num_rows, _SLICE))
    return _write(options, (cells for part in slices for cells in cells_of_batch(part)))


def write_rows(options: SinkOptions, rows: Iterable[Row]) -> Written:
    """As `write_batches`, for rows as Spark gives them to writers without Arrow."""
    return _write(options, map(cells_of_row, rows))


def _write(options: SinkOptions, rows: Iterator[Cells]) -> Written:
    context = TaskContext.get()
    task = f"of task partition {context.partitionId()}" if context is not None else "of the task"
    with Producer(options.client, options.max_in_flight, rows_of=task) as producer:
        try:
            _send(producer, rows, options.topic, task)
        except ConfigError:
            # The rows before the bad one are on their way: let what is stored not depend on chance.
            with suppress(TubeMQError):
                producer.flush()
            raise
        stored = producer.flush()
    return Written({str(partition): count for partition, count in sorted(stored.items())})


def _send(producer: Producer, rows: Iterator[Cells], topic: str | None, task: str) -> None:
    for number, cells in enumerate(rows):
        value, topic_cell, attributes, msg_type, msg_time = cells
        to = topic if topic_cell is None else topic_cell
        column = "value"
        try:
            if value is None:
                raise ConfigError("it is null")
            column = "topic"
            if not to:
                raise ConfigError("it is empty" if to == "" else "it is null, and option 'topic' is not given")
            column = "msg_time"
            time_text = msg_time if isinstance(msg_time, str) else _time_text(_now() if msg_time is None else msg_time)
            encoded = _time_attribute(time_text)
            if msg_type is not None:
                column = "msg_type"
                encoded = _type_attribute(msg_type) + b"," + encoded
            if attributes:
                column = "attributes"
                encoded += b"," + _own_attributes(dict(attributes))
        except ConfigError as error:
            raise ConfigError(f"row {number} {task}, column '{column}': {error}") from None
        producer.send(to, value, encoded, msg_type, time_text, number)


def _own_attributes(attributes: Mapping[str, str | None]) -> bytes:
    texts = {key: text for key, text in attributes.items() if text is not None}
    if len(texts) < len(attributes):
        nulls = [key for key, text in attributes.items() if text is None]
        raise ConfigError(f"attribute {', '.join(nulls)} is null; TubeMQ has only texts, leave it out")
    return encode_attributes(texts, None, None)


# Most rows of a task have few different types and times.


@lru_cache(maxsize=4096)
def _type_attribute(msg_type: str) -> bytes:
    return encode_attributes(None, msg_type, None)


@lru_cache(maxsize=4096)
def _time_attribute(msg_time: str) -> bytes:
    return encode_attributes(None, None, msg_time)


@lru_cache(maxsize=4096)
def _time_text(minutes: int) -> str:
    try:
        return format_msg_time(_EPOCH + timedelta(minutes=minutes))
    except OverflowError:
        raise ConfigError(f"{minutes} minutes since 1970 are outside the years 1 to 9999") from None


def _now() -> int:
    return int(time.time() // 60)
