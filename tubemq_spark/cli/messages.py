# SPDX-License-Identifier: Apache-2.0
"""Messages as the commands show them: decoded, as JSON, and in a format of the user's."""

from __future__ import annotations

import base64
import string
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta, tzinfo
from typing import Any, NamedTuple

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.peer_text import escaped
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.message import (
    COMPRESSION_KEY,
    EPOCH,
    NO_ATTRIBUTES,
    check_sum,
    decode_attributes,
    split_payload,
)
from tubemq_spark.protocol.metadata import Partition


class Message(NamedTuple):
    """One message. `msg_time` is ISO-8601 in UTC; `offset` is None where TubeMQ does not return it.

    A corrupt message cannot be decoded, as `problem` says; its `value` are the bytes as they were received.
    """

    topic: str
    broker_id: int
    partition: int
    offset: int | None
    message_id: int
    msg_type: str | None
    msg_time: str | None
    attributes: Mapping[str, str] | None
    value: bytes
    problem: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the fields; `value_base64` replaces a value that is not UTF-8 text."""
        found: dict[str, object] = self._asdict()
        problem = found.pop("problem")
        try:
            found["value"] = self.value.decode()
        except UnicodeDecodeError:
            del found["value"]
            found["value_base64"] = base64.b64encode(self.value).decode()
        return found if problem is None else {**found, "corrupt": True, "problem": problem}


FIELDS = Message._fields[:-1]


def messages_of(partition: Partition, batch: FetchedBatch, zone: tzinfo, max_unpacked: int) -> Iterator[Message]:
    """Yield the decoded messages of a fetched batch; the texts of `$msgTime$` are in `zone`. One that is longer than
    `max_unpacked` bytes after decompression is corrupt."""
    found: list[Any] = list(batch.messages)  # its type declares only what distinguishes messages
    positions = batch.positions if batch.positions is not None else [None] * len(found)
    for message, position in zip(found, positions, strict=True):
        place = (partition.topic, partition.broker_id, partition.partition_id, position, message.messageId)
        try:
            yield _decoded(place, message, zone, max_unpacked)
        except (ProtocolError, ConfigError) as error:
            yield Message(*place, None, None, None, message.payLoadData, str(error))


def _decoded(place: tuple[str, int, int, int | None, int], message: Any, zone: tzinfo, max_unpacked: int) -> Message:
    payload = message.payLoadData
    if check_sum(payload) != message.checkSum:
        raise ProtocolError("the check sum is wrong")
    header, body = split_payload(payload, message.flag)
    attributes = decode_attributes(header, zone) if header else NO_ATTRIBUTES
    own = dict(attributes.own or {})
    if (codec := own.pop(COMPRESSION_KEY, None)) is not None:
        from tubemq_spark.compression import decompress  # imports pyarrow, which takes long

        body = decompress(codec, body, max_unpacked)
    moment = None if attributes.msg_time is None else EPOCH + timedelta(microseconds=attributes.msg_time)
    time = None if moment is None else moment.isoformat().replace("+00:00", "Z")
    return Message(*place, attributes.msg_type, time, own or None, body)


def formatter(text: str, *, is_raw: bool) -> Callable[[Message], bytes]:
    """Return a function that formats messages by a text such as `{partition} {attributes.site} {value}`.

    Fields are escaped unless `is_raw`. Raise `ConfigError` for a field that messages do not have.
    """
    parts: list[tuple[bytes, str | None]] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unknown escape, for example \\q
            decoded = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        for literal, name, specification, conversion in string.Formatter().parse(decoded):
            if specification or conversion:
                raise ValueError("a field takes no ':' and no '!'")
            if name is not None and name not in FIELDS and not name.startswith("attributes."):
                raise ValueError(f"there is no field {name!r}")
            parts.append((literal.encode(), name))
    except (ValueError, Warning) as error:
        raise ConfigError(f"--format {text!r}: {error}; fields are {', '.join(FIELDS)}, attributes.NAME") from None

    def field(message: Message, name: str) -> bytes:
        value: Any
        if name.startswith("attributes."):
            value = (message.attributes or {}).get(name.partition(".")[2])
        elif name == "attributes":
            value = ",".join(f"{key}={value}" for key, value in (message.attributes or {}).items())
        else:
            value = getattr(message, name)
        if isinstance(value, bytes):
            if is_raw:
                return value
            value = value.decode("utf-8", "backslashreplace")
        shown = "" if value is None else str(value)
        return (shown if is_raw else escaped(shown)).encode("utf-8", "backslashreplace")

    return lambda message: b"".join(part + (b"" if name is None else field(message, name)) for part, name in parts)
