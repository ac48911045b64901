"""Rows that can never be sent, as messages of a topic of their own.

A dead letter is the row's value, with attributes that tell the rest:

    dead_reason                       why the row cannot be sent
    dead_time                         when that was found, ISO-8601 in UTC
    dead_id, dead_batch,              where the row came from: query or write, micro-batch, task partition,
    dead_partition, dead_row          number within the task
    dead_topic, dead_msg_type,        the row's other columns: texts as they were; a time as yyyyMMddHHmm; attributes
    dead_msg_time, dead_attributes,   as JSON, `[["key", "value"], …]`; the key in base64; `brokerId:partition`, of
    dead_key, dead_target             which either may be blank
    dead_inlong_group, …_stream,      with messageFormat=inlongmsg; the time in milliseconds since the epoch
    …_time, …_attributes
    dead_value=null                   the value was null, and not empty
    dead_letter                       32 hex digits: the same in all pieces and all copies of a dead letter
    dead_piece, dead_pieces           which piece this is, from 0, and how many there are
    dead_head                         so many bytes in front of the value are attributes too

What does not apply is left out. TubeMQ's attributes know no escapes, so all texts are percent-encoded UTF-8. A value
too long for one message is cut into pieces; each is a message with all the attributes. Where the row's own columns are
so long that they would take more than half a message, they stand in front of the value instead, in the form of
attributes, and are cut with it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING
from urllib.parse import quote

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import encode_attributes, format_msg_time

if TYPE_CHECKING:
    from tubemq_spark.sink.schema import Cells

_PREFIX = 4  # bytes in front of the attributes, which say how long they are
_PIECE = len(",dead_piece=,dead_pieces=") + 2 * len(str(2**31))  # bytes at most
_REASON = 4000  # bytes at most, and a quarter of a message: a reason may quote what is far longer
_LEGIBLE = " '\"()[]{}:/;"  # besides letters and digits, what needs no escape; `+` does, some decoders make it a blank
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class DeadLetter:
    """A row that can never be sent, and why. `time` is in seconds since the epoch; of where the row came from, None is
    what is not known.

    A row that fails again, since its task or batch ran again, makes the same `dead_letter` where at least `spark_id`,
    `spark_partition` and `row` are known, and another one each time where they are not: two equal rows are two rows.
    """

    cells: Cells
    reason: str
    time: float
    spark_id: str | None = None
    spark_batch: int | None = None
    spark_partition: int | None = None
    row: int | None = None

    def messages(self, limit: int) -> list[tuple[bytes, bytes]]:
        """Body and attributes of each message; with the four bytes between them, at most `limit` bytes. `ConfigError`
        when that leaves no room; 1000 are enough."""
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
            raise ConfigError(f"{limit} bytes, the most that a message there may have, are too few; have that raised")
        about["dead_reason"] = _shortened(self.reason, reason)
        about["dead_letter"] = self._name(own, room)
        pieces = [content[start : start + room] for start in range(0, len(content), room)] or [b""]
        if len(pieces) == 1:
            return [(content, encode_attributes(about, None, None))]
        numbers = [{"dead_piece": str(number), "dead_pieces": str(len(pieces))} for number in range(len(pieces))]
        return [
            (piece, encode_attributes({**about, **number}, None, None))
            for piece, number in zip(pieces, numbers, strict=True)
        ]

    def _about(self) -> dict[str, str]:
        """Of the attributes that every piece has, those whose length is the same when the row fails again."""
        time = (_EPOCH + timedelta(seconds=self.time)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found = {
            "dead_reason": "",
            "dead_time": _quoted(time),
            "dead_id": None if self.spark_id is None else _quoted(self.spark_id),
            "dead_batch": self.spark_batch,
            "dead_partition": self.spark_partition,
            "dead_row": self.row,
            "dead_value": "null" if self.cells.value is None else None,
            "dead_letter": "0" * 32,
        }
        return _known(found)

    def _name(self, own: Mapping[str, str], room: int) -> str:
        """Of what is the same when the row fails again. `room` is a part of it, so that pieces of different lengths are
        never joined."""
        origin = (self.spark_id, self.spark_batch, self.spark_partition, self.row)
        name = blake2b(repr((origin, list(own.items()), self.cells.value is None, room)).encode(), digest_size=16)
        name.update(self.cells.value or b"")
        if None in (self.spark_id, self.spark_partition, self.row):
            name.update(os.urandom(16))
        return name.hexdigest()


def _own(cells: Cells) -> dict[str, str]:
    """All of a row but its value."""
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
    if not isinstance(moment, int):
        return moment
    try:
        return format_msg_time(_EPOCH + timedelta(minutes=moment))
    except OverflowError:  # never a text that reads as another time
        return f"{moment} minutes since 1970"


def _json(attributes: Mapping[str, str | None] | Sequence[tuple[str, str | None]] | None) -> str | None:
    """Pairs, for Spark's JSON reader bounds the length of an object's keys."""
    return None if attributes is None else json.dumps(list(dict(attributes).items()), ensure_ascii=False)


def _known(found: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in found.items() if value is not None}


def _size(attributes: Mapping[str, str]) -> int:
    return _PREFIX + len(encode_attributes(attributes, None, None))


def _quoted(text: str) -> str:
    return quote(text, safe=_LEGIBLE, errors="surrogateescape")  # bytes that are no UTF-8 as they were


def _shortened(text: str, most: int) -> str:
    """Percent-encoded, and its beginning alone where that is more than `most` bytes."""
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
