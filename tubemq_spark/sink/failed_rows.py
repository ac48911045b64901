"""Handles rows that can never be sent, as option `failedRows` says: fail the task, drop them, or write dead letters."""

from __future__ import annotations

import logging

from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.dead_letter import DeadLetter
from tubemq_spark.sink.options import DEAD_LETTER, FAIL, SinkOptions
from tubemq_spark.sink.schema import Cells
from tubemq_spark.sink.task_context import WriteTask

_log = logging.getLogger(__name__)

_LOGGED = 5  # failed rows of a task that are logged one by one

ADVICE = "; drop or repair such rows in the query, or set option 'failedRows' to drop or deadLetter"
"""The end of each error about such a row."""


class FailedRows:
    """The rows of one task that can never be sent. `rows_of` is how texts name the task."""

    def __init__(self, options: SinkOptions, task: WriteTask, rows_of: str, *, is_stream: bool) -> None:
        self._options = options
        self._task = task
        self._rows_of = rows_of
        self._is_stream = is_stream
        self.dropped = self.dead_letters = 0

    def handle(self, producer: Producer, row: int, cells: Cells, reason: str) -> None:
        """Drop row number `row`, or send it to the dead letter topic; otherwise raise `ConfigError`."""
        if self._options.failed_rows == FAIL:
            separator = ", " if reason.startswith("column '") else ": "
            raise ConfigError(f"row {row} {self._rows_of}{separator}{reason}{ADVICE}") from None
        if self.dropped + self.dead_letters < _LOGGED:
            _log.warning("row %d %s can never be sent: %s", row, self._rows_of, reason)
        if self._options.failed_rows == DEAD_LETTER:
            self._send_dead_letter(producer, row, cells, reason)
            self.dead_letters += 1
        else:
            self.dropped += 1

    def log_dropped(self) -> None:
        """Log a warning with the number of dropped rows."""
        if self.dropped:
            _log.warning("%d rows %s can never be sent and were dropped (failedRows=drop)", self.dropped, self._rows_of)

    def _send_dead_letter(self, producer: Producer, row: int, cells: Cells, reason: str) -> None:
        options, task = self._options, self._task
        topic = options.dead_letter_topic
        assert topic is not None
        dead_letter = DeadLetter(
            cells if options.topic is None else cells._replace(topic=options.topic),
            reason,
            options.client.clock.time(),
            task.id,
            task.batch if self._is_stream else None,
            task.partition,
            row,
        )
        try:
            messages = dead_letter.messages(producer.limit(topic))
        except ConfigError as error:
            raise ConfigError(
                f"row {row} {self._rows_of} cannot become a dead letter in topic {topic}: {error}"
            ) from None
        for body, attributes in messages:
            producer.send(topic, body, attributes, row=row)
