"""The meanings of error code 404 in the reply to a fetch: the end of the log, an empty block, or "try again"."""

from __future__ import annotations

from enum import Enum, auto


class NotFound(Enum):
    """The kinds of error code 404."""

    END = auto()  # the cursor is at the end of the store
    PASSED = auto()  # the cursor passed the rest of a memory block, without messages of this partition
    WAIT = auto()  # the cursor stays: the broker cannot read these messages now


def not_found_kind(message: str) -> NotFound:
    """Return the kind of a 404, which only its text tells (wire: MsgFileStore, MsgMemStore, BrokerServiceServer)."""
    if "reached maxOffset" in message:
        return NotFound.END
    return NotFound.PASSED if "found Message by index!" in message else NotFound.WAIT
