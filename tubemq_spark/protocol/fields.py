"""How many fields a protobuf message has, before it is parsed.

An empty string takes two bytes on the wire and about thirty in memory, a message without content a hundred. So a frame
that is legal may fill half a gigabyte.
"""

from __future__ import annotations

from google.protobuf.message import Message

from tubemq_spark.errors import ProtocolError

MAX_FIELDS = 100_000
"""The most fields of a message, without those inside of its fields. A broker's reply has 12 000 messages at most."""
COUNTED_FROM = 2 << 20
"""Bytes. The fields of shorter messages are not counted: as many as there may be take less than 100 MB."""


def check_fields(kind: str, data: bytes) -> None:
    """`ProtocolError` when `data`, to be parsed as a message of this `kind`, has more than `MAX_FIELDS` fields. Bytes
    that are no message are not refused here."""
    if len(data) < COUNTED_FROM:
        return
    at = count = 0
    try:
        while at < len(data):
            count += 1
            if count > MAX_FIELDS:
                raise ProtocolError(f"a {kind} of {len(data)} bytes has more than {MAX_FIELDS} fields")
            tag, at = _varint(data, at)
            match tag & 7:  # the wire type; 3 and 4 begin and end a group, and have no value
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
        return  # it ends within a field: whoever parses it says so


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next field's bytes begin."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return number, at
        shift += 7


def missing_in(message: Message) -> list[str]:
    """The required fields that `message`, which lacks some, or the first message in it that lacks some, does not have.

    protobuf's own search goes on to the last message. Of millions of empty ones it takes gigabytes, or ends the
    process (seen with protobuf 7.36).
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in [value] if isinstance(value, Message) else value:
            if not one.IsInitialized():
                return [f"{field.name}.{name}" for name in missing_in(one)]
    missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]  # unknown to its stubs
    return missing
