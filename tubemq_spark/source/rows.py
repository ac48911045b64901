"""Messages as rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from functools import lru_cache
from itertools import compress
from typing import Any
from zlib import crc32

import pyarrow as pa

from tubemq_spark.compression import decompress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.message import (
    COMPRESSION_KEY,
    NO_ATTRIBUTES,
    Attributes,
    decode_attributes,
    split_payload,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.inlong import unpack
from tubemq_spark.source.inlong_rows import InlongColumns
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP, arrow_schema

_log = logging.getLogger(__name__)

_PLAIN = 64 << 20  # bytes that compressed bodies of one Arrow batch become, about


@dataclass(frozen=True)
class _Compressed(Attributes):
    """Of a message whose body the sink compressed; `own` does not tell."""

    codec: str = ""


@lru_cache(maxsize=1024)  # msgType and msgTime make the same bytes again and again
def _decode(header: bytes, zone: tzinfo) -> Attributes:
    found = decode_attributes(header, zone)
    if found.own is None or COMPRESSION_KEY not in found.own:
        return found
    own = dict(found.own)
    codec = own.pop(COMPRESSION_KEY)
    return _Compressed(own or None, found.msg_type, found.msg_time, codec)


# In place of the attributes of a message that cannot be taken apart; known by identity.
_KEPT, _SKIPPED = Attributes(), Attributes()


@dataclass(frozen=True)
class RowFormat:
    """How messages become rows: plain values.

    `zone` is that of the producers' `$msgTime$`, `corrupt` what option `corruptMessages` says, and `msg_types` are the
    message types that are wanted, by topic; of topics that are not in it all are. `message_format` is the option's.
    """

    zone: tzinfo = timezone.utc
    corrupt: str = "fail"
    msg_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    message_format: str = "raw"


class RowMaker:
    """Makes the rows of one task and counts the messages that were corrupt."""

    def __init__(self, form: RowFormat) -> None:
        self._form = form
        self._schema = arrow_schema(form.corrupt, form.message_format)
        self._counts: dict[Partition, int] = {}
        self._examples: dict[Partition, str] = {}

    def batches(
        self, partition: Partition, messages: Sequence[Any], positions: Sequence[int] | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows from the wire's messages of one partition; `positions` is one index position a message, or None.

        One batch, or more where compressed bodies become very long. `ProtocolError`, naming the message, for one whose
        check sum, attribute header or compressed body is wrong, or that is no pack where packs are wanted, unless the
        format says otherwise; `ConfigError` for a codec that this process does not have. Messages whose type is not
        wanted are left out.
        """
        while True:
            bodies, attributes = self._take_apart(partition, messages)
            count = len(bodies)
            if count == len(messages):
                yield self._batch(partition, messages, bodies, attributes, positions)
                return
            here = None if positions is None else positions[:count]
            yield self._batch(partition, messages[:count], bodies, attributes, here)
            messages, positions = messages[count:], None if positions is None else positions[count:]

    def _batch(
        self,
        partition: Partition,
        messages: Sequence[Any],
        bodies: list[bytes],
        attributes: list[Attributes],
        positions: Sequence[int] | None,
    ) -> pa.RecordBatch:
        wanted = self._is_wanted(partition.topic, attributes)
        if wanted is not None:
            messages, bodies = list(compress(messages, wanted)), list(compress(bodies, wanted))
            attributes = list(compress(attributes, wanted))
            positions = None if positions is None else list(compress(positions, wanted))
        count = len(messages)
        plain = all(found is NO_ATTRIBUTES for found in attributes)
        own = () if plain else [found.own and list(found.own.items()) for found in attributes]
        columns = [
            pa.array(bodies, pa.binary()),
            _column(count, own, ATTRIBUTES),
            _column(count, () if plain else [found.msg_type for found in attributes], pa.string()),
            _column(count, () if plain else [found.msg_time for found in attributes], TIMESTAMP),
            pa.repeat(pa.scalar(partition.topic, pa.string()), count),
            pa.repeat(pa.scalar(partition.broker_id, pa.int32()), count),
            pa.repeat(pa.scalar(partition.partition_id, pa.int32()), count),
            _column(count, positions or (), pa.int64()),
            pa.array([message.messageId for message in messages], pa.int64()),
        ]
        keep = self._form.corrupt == "keep"
        corrupt = [found is _KEPT for found in attributes] if keep else [False] * count
        if self._form.message_format == "inlongmsg":
            inside = self._unpack(partition, messages, bodies, corrupt)
            columns, corrupt = inside.columns(columns[1:]), inside.corrupt
        if keep:
            columns.append(pa.array(corrupt, pa.bool_()))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def corrupt(self) -> Iterator[str]:
        """A sentence for each partition that had corrupt messages."""
        done = "skipped" if self._form.corrupt == "skip" else "kept"
        for partition, count in self._counts.items():
            yield f"{partition}: {count} corrupt messages were {done}; the first: {self._examples[partition]}"

    def _take_apart(self, partition: Partition, messages: Sequence[Any]) -> tuple[list[bytes], list[Attributes]]:
        """Of the first messages, at least one: as many as do not become too long together."""
        zone = self._form.zone
        types = self._form.msg_types.get(partition.topic)
        plain = 0
        bodies: list[bytes] = []
        attributes: list[Attributes] = []
        for message in messages:
            body = payload = message.payLoadData
            found = NO_ATTRIBUTES
            if crc32(payload) & 0x7FFFFFFF != message.checkSum:
                found = self._bad(partition, message, f"it has the check sum {message.checkSum}, but its bytes do not")
            elif message.flag:
                try:
                    header, body = split_payload(payload, message.flag)
                    found = _decode(header, zone) if header else NO_ATTRIBUTES
                    if type(found) is _Compressed and (types is None or found.msg_type in types):
                        if plain > _PLAIN:
                            break
                        body = decompress(found.codec, body)
                        plain += len(body)
                except ProtocolError as error:
                    body = payload
                    found = self._bad(partition, message, str(error))
            bodies.append(body)
            attributes.append(found)
        return bodies, attributes

    def _unpack(
        self, partition: Partition, messages: Sequence[Any], bodies: Sequence[bytes], corrupt: Sequence[bool]
    ) -> InlongColumns:
        inside = InlongColumns()
        for number, (message, body, is_corrupt) in enumerate(zip(messages, bodies, corrupt, strict=True)):
            if is_corrupt:
                inside.add_corrupt(number, body)
                continue
            try:
                inside.add(number, unpack(body, self._form.zone))
            except ProtocolError as error:
                if self._bad(partition, message, str(error)) is _KEPT:
                    inside.add_corrupt(number, body)
        return inside

    def _bad(self, partition: Partition, message: Any, reason: str) -> Attributes:
        what = f"message {message.messageId}: {reason}"
        if self._form.corrupt == "fail":
            raise ProtocolError(
                f"{partition}: {what}. Option 'corruptMessages' may be set to skip such messages, or to keep them"
            )
        self._counts[partition] = self._counts.get(partition, 0) + 1
        self._examples.setdefault(partition, what)
        return _KEPT if self._form.corrupt == "keep" else _SKIPPED

    def _is_wanted(self, topic: str, attributes: list[Attributes]) -> list[bool] | None:
        """None when all are wanted. What is kept though it is corrupt is: nobody knows its type."""
        types = self._form.msg_types.get(topic)
        if types is not None:
            return [found is _KEPT or (found is not _SKIPPED and found.msg_type in types) for found in attributes]
        if self._form.corrupt == "skip" and any(found is _SKIPPED for found in attributes):
            return [found is not _SKIPPED for found in attributes]
        return None


def _column(count: int, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind) if values else pa.nulls(count, kind)
