"""The meanings of error code 404 in the reply to a fetch: the end of the log, an empty block, or "try again"."""

from __future__ import annotations

from enum import Enum, auto


class NotFound(Enum):
    """The kinds of a 404 (the broker tells them apart by text only)."""

    END = auto()  # the cursor stands at the end of the store
    PASSED = auto()  # the cursor passed the rest of a memory block, without messages of this partition
    WAIT = auto()  # the cursor stays; what is there cannot be read just now


def not_found_kind(message: str) -> NotFound:
    """What a 404 means; the broker says it in words only (wire: MsgFileStore, MsgMemStore, BrokerServiceServer)."""
    if "reached maxOffset" in message:
        return NotFound.END
    return NotFound.PASSED if "found Message by index!" in message else NotFound.WAIT
