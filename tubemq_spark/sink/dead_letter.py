# SPDX-License-Identifier: Apache-2.0
"""Handles rows that can never be sent, as option `failedRows` says: fail the task, drop them, or send dead letters.

Dead letters go to a topic of their own. The body of a dead letter is the row's value. Its attributes have the rest:

    dead_reason                       why the row cannot be sent
    dead_time                         when the sink found that, ISO-8601 in UTC
    dead_id, dead_batch,              where the row comes from: query or write, micro-batch, task partition,
    dead_partition, dead_row          number within the task
    dead_topic, dead_msg_type,        the row's other columns: texts as they were; a time as yyyyMMddHHmm; attributes
    dead_msg_time, dead_attributes,   as JSON, `[["key", "value"], …]`; the key in base64; `brokerId:partition`, where
    dead_key, dead_target             each part may be blank
    dead_inlong_group, …_stream,      with messageFormat=inlongmsg; the time in milliseconds since the epoch
    …_time, …_attributes
    dead_value=null                   the value was null, not empty
    dead_letter                       32 hex digits: the same in all pieces and all copies of a dead letter
    dead_piece, dead_pieces           which piece this is, from 0, and how many there are
    dead_head                         this many bytes before the value are attributes too

Attributes that do not apply are left out. TubeMQ's attributes have no escapes, so all texts are percent-encoded UTF-8.
A value that is too long for one message is cut into pieces; each piece is a message with all attributes. If the row's
own columns would take more than half a message, they precede the value instead, in the form of attributes, and are cut
with it.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from urllib.parse import quote

from tubemq_spark.client import system
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, RowError
from tubemq_spark.protocol.message import EPOCH, encode_attributes
from tubemq_spark.sink.options import DEAD_LETTER, FAIL, SinkOptions
from tubemq_spark.sink.row_description import described, without_cells
from tubemq_spark.sink.row_encoder import minutes_text
from tubemq_spark.sink.schema import Cells, Texts
from tubemq_spark.sink.task_attempts import WriteTask

_log = logging.getLogger(__name__)

_LOGGED = 5  # failed rows of a task that are logged one by one

ADVICE = "; drop or repair such rows in the query, or set option 'failedRows' to drop or deadLetter"
"""The end of each error about such a row."""

_PREFIX = 4  # bytes before the attributes, which contain their length
_PIECE = len(",dead_piece=,dead_pieces=") + 2 * len(str(2**31))  # bytes at most
_REASON = 4000  # bytes at most, and at most a quarter of a message: a reason may quote longer texts
_LEGIBLE = " '\"()[]{}:/;"  # needs no escape, besides letters and digits; some decoders read `+` as a blank


class FailedRows:
    """The rows of one task that can never be sent. `rows_of` is how texts name the task."""

    def __init__(self, options: SinkOptions, task: WriteTask, rows_of: str, *, is_stream: bool) -> None:
        self._options = options
        self._origin = task.id, task.batch if is_stream else None, task.partition
        self._rows_of = rows_of
        self.dropped = self.dead_letters = 0

    def handle(self, producer: Producer, row: int, cells: Cells, reason: str) -> None:
        """Drop row number `row`, or send it to the dead letter topic; otherwise raise `RowError`."""
        options = self._options
        name, shown_reason = f"row {row} {self._rows_of}", reason
        if options.show_failed_rows:
            name += described(cells)
        else:
            shown_reason = without_cells(reason, cells)
        if options.failed_rows == FAIL:
            separator = ", " if reason.startswith("column '") else ": "
            raise RowError(f"{name}{separator}{shown_reason}{ADVICE}") from None
        if self.dropped + self.dead_letters < _LOGGED:
            _log.warning("[bad-row] %s can never be sent: %s", name, shown_reason)
        if options.failed_rows != DEAD_LETTER:
            self.dropped += 1
            return
        topic = options.dead_letter_topic
        assert topic is not None
        if options.topic is not None:
            cells = cells._replace(topic=options.topic)
        dead_letter = DeadLetter(cells, reason, options.client.clock.time(), *self._origin, row)
        try:
            messages = dead_letter.messages(producer.limit(topic))
        except ConfigError as error:
            raise RowError(f"{name} cannot become a dead letter in topic {topic}: {error}") from None
        for body, attributes in messages:
            producer.send(topic, body, attributes, row=row)
        self.dead_letters += 1

    def log_dropped(self) -> None:
        if self.dropped:
            _log.warning(
                "[task-rows-dropped] %d rows %s can never be sent and were dropped (failedRows=drop)",
                self.dropped,
                self._rows_of,
            )


@dataclass(frozen=True)
class DeadLetter:
    """A row that can never be sent, and the reason; `time` is in seconds since the epoch.

    `spark_id`, `spark_batch`, `spark_partition` and `row` say where the row comes from, None if that is unknown. A row
    that fails again, because its task or batch runs again, makes the same attribute `dead_letter` if at least the id,
    the partition and the row are known. Otherwise it makes another one each time, because two equal rows are two rows.
    """

    cells: Cells
    reason: str
    time: float
    spark_id: str | None = None
    spark_batch: int | None = None
    spark_partition: int | None = None
    row: int | None = None

    def messages(self, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the body and the attributes of each message, which have at most `limit` bytes with four bytes between.

        Raise `ConfigError` if that leaves no room; 1000 bytes are enough.
        """
        own, content = _own(self.cells), self.cells.value or b""
        about = self._about()
        reason = min(_REASON, limit // 4)
        if 2 * (_size({**about, **own}) + reason) > limit:
            head = encode_attributes(own, None, None)
            about["dead_head"] = str(len(head))
            content = head + content
        else:
            about |= own
        room = limit - _size(about) - reason - _PIECE
        if room < 1:
            raise ConfigError(
                f"{limit} bytes, the longest message of the topic, are too few; ask an administrator to raise it"
            )
        about["dead_reason"] = _shortened(self.reason, reason)
        about["dead_letter"] = self._name(own, room)
        if len(content) <= room:
            return [(content, encode_attributes(about, None, None))]
        pieces = [content[start : start + room] for start in range(0, len(content), room)]
        return [
            (
                piece,
                encode_attributes({**about, "dead_piece": str(number), "dead_pieces": str(len(pieces))}, None, None),
            )
            for number, piece in enumerate(pieces)
        ]

    def _about(self) -> dict[str, str]:
        """Return the attributes of every piece whose length is the same when the row fails again."""
        time = (EPOCH + timedelta(seconds=self.time)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found: dict[str, object] = {
            "dead_reason": "",
            "dead_time": _quoted(time),
            "dead_id": None if self.spark_id is None else _quoted(self.spark_id),
            "dead_batch": self.spark_batch,
            "dead_partition": self.spark_partition,
            "dead_row": self.row,
            "dead_value": "null" if self.cells.value is None else None,
            "dead_letter": "0" * 32,
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def _name(self, own: Mapping[str, str], room: int) -> str:
        """Return a hash of all that is the same when the row fails again.

        `room` belongs to it, so that pieces of different lengths are never joined.
        """
        origin = (self.spark_id, self.spark_batch, self.spark_partition, self.row)
        name = blake2b(repr((origin, list(own.items()), self.cells.value is None, room)).encode(), digest_size=16)
        name.update(self.cells.value or b"")
        if None in (self.spark_id, self.spark_partition, self.row):
            name.update(system.random_bytes(16))
        return name.hexdigest()


def _own(cells: Cells) -> dict[str, str]:
    """Return the attributes for all of a row but its value."""
    target = ["" if part is None else str(part) for part in (cells.broker_id, cells.partition)]
    texts = {
        "dead_topic": cells.topic,
        "dead_msg_type": cells.msg_type,
        "dead_msg_time": _time_text(cells.msg_time),
        "dead_attributes": _json(cells.attributes),
        "dead_key": None if cells.key is None else base64.b64encode(cells.key).decode(),
        "dead_target": ":".join(target) if any(target) else None,
        "dead_inlong_group": cells.inlong_group,
        "dead_inlong_stream": cells.inlong_stream,
        "dead_inlong_time": None if cells.inlong_time is None else str(cells.inlong_time),
        "dead_inlong_attributes": _json(cells.inlong_attributes),
    }
    return {name: _quoted(text) for name, text in texts.items() if text is not None}


def _time_text(moment: str | int | None) -> str | None:
    try:
        return minutes_text(moment) if isinstance(moment, int) else moment
    except ConfigError:  # never a text that could be read as another time
        return f"{moment} minutes since 1970"


def _json(attributes: Texts) -> str | None:
    """Return pairs, because Spark's JSON reader limits the length of an object's keys."""
    return None if attributes is None else json.dumps(list(dict(attributes).items()), ensure_ascii=False)


def _size(attributes: Mapping[str, str]) -> int:
    return _PREFIX + len(encode_attributes(attributes, None, None))


def _quoted(text: str) -> str:
    return quote(text, safe=_LEGIBLE, errors="surrogateescape")  # keeps bytes that are not UTF-8


def _shortened(text: str, most: int) -> str:
    """Return `text` percent-encoded, cut to at most `most` bytes."""
    encoded = _quoted(text[: most + 1])
    if len(encoded) <= most:
        return encoded
    kept, room = [], most - len("...")
    for character in map(_quoted, text):
        room -= len(character)
        if room < 0:
            break
        kept.append(character)
    return "".join([*kept, "..."])
