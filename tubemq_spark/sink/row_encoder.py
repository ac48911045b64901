# SPDX-License-Identifier: Apache-2.0
"""Encodes a row's cells as the parts of a message (the serializer); names the column of a row that cannot be sent.

The body is the row's value, which can become a pack of InLong, or be compressed, or both.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.client import system
from tubemq_spark.client.clock import SYSTEM_CLOCK
from tubemq_spark.compression import MAX_PLAIN, check_available, compress, max_plain
from tubemq_spark.errors import ConfigError
from tubemq_spark.peer_text import quoted
from tubemq_spark.protocol.message import (
    COMPRESSION_KEY,
    EPOCH,
    MAX_ATTRIBUTES,
    MAX_HEADER,
    encode_attributes,
    format_msg_time,
    known_type,
)
from tubemq_spark.protocol.pb.ProxySdk_pb2 import MapFieldEntry, MessageObj, MessageObjs
from tubemq_spark.protocol.stamp import DIGEST_DIGITS, RESERVED
from tubemq_spark.protocol.varint import varint
from tubemq_spark.sink.options import PACK_CODECS, PROTOBUF
from tubemq_spark.sink.schema import NOT_UTF8, BadRowError, Cells, Texts

_log = logging.getLogger(__name__)

# An InLongMsg has version 1, as DataProxy writes it for text protocols, big-endian: 0x0F 1
# created(8) groups(4) {size(2) attributes size(4) compressed(1) data}… 0x0F 1. The data is {size(4) body}…, maybe in
# snappy. wire: InLongMsg
_HEAD = struct.Struct(">BBqI")
_SHORT, _SIZE = struct.Struct(">H"), struct.Struct(">I")
_GROUP = struct.Struct(">IB")
_MAGIC = b"\x0f\x01"
_MAX_ATTRIBUTES = 65_535  # bytes, the longest text that Java writes

# A protobuf pack is a `MessageObjs` of proto/ProxySdk.proto. All but the body is the same in the messages of a group.
_MSGS_TAG, _BODY_TAG = (
    bytes([number << 3 | 2]) for number in (MessageObjs.MSGS_FIELD_NUMBER, MessageObj.BODY_FIELD_NUMBER)
)

# The attributes in a pack that columns give, under their present names and those of old senders, and the number of
# messages; and those of a message, by which readers open its body.
_SET_BY_COLUMNS = frozenset({"groupId", "bid", "streamId", "tid", "dt", "t", "cnt"})
_SET_IN_PROTOBUF = _SET_BY_COLUMNS | {"inlongGroupId", "inlongStreamId", "msgTime"}
_OF_BODIES = (
    *("msgEnType", "version", "inlongGroupId", "inlongStreamId", "proxyName", "packTime", "msgCount", "srcLength"),
    "compressType",
)
_SOME_TIME = 10**12  # stands for the present time where only its length matters


class EncodedRow(NamedTuple):
    """The parameters of `Producer.send`; `attributes` has no stamp yet, and not those `of_pack`."""

    topic: str
    body: bytes
    attributes: bytes
    msg_type: str | None
    msg_time: str
    key: bytes | None
    target: tuple[int, int] | None
    of_pack: bytes = b""


@dataclass(frozen=True)
class BodyCodec:
    """The encoding that options `messageFormat`, `compression`, `inlongPackCompression` (`inside`) and
    `inlongPackFormat` choose.

    Raise `ConfigError` if pyarrow lacks the codec, which is not a fault of a row.
    """

    message_format: str = "raw"
    compression: str = "none"
    inside: str = "none"
    pack_format: str = "inlongmsg"

    def __post_init__(self) -> None:
        for codec in {self.compression, self.inside} - {"none"}:
            check_available(codec)

    @property
    def attribute(self) -> bytes:
        """The attribute that names the compression, empty without one."""
        return b"" if self.compression == "none" else f"{COMPRESSION_KEY}={self.compression}".encode()

    def encode(self, value: bytes, cells: Cells) -> bytes:
        """Return the body for the row's `value`; raise `BadRowError` for a row that no pack can hold."""
        body = self._pack([PackGroup(cells, [value])]) if self.message_format == "inlongmsg" else value
        if len(body) > MAX_PLAIN:  # no reader decompresses a longer one
            raise BadRowError("value", f"it has {len(body)} bytes, but at most {MAX_PLAIN >> 20} MiB fit; split it")
        return _compressed(self.compression, body)

    def pack(self, groups: Sequence[PackGroup]) -> bytes:
        """Return the body of a pack with several rows, each of which could be encoded alone."""
        return _compressed(self.compression, self._pack(groups))

    def _pack(self, groups: Sequence[PackGroup]) -> bytes:
        return self._protobuf(groups) if self.is_protobuf else _inlongmsg(groups, self.inside)

    def max_unpacked(self, limit: int) -> int:
        """Return how many bytes a pack may have before its compression if the body has `limit` at most."""
        return max_plain(self.inside, max_plain(self.compression, limit))

    @property
    def is_protobuf(self) -> bool:
        return self.pack_format == PROTOBUF

    @cached_property
    def _host(self) -> str:
        return system.host_address()

    def group_text(self, cells: Cells) -> bytes:
        """Return bytes in which rows of different groups differ, as many as all but the values take."""
        time = _SOME_TIME if cells.inlong_time is None else cells.inlong_time
        return b"".join(self._around_body(cells, time)) if self.is_protobuf else _group_text(cells, time, 0)

    def attributes(self, groups: Sequence[PackGroup]) -> bytes:
        """Return the attributes of a pack's message, behind a comma: none but of protobuf, as DataProxy sets them."""
        if not self.is_protobuf:
            return b""
        sizes = [len(value) for group in groups for value in group.values]
        group, stream = _ids(groups[0].cells, "&=,")
        compress_type = PACK_CODECS.index(self.inside)
        texts = map(str, (1, 1, group, stream, self._host, _now(), len(sizes), sum(sizes), compress_type))
        return b"," + encode_attributes(dict(zip(_OF_BODIES, texts, strict=True)), None, None)

    def _protobuf(self, groups: Sequence[PackGroup]) -> bytes:
        messages = (self._messages(group, time) for group, time in _with_times(groups))
        return _compressed(self.inside, b"".join(chain.from_iterable(messages)))

    def _messages(self, group: PackGroup, time: int) -> list[bytes]:
        before, behind = self._around_body(group.cells, time)

        @cache
        def head(size: int) -> bytes:
            body = _BODY_TAG + varint(size)
            return _MSGS_TAG + varint(len(before) + len(body) + size + len(behind)) + before + body

        return [part for value in group.values for part in (head(len(value)), value, behind)]

    def _around_body(self, cells: Cells, time: int) -> tuple[bytes, bytes]:
        """Return what precedes the body in a `MessageObj`, and what follows it."""
        group, stream = _ids(cells, "&=,")
        params = {
            "inlongGroupId": group,
            "inlongStreamId": stream,
            "msgTime": str(time),
            "sourceIp": self._host,
            "sourceTime": str(time),
            **_own_texts(cells, _SET_IN_PROTOBUF),
        }
        before = MessageObj(msgTime=time, sourceIp=params["sourceIp"].encode()).SerializePartialToString()
        entries = [MapFieldEntry(key=key.encode(), value=text.encode()) for key, text in params.items()]
        return before, _fitting(MessageObj(params=entries).SerializePartialToString())


class RowEncoder:
    """Encodes the rows of one task."""

    def __init__(self, topic: str | None, body_codec: BodyCodec, *, stamped: bool) -> None:
        """`topic` is the option, which wins over a row's topic. Rows that are `stamped` cannot have such attributes.

        The encoder `is_raw` if bodies are the rows' values."""
        self._topic = topic
        self.body_codec = body_codec
        self.is_raw = body_codec == BodyCodec()
        self._last_attribute = b"," + body_codec.attribute if body_codec.attribute else b""
        self._stamped = stamped
        # In texts of attributes: an empty key, or one that may be reserved.
        self._unusual = "\n=", ",=", "$msg", "spark_" if stamped else COMPRESSION_KEY

    def encode(self, cells: Cells) -> EncodedRow:
        """Return the parts of the row's message. Raise `BadRowError` for a row that no topic accepts."""
        of_pack = b""
        value, row_topic, attributes, msg_type, msg_time, key, broker_id, partition, *_, corrupt = cells
        topic = row_topic if self._topic is None else self._topic
        column = "value"
        try:
            if corrupt:
                column = "corrupt"
                raise ConfigError(
                    "it is true: the source could not decode this message, so its bytes are not a body; leave such "
                    "rows out"
                )
            if value is None:
                raise ConfigError("it is null, which TubeMQ does not have: write an empty value, or leave the row out")
            column = "topic"
            if not topic:
                found = "empty" if topic == "" else "null"
                raise ConfigError(f"it is {found}, and option 'topic' is not given: write a topic's name, or give that")
            topic.isascii() or topic.encode()  # otherwise no server could be asked for it
            target = None
            if broker_id is not None or partition is not None:
                column = "partition" if partition is None else "broker_id"
                if broker_id is None or partition is None:
                    raise ConfigError("it is null, but the other half of the target is not; give both, or neither")
                target = (broker_id, partition)
            column = "msg_time"
            if msg_time is None:
                msg_time = int(SYSTEM_CLOCK.time() // 60)
            time_text = msg_time if isinstance(msg_time, str) else minutes_text(msg_time)
            encoded = _time_attribute(time_text)
            column, msg_type = "msg_type", known_type(msg_type)
            if not self.is_raw:
                of_pack = self.body_codec.attributes([PackGroup(cells, [value])])
                value = self.body_codec.encode(value, cells)
                if msg_type is None and self.body_codec.message_format == "inlongmsg":  # as DataProxy does
                    column, msg_type = "inlong_stream", cells.inlong_stream
            if msg_type is not None:
                encoded = _type_attribute(msg_type) + b"," + encoded
            encoded += self._last_attribute
            if attributes:
                column = "attributes"
                encoded += b"," + self._own_attributes(dict(attributes))
        except UnicodeEncodeError:
            raise BadRowError(column, NOT_UTF8) from None
        except ConfigError as error:
            raise BadRowError(column, str(error)) from None
        return EncodedRow(topic, value, encoded, msg_type, time_text, key, target, of_pack)

    def _own_attributes(self, attributes: Mapping[str, str | None]) -> bytes:
        if self.body_codec.message_format != "raw":  # rows of a pack that was read still have the attributes of that
            attributes = {key: text for key, text in attributes.items() if key not in _OF_BODIES}
        texts = {key: text for key, text in attributes.items() if text is not None}
        if len(texts) < len(attributes):
            key = next(key for key, text in attributes.items() if text is None)
            raise ConfigError(
                f"attribute {quoted(key)} is null; TubeMQ has only texts, so leave it out, for example with map_filter"
            )
        if self._stamped and (reserved := sorted(RESERVED & texts.keys())):
            raise ConfigError(
                f"the attribute {', '.join(reserved)} is reserved where rows are stamped; drop it from the map first, "
                "or leave out option 'stampRows'"
            )
        return encode_attributes(texts, None, None)

    def own_attributes(self, column: pa.MapArray) -> list[bytes] | None:
        """Return the attributes of each row as `encode` adds them to its own, empty if the row has none. Return None if
        `encode`, which is the specification, may refuse a row."""
        ends = column.offsets
        used = slice(ends[0].as_py(), ends[-1].as_py())
        keys, texts = (part[used].cast(pa.binary()) for part in (column.keys, column.items))
        pairs = pc.binary_join_element_wise(keys, texts, b"=")
        of_rows = pa.ListArray.from_arrays(pc.subtract(ends, ends[0]), pairs)
        rows: list[bytes] = pc.if_else(column.is_valid(), pc.binary_join(of_rows, b","), b"").to_pylist()
        codes = keys.dictionary_encode()
        keys_of_rows = pc.add(pc.multiply(pc.list_parent_indices(of_rows), len(codes.dictionary)), codes.indices)
        if None in rows or pc.count_distinct(keys_of_rows).as_py() < len(pairs):  # a null text, or a key twice in a row
            return None
        try:
            text = b"\n".join([b"", *rows]).decode()
        except UnicodeDecodeError:
            return None
        separators = len(pairs) - sum(map(bool, rows)), len(pairs)
        is_short = len(pairs) < MAX_ATTRIBUTES // 2 and len(text) < MAX_HEADER // 8
        is_usual = (text.count(","), text.count("=")) == separators and not any(part in text for part in self._unusual)
        return rows if is_short and is_usual else None


def digest_of(cells: Cells) -> str:
    """Return 16 hex digits of all that a row has: equal for equal rows, in every attempt."""
    *others, _ = cells._replace(
        value=None, attributes=_items(cells.attributes), inlong_attributes=_items(cells.inlong_attributes)
    )  # without `corrupt`, because such rows are not sent
    digest = blake2b(ascii(tuple(others)).encode(), digest_size=DIGEST_DIGITS // 2)
    digest.update(cells.value or b"")
    return digest.hexdigest()


def _items(attributes: Texts) -> list[tuple[str, str | None]] | None:
    return None if attributes is None else sorted(dict(attributes).items())


# Most rows of a task have few different types and times.


@lru_cache(maxsize=4096)
def _type_attribute(msg_type: str) -> bytes:
    if "#" in msg_type:  # Java's client sends it, too
        _log.warning(
            "[type-not-filtered] messages with msg_type %r are written, but no reader can filter by it, because the "
            "master separates topic and types with '#'",
            msg_type,
        )
    return encode_attributes(None, msg_type, None)


@lru_cache(maxsize=4096)
def _time_attribute(msg_time: str) -> bytes:
    return encode_attributes(None, None, msg_time)


@lru_cache(maxsize=4096)
def minutes_text(minutes: int) -> str:
    """Return minutes since the epoch as `yyyyMMddHHmm`; raise `ConfigError` outside the years 1 to 9999."""
    try:
        return format_msg_time(EPOCH + timedelta(minutes=minutes))
    except OverflowError:
        raise ConfigError(
            f"{minutes} minutes since 1970 are outside the years 1 to 9999: write a time within them, or null for the "
            "present time"
        ) from None


# Packs of InLong


@dataclass
class PackGroup:
    """Rows of a pack that differ only in their `values`; `cells` are those of one of them. `text` is that of
    `BodyCodec.group_text`, if it is known."""

    cells: Cells
    values: list[bytes]
    text: bytes = b""


def _now() -> int:
    return int(SYSTEM_CLOCK.time() * 1000)


def _with_times(groups: Sequence[PackGroup]) -> list[tuple[PackGroup, int]]:
    now = _now()
    return [(one, now if one.cells.inlong_time is None else one.cells.inlong_time) for one in groups]


def _compressed(codec: str, data: bytes) -> bytes:
    return data if codec == "none" else compress(codec, data)


def _inlongmsg(groups: Sequence[PackGroup], codec: str) -> bytes:
    timed = _with_times(groups)
    parts = [_HEAD.pack(*_MAGIC, timed[0][1], len(groups))]
    for group, created in timed:
        text = _group_text(group.cells, created, len(group.values))
        bodies: list[bytes] = [b""] * (2 * len(group.values))
        bodies[::2] = [_SIZE.pack(len(value)) for value in group.values]
        bodies[1::2] = group.values
        is_compressed = codec != "none"
        data = [compress(codec, b"".join(bodies))] if is_compressed else bodies
        parts += (_SHORT.pack(len(text)), text, _GROUP.pack(1 + sum(map(len, data)), is_compressed), *data)
    parts.append(_MAGIC)
    return b"".join(parts)


def _group_text(cells: Cells, created: int, count: int) -> bytes:
    group, stream = _ids(cells, "&=")
    attributes: dict[str, object] = {"groupId": group, "streamId": stream, "dt": created, "cnt": count}
    attributes |= _own_texts(cells, _SET_BY_COLUMNS, "&=")
    return _fitting(_java_text("&".join([f"{key}={text}" for key, text in attributes.items()])))


def _fitting(text: bytes) -> bytes:
    if len(text) > _MAX_ATTRIBUTES:
        raise BadRowError(
            "inlong_attributes",
            f"{len(text)} bytes of attributes, but a pack holds {_MAX_ATTRIBUTES}: write long texts into the value",
        )
    return text


def _ids(cells: Cells, separators: str) -> tuple[str, str]:
    """Return the group and the stream of a row."""
    return (
        _name("inlong_group", cells.inlong_group, separators),
        _name("inlong_stream", cells.inlong_stream, separators),
    )


def _own_texts(cells: Cells, replaced: Collection[str], separators: str = "") -> dict[str, str]:
    """Return the attributes of a row without those that are `replaced`."""
    column = "inlong_attributes"
    own: dict[str, str] = {}
    for key, attribute in dict(cells.inlong_attributes or ()).items():
        if key in replaced:
            continue
        if not key:
            raise BadRowError(column, "an attribute has an empty key: give it a name, or leave it out")
        if attribute is None:
            raise BadRowError(column, f"attribute {quoted(key)} is null; packs have only texts, so leave it out")
        text = _text(column, f"attribute {quoted(key)}", attribute, separators)
        own[_text(column, "the key", key, separators)] = text
    return own


def _name(column: str, name: str | None, separators: str) -> str:
    if not name:
        raise BadRowError(column, f"it is {'null' if name is None else 'empty'}: write the name that InLong has for it")
    return _text(column, "the name", name, separators)


def _text(column: str, what: str, text: str, separators: str) -> str:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadRowError(column, NOT_UTF8) from None
    if any(one in text for one in separators):
        found = " or ".join(map(repr, separators))
        raise BadRowError(
            column,
            f"{what} {quoted(text)} contains {found}, which InLong uses as separators: encode it, for example with "
            "url_encode",
        )
    return text


def _java_text(text: str) -> bytes:
    """Return `text` as `DataOutput.writeUTF` writes it, without its size.

    Zero takes two bytes; a character beyond U+FFFF is two surrogates of three bytes each.
    """
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = (unit for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le")))
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
