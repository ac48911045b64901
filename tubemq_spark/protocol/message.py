# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes the payload of a message: body, attributes, flag and check sum.

    payload = body                                      flag 0
            = attrLen(4, big-endian) attributes body    flag 1

Attributes are UTF-8 text, `key=value` joined by `,`, without escapes. TubeMQ itself uses two keys: `$msgType$`, which
brokers filter by, and `$msgTime$` as `yyyyMMddHHmm` (wire: Message, DataConverterUtil, TransferedMessage). Producers
may add `spark_msg_millis`, the milliseconds since the beginning of that minute.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.peer_text import quoted
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.varint import varint
from tubemq_spark.similar_names import did_you_mean

ATTRIBUTES_FLAG = 1
MSG_TYPE_KEY = "$msgType$"
MSG_TIME_KEY = "$msgTime$"
COMPRESSION_KEY = "spark_compression"
"""The codec of a body that this connector's sink compressed."""
MILLIS_KEY = "spark_msg_millis"
MAX_MSG_TYPE = 255  # characters
MAX_ATTRIBUTES = 100_000
"""The maximum of attributes in a message. The Java client writes a few; each takes about 200 bytes of memory here."""
MAX_HEADER = 4 << 20
"""The maximum size of the attributes in bytes. In memory they may take four times that, and again for their parts.
Servers accept messages of 1 MiB, unless they are configured for more.
"""
CHECK_SUM_MASK = 0x7FFFFFFF
_MSG_TIME_DIGITS = 12
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_DATA_TAG = broker_pb.SendMessageRequestP2B(data=b"").SerializePartialToString()[:-1]
_LENGTH = struct.Struct(">i")
_SEPARATORS = (",", "=")
_RESERVED = {COMPRESSION_KEY, ""}


@dataclass(frozen=True)
class Attributes:
    """The decoded attributes of a message.

    `own` are the producer's attributes, None if there are none. `msg_time` is in microseconds since the epoch (on the
    wire: minutes, in an unnamed time zone, and perhaps the milliseconds behind them, which `own` has too).
    """

    own: Mapping[str, str] | None = None
    msg_type: str | None = None
    msg_time: int | None = None


NO_ATTRIBUTES = Attributes()


def check_sum(payload: bytes) -> int:
    """Return 31 bits of the CRC-32 of the whole payload (wire: CheckSum)."""
    return zlib.crc32(payload) & CHECK_SUM_MASK


def encode_payload(body: bytes, attributes: bytes) -> tuple[bytes, int]:
    """Return the payload and its flag. Without attributes both must be left out, or readers lose the message."""
    if not attributes:
        return body, 0
    return _LENGTH.pack(len(attributes)) + attributes + body, ATTRIBUTES_FLAG


def encode_headers(attributes: Sequence[bytes]) -> list[bytes]:
    """Return what precedes the body in the payload of each record."""
    return [_LENGTH.pack(len(one)) + one if one else one for one in attributes]


def split_payload(payload: bytes, flag: int) -> tuple[bytes, bytes]:
    """Return the bytes of the attributes, empty if there are none, and the body.

    Raise `ProtocolError` if the attributes are longer than the payload or `MAX_HEADER`, or more than `MAX_ATTRIBUTES`.
    A Java producer that clears a message's attributes leaves the flag set and writes no length: the body begins there.
    A broker delivers such a message only if these bytes, read as a length, are negative.
    """
    if not flag & ATTRIBUTES_FLAG:
        return b"", payload
    if len(payload) < _LENGTH.size:
        raise ProtocolError(f"a message of {len(payload)} bytes has the attributes flag, but no length of attributes")
    (size,) = _LENGTH.unpack_from(payload)
    if size < 0:
        return b"", payload
    end = _LENGTH.size + size
    if end > len(payload):
        raise ProtocolError(f"a message of {len(payload)} bytes claims {size} bytes of attributes")
    if size > MAX_HEADER:
        raise ProtocolError(
            f"a message of {len(payload)} bytes claims {size} bytes of attributes; at most {MAX_HEADER} are read"
        )
    if size > MAX_ATTRIBUTES and payload.count(b",", _LENGTH.size, end) >= MAX_ATTRIBUTES:
        raise ProtocolError(f"a message of {len(payload)} bytes has more than {MAX_ATTRIBUTES} attributes")
    return payload[_LENGTH.size : end], payload[end:]


def decode_attributes(data: bytes, zone: tzinfo = timezone.utc) -> Attributes:
    """Return the attributes in `data`, with `$msgTime$` read in `zone`.

    Never fail: a part without `=` becomes a key with an empty value, bytes that are not UTF-8 become U+FFFD (as in
    Java), and the first of two equal keys counts. A `$msgTime$` that is not a time stays in `own`.
    """
    own: dict[str, str] = {}
    msg_type: str | None = None
    msg_time: int | None = None
    for part in data.decode("utf-8", "replace").split(","):
        key, _, value = part.partition("=")
        if key == MSG_TYPE_KEY:
            msg_type = value if msg_type is None else msg_type
        elif key == MSG_TIME_KEY and (moment := parse_msg_time(value, zone)) is not None:
            msg_time = moment if msg_time is None else msg_time
        elif part:
            own.setdefault(key, value)
    if msg_time is not None:
        msg_time += 1000 * (parse_millis(own.get(MILLIS_KEY, "")) or 0)
    return Attributes(own or None, msg_type, msg_time)


def known_type(msg_type: str | None) -> str | None:
    """Return `msg_type`, None for a blank one, which is no type for Java's client (wire: Message.putSystemHeader)."""
    return msg_type if msg_type and not msg_type.isspace() else None


def encode_attributes(own: Mapping[str, str] | None, msg_type: str | None, msg_time: str | None) -> bytes:
    """Return the bytes of the attributes, TubeMQ's own first; `msg_time` is `yyyyMMddHHmm`.

    A blank `msg_type` is none. Raise `ConfigError` for a separator in a key or value, a reserved key, a `msg_type` that
    is too long or has blanks around it, or more attributes than a reader accepts.
    """
    if own is not None and len(own) > MAX_ATTRIBUTES - 10:  # the rest is for the connector's own
        raise ConfigError(
            f"a message has {len(own)} attributes; at most {MAX_ATTRIBUTES - 10} can be sent: write several into one, "
            "or into the value"
        )
    parts = []
    if (msg_type := known_type(msg_type)) is not None:
        if msg_type != msg_type.strip():
            raise ConfigError(f"msg_type {quoted(msg_type)} has blanks around it: write trim(msg_type)")
        if len(msg_type) > MAX_MSG_TYPE:
            raise ConfigError(
                f"msg_type {quoted(msg_type)} has {len(msg_type)} characters; at most {MAX_MSG_TYPE} can be sent: "
                "write a shorter one, and the whole text into an attribute"
            )
        _refuse_separators("msg_type", msg_type)
        parts.append(f"{MSG_TYPE_KEY}={msg_type}")
    if msg_time is not None:
        if parse_msg_time(msg_time) is None:
            raise ConfigError(
                f"msg_time {quoted(msg_time)} is not a time of the form yyyyMMddHHmm: write a timestamp, a text such "
                "as 202601311205, or null for the present time"
            )
        parts.append(f"{MSG_TIME_KEY}={msg_time}")
    if own:
        texts = ",".join([f"{key}={value}" for key, value in own.items()])
        if (
            (texts.count(","), texts.count("=")) != (len(own) - 1, len(own))
            or "$msg" in texts
            or _RESERVED & own.keys()
        ):
            for key, value in own.items():
                _check_own(key, value)
        parts.append(texts)
    header = ",".join(parts).encode()
    if len(header) > MAX_HEADER - 1024:  # the rest is for the connector's own
        raise ConfigError(
            f"the attributes have {len(header)} bytes; at most {MAX_HEADER - 1024} can be sent: write long texts into "
            "the value"
        )
    return header


def parse_msg_time(text: str, zone: tzinfo = timezone.utc) -> int | None:
    """Return `yyyyMMddHHmm` in `zone` as microseconds since the epoch, the first if there are two; None if invalid, or
    if UTC has no such year, because no Python program could show it."""
    if len(text) != _MSG_TIME_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    year, month, day, hour, minute = map(int, (text[:4], text[4:6], text[6:8], text[8:10], text[10:]))
    try:
        moment = datetime(year, month, day, hour, minute, tzinfo=zone).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
    return int((moment - EPOCH).total_seconds()) * 1_000_000


def parse_millis(text: str) -> int | None:
    """Return the milliseconds since the beginning of a minute; None if invalid."""
    return int(text) if len(text) <= 5 and text.isdecimal() and int(text) < 60_000 else None


def parse_moment(text: str) -> datetime:
    """Return the moment in ISO-8601, without a zone if the text has none, or in milliseconds since 1970 (0, or 13
    digits: the years 2001 to 2286). Raise `ValueError` with words for the user for any other text."""
    bare = text.strip()
    if bare.isdecimal() and bare != "0" and len(bare) != 13:
        raise ValueError("milliseconds have 13 digits; write seconds or a yyyyMMddHHmm in the form 2026-01-31T12:00")
    try:
        if bare.isdecimal():
            return datetime.fromtimestamp(int(bare) / 1000, timezone.utc)
        moment = datetime.fromisoformat(bare[:-1] + "+00:00" if bare[-1:] in ("Z", "z") else bare)
        return moment if moment.tzinfo is None else moment.astimezone(timezone.utc)  # raises if UTC has no such year
    except (ValueError, OverflowError, OSError):
        raise ValueError("it is not such a time") from None


def parse_zone(text: str) -> tzinfo:
    """Return the time zone of a name. Raise `ValueError` with words for the user if this machine does not know it."""
    if text.strip().upper() == "UTC":
        return timezone.utc  # works without time zone data
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        meant = did_you_mean(text, sorted(available_timezones()), 0.8)
        raise ValueError(f"this machine does not know the zone{meant}") from None


def microseconds_of(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def format_msg_time(moment: datetime) -> str:
    """Return an aware datetime as `yyyyMMddHHmm` in UTC."""
    utc = moment.astimezone(timezone.utc)
    return f"{utc.year:04}{utc:%m%d%H%M}"  # %Y omits the leading zeros of early years


def _check_own(key: str, value: str) -> None:
    name = quoted(key)
    # Java looks for its keys anywhere in the attributes (wire: Message.parseSystemHeader).
    if any(token in text for token in (MSG_TYPE_KEY, MSG_TIME_KEY) for text in (key, value)):
        raise ConfigError(
            f"the attribute {name} {quoted(value)} contains {MSG_TYPE_KEY} or {MSG_TIME_KEY}, which TubeMQ reserves: "
            "use the columns msg_type and msg_time"
        )
    if key == COMPRESSION_KEY:
        raise ConfigError(f"the attribute {key} is reserved: leave it out, and use option 'compression'")
    if not key:
        raise ConfigError("an attribute has an empty key: give it a name, or leave it out")
    _refuse_separators("the attribute key", key)
    _refuse_separators(f"the attribute {name}", value)


def _refuse_separators(what: str, text: str) -> None:
    if any(separator in text for separator in _SEPARATORS):
        raise ConfigError(
            f"{what} {quoted(text)} contains ',' or '=', which TubeMQ uses as separators: encode it, for example with "
            "url_encode"
        )


# A send request is target plus content, because protobuf reads two messages one behind the other as one message. Each
# is encoded once: a target for all records of a partition, a content for all attempts (wire: SendMessageRequestP2B).


def encode_target(
    client_id: str, partition: Partition, authorization: broker_pb.AuthorizedInfo, host: str = "127.0.0.1"
) -> bytes:
    """Return the part of a request that names sender and partition. The broker counts messages by the IPv4 `host`."""
    return broker_pb.SendMessageRequestP2B(
        clientId=client_id,
        topicName=partition.topic,
        partitionId=partition.partition_id,
        sentAddr=int.from_bytes(map(int, host.split(".")), "big", signed=True),
        authInfo=authorization,
    ).SerializePartialToString()


def encode_content(payload: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> bytes:
    """Return the part of a request that holds the record. `payload` and `flag` are `message.encode_payload`'s.

    The broker filters by `msg_type`, counts by `msg_time` (`yyyyMMddHHmm`), and compares the check sum.
    """
    behind = broker_pb.SendMessageRequestP2B(
        flag=flag, checkSum=check_sum(payload), msgType=msg_type, msgTime=msg_time
    ).SerializePartialToString()
    # protobuf would copy a long payload several times: 1 MiB takes it 1.4 ms, and this 0.03 ms.
    return b"".join((_DATA_TAG, varint(len(payload)), payload, behind))
