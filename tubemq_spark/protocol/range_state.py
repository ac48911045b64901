"""The states and events of an `ExactRange`, and what it keeps from one reply to the next."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.fetched_batch import FetchedBatch, StoredMessage


class State(Enum):
    OPENING = auto()  # after a seek to the position to read from
    READING = auto()
    CUTTING = auto()  # finds the first message at `end`, to cut the held reply there
    COUNTING = auto()  # checks that the last message of the held reply is at the last entry before `end`
    FLUSHING = auto()  # waits until entries that gave no message are in files
    LOCATING = auto()  # finds the entries without a message
    VERIFYING = auto()  # a second reading differs from the first: is the last delivered message still in the store?
    CLOSING = auto()  # proves that the range was complete all the time
    DONE = auto()


class Event(Enum):
    SOUGHT = auto()
    FETCHED = auto()
    PASSED = auto()
    WAITED = auto()
    ENDED = auto()
    ROLLED_BACK = auto()


class Reply(NamedTuple):
    """A fetch. None of its messages is at `bound` or behind it."""

    begin: int
    messages: Sequence[StoredMessage]
    max_offset: int
    bound: int = sys.maxsize

    def covered_to(self, end: int) -> int:
        """Return the end of the entries whose messages the reply may have left out, in a range up to `end`."""
        return end if self.bound == AT_END.begin else self.bound


class AssumedEnd(NamedTuple):
    """The range was completed as if the store ended at `limit`. If it did not, `reply` must be cut after all."""

    reply: Reply
    limit: int


@dataclass
class Outcome:
    """The end of the range that still needs a proof."""

    batches: tuple[FetchedBatch, ...] = ()  # delivered when the roll-back proves what was read since the last seek
    assumed: AssumedEnd | None = None
    error: TubeMQError | None = None  # why the range fails, unless the last seek finds a loss


NOTHING = Reply(-1, (), -1)
AT_END = Reply(sys.maxsize, (), -1)  # a 404 says that the cursor is behind all that the reader needs, not where
