# SPDX-License-Identifier: Apache-2.0
"""The state of an `ExactRange`: commands in flight, the broker's read cursor, empty entries, and proofs to come."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import FetchedBatch, StoredMessage


class RangeState(Enum):
    OPENING = auto()  # after a seek to the position to read from
    READING = auto()
    CUTTING = auto()  # finds the first message at `end`, to cut the held reply there
    COUNTING = auto()  # checks that the last message of the held reply is at the last entry before `end`
    FLUSHING = auto()  # waits until entries that gave no message are in files
    LOCATING = auto()  # finds the entries without a message
    VERIFYING = auto()  # a second reading differs from the first: is the last delivered message still in the store?
    CLOSING = auto()  # proves that the range was complete all the time
    DONE = auto()


class Step(Enum):
    """Why the state changes. `STEPS` has the states."""

    RESTART = auto()  # a reading begins, the first one or another
    OPENED = auto()  # the cursor is where the reading goes on
    CUT = auto()  # the held reply may cross `end`
    COUNT = auto()  # no message of the held reply is behind `end`; are they all?
    FLUSH = auto()  # entries gave no message, and are not in files
    FLUSHED = auto()  # now they are
    LOCATE = auto()  # entries in files gave no message: which ones?
    LOCATED = auto()  # these are known; the reading goes on behind them
    VERIFY = auto()  # a second reading differs
    CLOSE = auto()  # all messages are known
    FAIL = auto()  # something moved the cursor
    FINISH = auto()  # the range was complete all the time


class Transition(NamedTuple):
    """`before` are the states in which the step may happen, `after` is the next one. With `has_proof`, a roll-back
    goes before the seek of the next state: it proves that nothing moved the cursor since the last seek."""

    before: frozenset[RangeState]
    after: RangeState
    has_proof: bool = True


_FETCHING = frozenset(
    {RangeState.READING, RangeState.CUTTING, RangeState.COUNTING, RangeState.LOCATING, RangeState.VERIFYING}
)
_READING = frozenset({RangeState.READING, RangeState.CUTTING, RangeState.COUNTING})
STEPS: Mapping[Step, Transition] = {
    Step.RESTART: Transition(frozenset(RangeState), RangeState.OPENING, has_proof=False),
    Step.OPENED: Transition(frozenset({RangeState.OPENING}), RangeState.READING),
    Step.CUT: Transition(frozenset({RangeState.READING, RangeState.CLOSING}), RangeState.CUTTING),
    Step.COUNT: Transition(frozenset({RangeState.CUTTING}), RangeState.COUNTING),
    Step.FLUSH: Transition(_READING, RangeState.FLUSHING),
    Step.FLUSHED: Transition(frozenset({RangeState.FLUSHING}), RangeState.OPENING, has_proof=False),
    Step.LOCATE: Transition(_READING | {RangeState.LOCATING}, RangeState.LOCATING),
    Step.LOCATED: Transition(_READING | {RangeState.LOCATING}, RangeState.OPENING),
    Step.VERIFY: Transition(frozenset({RangeState.READING, RangeState.DONE}), RangeState.VERIFYING),
    Step.CLOSE: Transition(_FETCHING, RangeState.CLOSING),
    # The cursor is known to have moved, or a roll-back has just said so.
    Step.FAIL: Transition(frozenset(RangeState), RangeState.CLOSING, has_proof=False),
    Step.FINISH: Transition(frozenset({RangeState.CLOSING}), RangeState.DONE),
}


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


@dataclass
class RangeEnd:
    """The end of the range that still needs a proof."""

    batches: tuple[FetchedBatch, ...] = ()  # delivered when the roll-back proves what was read since the last seek
    assumed: tuple[Reply, int] | None = None  # cut the reply after all if the store does not end at this position
    error: TubeMQError | None = None  # why the range fails, unless the last seek finds a loss


NOTHING = Reply(-1, (), -1)
AT_END = Reply(sys.maxsize, (), -1)  # a 404 says that the cursor is behind all that the reader needs, not where


class Action(Enum):
    SEEK = auto()  # register at `position`
    FIND_FLUSHED_END = auto()  # register at `position` to read files only: the reply has the position where they end
    FETCH = auto()  # get messages, in manual mode
    ROLL_BACK = auto()  # commit with lastPackConsumed=false


class Command(NamedTuple):
    action: Action
    position: int = -1


class CommandQueue:
    """Commands to send, and commands that wait for their replies, which come in the same order.

    A new plan starts a new generation. Replies to commands of earlier generations arrive but do not matter any more.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._to_send: list[Command] = []
        self._unanswered: deque[tuple[int, Command]] = deque()

    def plan(self, commands: Sequence[Command]) -> None:
        """Send `commands` next, and ignore the replies to all that was sent before."""
        self._generation += 1
        self._to_send = list(commands)

    def next_commands(self, fetches: int) -> list[Command]:
        """Return the commands to send now, with as many fetches as are missing to have `fetches` in flight."""
        in_flight = sum(
            generation == self._generation and command.action is Action.FETCH
            for generation, command in self._unanswered
        )
        commands = self._to_send + [Command(Action.FETCH)] * (fetches - in_flight)
        self._to_send = []
        self._unanswered.extend((self._generation, command) for command in commands)
        return commands

    @property
    def awaited(self) -> Action | None:
        """The action whose reply comes next, None when nothing is unanswered."""
        return self._unanswered[0][1].action if self._unanswered else None

    def answered(self) -> Command | None:
        """Remove the oldest unanswered command and return it, or None if its reply does not matter any more."""
        generation, command = self._unanswered.popleft()
        return command if generation == self._generation else None

    def disconnect(self) -> None:
        """Forget the unanswered commands: their connection is closed."""
        self._unanswered.clear()


# A store has two memory blocks. A cursor that passed the rest of a block twice has passed all that the store had at the
# seek, which reaches at least to the end of the range. The third time allows for a reset to the same position between
# them. While other partitions fill the store, the broker never reports its end.
_PASSES_TO_END = 3
_FULL_REPLY = 30  # messages; the size of the reply most likely ended a first reply with so many, so more follow it


class ReadCursor:
    """The broker's read cursor since the last seek, as far as replies to fetches show.

    Positions are bytes of the index. `sought` is where the last seek went, which is the group's confirmed position.
    The next fetch begins at `least_begin` or later.
    """

    def __init__(self, owns_store: bool, position: int) -> None:
        self._owns_store = owns_store
        self._span = ENTRIES_PER_READ * UNIT  # how far the last fetch moved the cursor
        self.seek(position)

    def seek(self, position: int) -> None:
        self.sought = self.least_begin = position
        self._last_begin: int | None = None  # of the last reply since the seek
        self._is_exact = True  # nothing moved the cursor since the seek: the next fetch begins exactly there
        self._passes = 0  # replies with a 404 that moved the cursor
        self.store_end = position  # until the reply to the seek says more

    def can_begin_at(self, begin: int) -> bool:
        """Return whether the next fetch can begin at `begin` if no other client moved the cursor."""
        return begin == self.least_begin or (begin > self.least_begin and not self._is_exact)

    def fetched(self, begin: int, messages: int) -> None:
        """A fetch that began at `begin` returned this number of messages."""
        self._is_exact = False
        if self._owns_store or (self._last_begin is None and messages >= _FULL_REPLY):
            self._span = max(UNIT, begin - self.least_begin + UNIT * messages)
        elif self._last_begin is not None:  # other partitions share the store: this begin is the end of the last fetch
            self._span = max(UNIT, begin - self._last_begin)
        self._last_begin = begin
        self.least_begin = begin + UNIT * messages  # each message has at least one entry

    def passed(self) -> None:
        """A 404 moved the cursor over the rest of a memory block."""
        self._passes += 1
        self._is_exact = False

    @property
    def was_moved(self) -> bool:
        """Whether the first fetch since the seek cannot have been at the end of the store, unless somebody moved the
        cursor."""
        return self._is_exact and self.sought < self.store_end

    @property
    def has_passed(self) -> bool:
        """Whether the broker said since the seek that entries are of other partitions."""
        return self._passes > 0

    @property
    def passed_the_end(self) -> bool:
        return self._passes == _PASSES_TO_END

    def fetches_to(self, end: int) -> int:
        """Return how many fetches it takes to reach `end`, by the length of the last one; 1 at least."""
        return max(1, -(-(end - self.least_begin) // self._span))


MAX_EMPTY_ENTRIES = 16
"""Entries without a message in a range. Messages behind more of them have no position."""


class EntryCount:
    """The empty entries of one reading of a range, up to where it has come.

    `has_positions` is True while positions follow by counting: the partition owns its store, and few entries are
    empty; `first_empty` is the position of the first one. Entries before `flushed_end` were read from files.
    `unflushed` are the entries [begin, end) that must be in files before the reading continues.
    """

    def __init__(self, owns_store: bool) -> None:
        self._owns_store = owns_store
        self.unflushed = (-1, -1)
        self.restart()

    def restart(self) -> None:
        """A new reading begins at the start of the range."""
        self.has_positions = self._owns_store
        self.flushed_end = -1
        self.first_empty: int | None = None
        self._empty = 0

    def add_empty(self, entries: int, first: int) -> None:
        """Count `entries` without a message, the first one at the position `first`."""
        if entries and self.first_empty is None:
            self.first_empty = first
        self._empty += entries
        self.has_positions = self.has_positions and self._empty <= MAX_EMPTY_ENTRIES

    @property
    def most_empty(self) -> int:
        """How many more entries may be empty before messages lose their positions."""
        return MAX_EMPTY_ENTRIES - self._empty
