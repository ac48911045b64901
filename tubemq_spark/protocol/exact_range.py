"""Reading exactly the messages of one partition in [start, end), the same ones every time.

The broker makes this hard: a fetch names no position, messages carry none, and the read cursor lives at the broker. A
reply tells only where its read *began*. What can be relied on (wire: BrokerServiceServer, DefaultOffsetManager,
MsgFileStore, MsgMemStore):

* A seek (a register of the same client at a position) places the cursor, any number of times; its answer tells where the
  cursor really is, and the store's end. Requests of one connection are handled in the order they were sent.
* Fetches in manual mode advance the cursor and confirm nothing. A reply covers [its begin, the next reply's begin).
  It may be small or empty in mid-data; a 404 may have moved the cursor too.
* A roll-back (a commit that consumed nothing) answers the confirmed position: still the last seek's, unless somebody or
  something (retention, an expired group, an administrator) moved the group under the reader.

So a reply is held until the next one tells where it ended. One that crosses `end` is cut: after a seek to `end`, the
first message found there is also the first in the held reply that does not belong. Every leg from one seek to the next
ends with a roll-back that proves nobody touched the cursor, and the reader closes with a seek to `start`, which answers
`start` only if retention has taken nothing of the range meanwhile.

In a store with one partition every index entry is a message of this partition and positions follow by counting, unless
the store holds entries that no fetch returns; those gaps are found by bisection, so that a message's position never
depends on how it was fetched.

`ExactRange` knows no sockets: it says what to send and is told what was answered, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol.constants import ENTRIES_PER_READ, INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.metadata import Partition

UNIT = INDEX_MSG_UNIT_SIZE


class StoredMessage(Protocol):
    """What of a message tells it from all others of its store (the wire's TransferedMessage has it)."""

    @property
    def messageId(self) -> int: ...  # noqa: N802
    @property
    def checkSum(self) -> int: ...  # noqa: N802


class Action(Enum):
    SEEK = auto()  # register at `position`
    FETCH = auto()  # get, in manual mode
    ROLL_BACK = auto()  # commit with lastPackConsumed=false


class Command(NamedTuple):
    action: Action
    position: int = -1


class NotFound(Enum):
    """The kinds of a 404 (the broker tells them apart by text only)."""

    END = auto()  # the cursor stands at the end of the store
    PASSED = auto()  # the cursor passed a stretch without messages of this partition
    WAIT = auto()  # the cursor stays; what is there cannot be read just now


class State(Enum):
    OPENING = auto()  # sought the place to read from
    READING = auto()
    CUTTING = auto()  # looks for the first message at `end`, to cut the held reply there
    LOCATING = auto()  # looks for entries that hold no message
    VERIFYING = auto()  # after an interruption: is what was given out still what the store has?
    CLOSING = auto()  # proves that the range was complete all the time
    DONE = auto()


class Event(Enum):
    SOUGHT = auto()
    FETCHED = auto()
    PASSED = auto()
    WAITED = auto()
    ENDED = auto()
    ROLLED_BACK = auto()


@dataclass(frozen=True)
class Piece:
    """Consecutive messages of the range; `positions` is one index position a message, None where the protocol does
    not determine them (several partitions share the store)."""

    messages: Sequence[StoredMessage]
    positions: Sequence[int] | None
    begin: int
    upto: int


@dataclass
class _Held:
    begin: int
    messages: Sequence[StoredMessage]
    max_offset: int


_NOTHING = _Held(0, (), 0)


def _key(message: StoredMessage) -> tuple[int, int]:
    return message.messageId, message.checkSum


def _find(messages: Sequence[StoredMessage], wanted: StoredMessage) -> int:
    """The index of `wanted`, or how many there are when it is not among them."""
    key = _key(wanted)
    return next((index for index, message in enumerate(messages) if _key(message) == key), len(messages))


class _Located:
    """Finds the positions of messages in [begin, upto) when there are more entries than messages.

    Halves a stretch with gaps by asking for the first message at or behind its middle, until each stretch has either no
    message or no gap.
    """

    def __init__(
        self, messages: Sequence[StoredMessage] = (), begin: int = 0, upto: int = 0, last: bool = False
    ) -> None:
        self.messages, self.begin, self.upto, self.last = messages, begin, upto, last
        self.positions = [-1] * len(messages)
        self._stretches = [(begin, upto, 0, len(messages))]

    def next_probe(self) -> int | None:
        """Where to look next, None when all positions are known."""
        while self._stretches:
            begin, upto, first, last = self._stretches[-1]
            if (last - first) * UNIT > upto - begin:
                raise ProtocolError(f"{last - first} messages came from the {(upto - begin) // UNIT} entries at {begin}")
            if (last - first) * UNIT == upto - begin:
                self.positions[first:last] = range(begin, upto, UNIT)
            elif first < last:
                return self._middle(begin, upto)
            self._stretches.pop()
        return None

    def found(self, message: StoredMessage | None) -> None:
        """`message` is the first one at or behind the probe, None when there is none before `upto`."""
        begin, upto, first, last = self._stretches.pop()
        middle = self._middle(begin, upto)
        cut = last if message is None else first + _find(self.messages[first:last], message)
        self._stretches += [(middle, upto, cut, last), (begin, middle, first, cut)]

    @staticmethod
    def _middle(begin: int, upto: int) -> int:
        return begin + (upto - begin) // UNIT // 2 * UNIT


class ExactRange:
    """The messages of `partition` in [start, end): says what to send, hears what was answered, gives out pieces.

    `sole_partition` tells whether the partition has its store for itself. At most `depth` fetches are unanswered at a
    time. Raises `DataLossError` when the store lost part of the range, and `PositionMovedError` when the cursor was moved
    from outside; the pieces already given out must not be used then.
    """

    def __init__(self, partition: Partition, start: int, end: int, *, sole_partition: bool, depth: int = 4) -> None:
        if not (0 <= start < end and start % UNIT == 0 and end % UNIT == 0):
            raise ValueError(f"[{start}, {end}) of {partition} is no range of index positions")
        self.partition = partition
        self.start = start
        self.end = end
        self._sole = sole_partition
        self._depth = depth

        self._ready: list[Piece] = []
        self._given: Piece | None = None  # the last one taken, to be compared after an interruption
        self._final: Piece | None = None  # waits for the proof of CLOSING
        self._held: _Held | None = None  # the last reply, whose end is not known yet
        self._bound = end  # CUTTING: where the held reply ends at the latest
        self._located = _Located()
        self._verified = 0  # VERIFYING: messages of the last piece seen again
        self._reason = ""  # CLOSING: why the range fails although nothing is lost

        self._leg_start = start  # where the last seek went, which is the group's confirmed position
        self._least_begin = start  # the next reply begins here or later …
        self._fresh = True  # … exactly here, when nothing was read or passed since the seek
        self._span = ENTRIES_PER_READ * UNIT  # what one fetch gets on with, as seen last

        self._generation = 0  # answers to fetches sent before the last seek are not looked at
        self._to_send: list[Command] = []
        self._unanswered: deque[tuple[int, Command]] = deque()
        self._state = State.OPENING
        self._seek(start, State.OPENING, roll_back=False)

    def __repr__(self) -> str:
        return f"<ExactRange {self.partition} [{self.start}, {self.end}) {self._state.name} at {self._least_begin}>"

    @property
    def done(self) -> bool:
        """Everything is given out and proven. The group stands at `start` then."""
        return self._state is State.DONE

    # The caller's side: what to send, what was answered, what came of it

    def commands(self) -> list[Command]:
        """What to send now, in this order; each is to be answered by one call of the methods below, in this order."""
        in_flight = sum(
            generation == self._generation and sent.action is Action.FETCH for generation, sent in self._unanswered
        )
        commands = self._to_send + [Command(Action.FETCH)] * (self._wanted_fetches() - in_flight)
        self._to_send = []
        self._unanswered.extend((self._generation, command) for command in commands)
        return commands

    def sought(self, curr_offset: int, max_offset: int) -> None:
        """The oldest unanswered command, a seek, put the cursor at `curr_offset`; the store ends at `max_offset`."""
        command = self._answered(Action.SEEK)
        if command is None:
            return
        if curr_offset > command.position:
            raise self._data_loss(self.start, curr_offset, f"retention removed [{self.start}, {curr_offset})")
        if curr_offset < command.position or max_offset < self.end:
            end = min(curr_offset, max_offset) if curr_offset < command.position else max_offset
            raise self._data_loss(self.end, end, f"the store lost its tail, [{end}, {self.end})")
        self._on(Event.SOUGHT)

    def fetched(self, begin: int, max_offset: int, messages: Sequence[StoredMessage]) -> None:
        """The oldest unanswered command, a fetch, read `messages` (maybe none) from `begin` on."""
        if self._answered(Action.FETCH) is None:
            return
        if begin < self._least_begin or (self._fresh and begin != self._least_begin):
            self._fail(f"a fetch began at {begin} where {self._least_begin} was due")
            return
        self._span = max(UNIT, begin - self._least_begin + UNIT * len(messages))
        self._least_begin = begin + UNIT * len(messages)  # each message has an entry of its own, at least
        self._fresh = False
        self._on(Event.FETCHED, _Held(begin, messages, max_offset))

    def not_found(self, kind: NotFound) -> None:
        """The oldest unanswered command, a fetch, found no message."""
        if self._answered(Action.FETCH) is None:
            return
        self._fresh = False
        self._on({NotFound.END: Event.ENDED, NotFound.PASSED: Event.PASSED, NotFound.WAIT: Event.WAITED}[kind])

    def rolled_back(self, curr_offset: int) -> None:
        """The oldest unanswered command, a roll-back, answered that the group stands at `curr_offset`."""
        command = self._answered(Action.ROLL_BACK)
        if command is None:
            return
        if curr_offset != command.position:
            self._fail(f"the group stood at {curr_offset} instead of {command.position}")
        else:
            self._on(Event.ROLLED_BACK)

    def interrupt(self) -> None:
        """Nothing sent so far will be answered, the connection is gone: begin anew behind what was given out, after
        making sure that the store still has just that there. A broker that crashed uses lost positions again."""
        self._unanswered.clear()
        self._held = self._final = None
        last = self._ready[-1] if self._ready else self._given
        if self._state is State.DONE:
            return
        if last is None:
            self._seek(self.start, State.OPENING, roll_back=False)
        else:
            self._given, self._verified = last, 0
            self._seek(last.begin, State.VERIFYING, roll_back=False)

    def take(self) -> list[Piece]:
        """The pieces that became complete since the last call, in order."""
        pieces, self._ready = self._ready, []
        if pieces:
            self._given = pieces[-1]
        return pieces

    # Sending

    def _seek(self, position: int, state: State, *, roll_back: bool = True) -> None:
        self._generation += 1
        self._to_send = [Command(Action.ROLL_BACK, self._leg_start)] if roll_back else []
        self._to_send.append(Command(Action.SEEK, position))
        self._leg_start = self._least_begin = position
        self._fresh = True
        self._state = state

    def _wanted_fetches(self) -> int:
        if self._state in (State.CLOSING, State.DONE):
            return 0
        if self._state not in (State.OPENING, State.READING):
            return 1
        return max(1, min(self._depth, -(-(self.end - self._least_begin) // self._span)))

    def _answered(self, action: Action) -> Command | None:
        """The command that was answered, None when its answer does not matter any more."""
        if not self._unanswered or self._unanswered[0][1].action is not action:
            raise ProtocolError(f"{self!r} heard of a {action.name} that was not its turn")
        generation, command = self._unanswered.popleft()
        return command if generation == self._generation else None

    def _on(self, event: Event, reply: _Held | None = None) -> None:
        handler = _HANDLERS.get((self._state, event))
        if handler is None:
            raise ProtocolError(f"{self!r} cannot deal with {event.name}")
        handler(self, reply or _NOTHING)

    # READING: hold each reply until the next one tells where it ended

    def _read_on(self, _: _Held) -> None:
        self._state = State.READING

    def _read(self, reply: _Held) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            if reply.begin > self.end:
                self._cut(held, reply.begin)
                return
            self._complete(held.messages, held.begin, reply.begin, last=reply.begin == self.end)
        elif reply.begin >= self.end:
            self._close(None)
        if self._state is State.READING and reply.messages:
            self._held = reply
            if self._sole and self._least_begin == self.end == reply.max_offset:
                self._read_to_end(reply)

    def _read_to_end(self, _: _Held) -> None:
        """The cursor is at the end of the store, which lies at `end` or behind it."""
        held, self._held = self._held, None
        if held is None:
            self._close(None)
        else:
            self._cut(held, held.max_offset)

    def _cut(self, held: _Held, upto: int) -> None:
        """`held` is the last reply; it ends at `upto` or before, and may reach over `end`."""
        if min(upto, held.max_offset) <= self.end:
            self._complete(held.messages, held.begin, self.end, last=True)
        elif self._sole and len(held.messages) * UNIT == upto - held.begin:
            inside = (self.end - held.begin) // UNIT
            self._complete(held.messages[:inside], held.begin, self.end, last=True)
        else:
            self._held, self._bound = held, min(upto, held.max_offset)
            self._seek(self.end, State.CUTTING)

    # CUTTING: the first message at `end` is the first one of the held reply that does not belong

    def _cut_at(self, fence: _Held) -> None:
        assert self._held is not None
        if fence.messages or fence.begin >= self._bound:
            inside = _find(self._held.messages, fence.messages[0]) if fence.messages else len(self._held.messages)
            held, self._held = self._held, None
            self._complete(held.messages[:inside], held.begin, self.end, last=True)

    def _keep_all(self, _: _Held) -> None:
        assert self._held is not None
        held, self._held = self._held, None
        self._complete(held.messages, held.begin, self.end, last=True)

    # Completing pieces; LOCATING finds the entries without a message

    def _complete(self, messages: Sequence[StoredMessage], begin: int, upto: int, *, last: bool) -> None:
        if len(messages) * UNIT > upto - begin:
            self._fail(f"{len(messages)} messages came from the {(upto - begin) // UNIT} entries at {begin}")
        elif not self._sole:
            self._give(Piece(messages, None, begin, upto), last=last)
        elif len(messages) * UNIT == upto - begin:
            self._give(Piece(messages, range(begin, upto, UNIT), begin, upto), last=last)
        else:
            self._located = _Located(messages, begin, upto, last)
            self._locate_next()

    def _locate_next(self) -> None:
        located = self._located
        probe = located.next_probe()
        if probe is not None:
            self._seek(probe, State.LOCATING)
            return
        self._give(Piece(located.messages, located.positions, located.begin, located.upto), last=located.last)
        if not located.last:
            self._seek(located.upto, State.OPENING)

    def _locate(self, reply: _Held) -> None:
        if reply.messages or reply.begin >= self._located.upto:
            self._located.found(reply.messages[0] if reply.messages else None)
            self._locate_next()

    def _locate_none(self, _: _Held) -> None:
        self._located.found(None)
        self._locate_next()

    def _give(self, piece: Piece, *, last: bool) -> None:
        if last:
            self._close(piece)
        else:
            self._state = State.READING
            if piece.messages:
                self._ready.append(piece)

    # VERIFYING: the last piece given out must still be there

    def _verify(self, reply: _Held) -> None:
        assert self._given is not None
        given = self._given
        known = given.messages[self._verified :]
        for expected, found in zip(known, reply.messages):
            if _key(expected) != _key(found):
                self._refuse_reuse()
        self._verified += min(len(known), len(reply.messages))
        if self._verified == len(given.messages):
            self._seek(given.upto, State.OPENING)
        elif reply.begin >= given.upto:
            self._refuse_reuse()

    def _refuse_reuse(self, _: object = None) -> None:
        assert self._given is not None
        begin, upto = self._given.begin, self._given.upto
        raise self._data_loss(
            upto, begin, f"the store lost what was read behind {begin} and uses the positions for other messages"
        )

    # CLOSING: nothing of the range may have gone while it was read

    def _close(self, final: Piece | None) -> None:
        self._final = final
        self._seek(self.start, State.CLOSING)

    def _closed(self, _: _Held) -> None:
        if self._reason:
            raise PositionMovedError(
                f"{self.partition}: the group's position was moved while [{self.start}, {self.end}) was read "
                f"({self._reason}); was it reset by an administrator, or dropped as idle? Run the batch again"
            )
        if self._final is not None and self._final.messages:
            self._ready.append(self._final)
        self._state = State.DONE

    def _fail(self, reason: str) -> None:
        """Something moved the cursor: one more seek finds out whether retention did, and how much is lost."""
        self._reason = reason
        self._seek(self.start, State.CLOSING, roll_back=False)

    def _data_loss(self, asked: int, offered: int, what: str) -> DataLossError:
        return DataLossError(
            f"{self.partition}: messages of [{self.start}, {self.end}) are gone: {what}. "
            "Start anew with another checkpoint and startingOffsets once you know why",
            topic=self.partition.topic,
            broker_id=self.partition.broker_id,
            partition=self.partition.partition_id,
            asked=asked,
            offered=offered,
        )

    def _ignore(self, _: _Held) -> None:
        """The answer tells nothing new."""


_HANDLERS: Mapping[tuple[State, Event], Callable[[ExactRange, _Held], None]] = {
    (State.OPENING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.OPENING, Event.SOUGHT): ExactRange._read_on,
    (State.READING, Event.FETCHED): ExactRange._read,
    (State.READING, Event.PASSED): ExactRange._ignore,
    (State.READING, Event.WAITED): ExactRange._ignore,
    (State.READING, Event.ENDED): ExactRange._read_to_end,
    (State.CUTTING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.CUTTING, Event.SOUGHT): ExactRange._ignore,
    (State.CUTTING, Event.FETCHED): ExactRange._cut_at,
    (State.CUTTING, Event.PASSED): ExactRange._ignore,
    (State.CUTTING, Event.WAITED): ExactRange._ignore,
    (State.CUTTING, Event.ENDED): ExactRange._keep_all,
    (State.LOCATING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.LOCATING, Event.SOUGHT): ExactRange._ignore,
    (State.LOCATING, Event.FETCHED): ExactRange._locate,
    (State.LOCATING, Event.PASSED): ExactRange._ignore,
    (State.LOCATING, Event.WAITED): ExactRange._ignore,
    (State.LOCATING, Event.ENDED): ExactRange._locate_none,
    (State.VERIFYING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.VERIFYING, Event.SOUGHT): ExactRange._ignore,
    (State.VERIFYING, Event.FETCHED): ExactRange._verify,
    (State.VERIFYING, Event.PASSED): ExactRange._ignore,
    (State.VERIFYING, Event.WAITED): ExactRange._ignore,
    (State.VERIFYING, Event.ENDED): ExactRange._refuse_reuse,
    (State.CLOSING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.CLOSING, Event.SOUGHT): ExactRange._closed,
}
