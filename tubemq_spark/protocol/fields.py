"""Counts the fields of a protobuf message before it is parsed, to limit the memory that a reply takes.

An empty string takes two bytes on the wire and about thirty in memory, an empty message a hundred. So a valid frame can
take half a gigabyte of memory.
"""

from __future__ import annotations

from google.protobuf.message import Message

from tubemq_spark.errors import ProtocolError

MAX_FIELDS = 100_000
"""The maximum of top-level fields in a message. The largest reply of a broker has 12 000 messages."""
COUNTED_FROM = 2 << 20
"""Bytes. Shorter messages are not counted: their fields take less than 100 MB at worst."""


def check_fields(kind: str, data: bytes) -> None:
    """Raise `ProtocolError` if `data`, a message of this `kind`, has more than `MAX_FIELDS` fields. Accept bytes that
    are no message: the parser refuses them.
    """
    if len(data) < COUNTED_FROM:
        return
    at = count = 0
    try:
        while at < len(data):
            count += 1
            if count > MAX_FIELDS:
                raise ProtocolError(f"a {kind} of {len(data)} bytes has more than {MAX_FIELDS} fields")
            tag, at = _varint(data, at)
            match tag & 7:  # the wire type; 3 and 4 begin and end a group and have no value
                case 0:
                    _, at = _varint(data, at)
                case 1:
                    at += 8
                case 2:
                    size, at = _varint(data, at)
                    at += size
                case 5:
                    at += 4
    except IndexError:
        return  # it ends within a field, which the parser reports


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the index behind it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return number, at
        shift += 7


def missing_in(message: Message) -> list[str]:
    """Return the missing required fields of the first incomplete message in `message`, which may be itself.

    protobuf's own search looks at all messages inside. With millions of empty ones it takes gigabytes of memory, or
    ends the process (seen with protobuf 7.36).
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in [value] if isinstance(value, Message) else value:
            if not one.IsInitialized():
                return [f"{field.name}.{name}" for name in missing_in(one)]
    missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]  # unknown to its stubs
    return missing
