"""Reading exactly the messages of one partition in [start, end), the same ones every time.

The broker makes this hard: a fetch names no position, messages carry none, and the read cursor lives at the broker. A
reply tells only where its read *began*. What can be relied on (wire: BrokerServiceServer, DefaultOffsetManager,
MsgFileStore, MsgMemStore):

* A seek (a register of the same client at a position) places the cursor, any number of times; its answer tells where
  the cursor really is, and the store's end. Requests of one connection are handled in the order they were sent.
* Fetches in manual mode advance the cursor and confirm nothing. A reply covers [its begin, the next reply's begin).
  It may be small or empty in mid-data; a 404 may have moved the cursor too.
* A reply's `maxOffset` may have been taken before the messages: it bounds what was read before, not what came with it.
* A roll-back (a commit that consumed nothing) answers the confirmed position: still the last seek's, unless somebody or
  something (retention, an expired group, an administrator) moved the group under the reader.

So a reply is held until the next one tells where it ended. One that crosses `end` is cut: after a seek to `end`, the
first message found there is also the first in the held reply that does not belong. Every leg from one seek to the next
ends with a roll-back that proves nobody touched the cursor, and the reader closes with a seek to `start`, which answers
`start` only if retention has taken nothing of the range meanwhile.

A leg that a broken connection cut short has no such proof, and a broker that crashed uses lost positions again. So the
range is read once more from its start then: what was given out is compared with what is found, and left out.

In a store with one partition every index entry is a message of this partition and positions follow by counting, unless
the store holds entries that gave no message. A message that is too long for the broker's reader of its memory is left
out there (MsgMemStore), and no answer tells. So the entries are read once more when they are in files. What still gives
no message never will. Those gaps are found by bisection (`located`), which costs a dozen seeks each, and a store that
got partitions since the range was planned has one behind nearly every message. So behind `MAX_EMPTY_ENTRIES` entries
without a message the rest of a range has no positions. Whether a message has one depends on the store and the range
alone, never on how the range was fetched.

Three things show in no answer: that a group is moved away and back to where the last seek had put it between two
requests; that retention removed messages' data files before their index (MsgFileStore skips such entries); and, where
several partitions share a store or a filter is set, that a message was too long to be read from memory.

`ExactRange` knows no sockets: it says what to send and is told what was answered, in order.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError, TubeMQError
from tubemq_spark.protocol.constants import ENTRIES_PER_READ
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch, StoredMessage, index_of, key_of
from tubemq_spark.protocol.gap_search import GapSearch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.not_found import NotFound


class Action(Enum):
    SEEK = auto()  # register at `position`
    FIND_FLUSHED_END = auto()  # register at `position` to read files alone: the answer tells where they end
    FETCH = auto()  # get, in manual mode
    ROLL_BACK = auto()  # commit with lastPackConsumed=false


class Command(NamedTuple):
    action: Action
    position: int = -1


class State(Enum):
    OPENING = auto()  # sought the place to read from
    READING = auto()
    CUTTING = auto()  # looks for the first message at `end`, to cut the held reply there
    COUNTING = auto()  # looks whether the last message of the held reply stands at the last entry before `end`
    FLUSHING = auto()  # waits until entries that gave no message are in files
    LOCATING = auto()  # looks for entries that hold no message
    VERIFYING = auto()  # a second reading differs from the first: is what was given out last still in the store?
    CLOSING = auto()  # proves that the range was complete all the time
    DONE = auto()


class Event(Enum):
    SOUGHT = auto()
    FETCHED = auto()
    PASSED = auto()
    WAITED = auto()
    ENDED = auto()
    ROLLED_BACK = auto()


# A store has two memory blocks. Who passed the rest of a block twice has passed all that there was at the seek, which
# reaches to `end` at least; the third time is for a reset to the very same position in between. While other partitions
# fill the store there is no END to wait for.
_PASSES_TO_END = 3
_MANY = 30  # messages of a first reply that was most likely ended by its size: then more are behind it


MAX_EMPTY_ENTRIES = 16
"""Entries without a message in a range. Messages behind more of them have no position."""


class _Reply(NamedTuple):
    begin: int
    messages: Sequence[StoredMessage]
    max_offset: int


class _Doubt(NamedTuple):
    """The range was ended as if the store did so at `limit`; if it did not, `reply` must be cut after all."""

    reply: _Reply
    limit: int


_NOTHING = _Reply(-1, (), -1)
_AT_END = _Reply(sys.maxsize, (), -1)  # a 404 tells that the cursor is beyond all that is looked for, not where


class ExactRange:
    """The messages of `partition` in [start, end): says what to send, hears what was answered, gives out batches.

    `owns_store` tells whether the partition has its store for itself and no filter is set. At most `depth` fetches
    that still matter are unanswered at a time.

    Raises `DataLossError` when the store lost part of the range, `PositionMovedError` when the cursor was moved from
    outside, `ProtocolError` for answers that no broker gives; the batches already given out must not be used then.
    """

    def __init__(self, partition: Partition, start: int, end: int, *, owns_store: bool, depth: int = 4) -> None:
        if not (0 <= start < end and start % UNIT == 0 and end % UNIT == 0):
            raise ValueError(f"[{start}, {end}) of {partition} is no range of index positions")
        self.partition = partition
        self.start = start
        self.end = end
        self._sole = owns_store
        self._counts = owns_store  # whether positions follow by counting, so far
        self._depth = depth

        self._ready: list[FetchedBatch] = []
        self._given = DeliveredLog()
        self._held: _Reply | None = None  # the last reply, whose end is not known yet
        self._bound: int  # CUTTING: no message of the held reply stands here or behind
        self._located: GapSearch  # LOCATING
        self._ahead: int  # VERIFYING: messages up to the wanted one
        self._missing = 0  # entries without a message, up to where the reading has come
        self._files_end = -1  # what the present reading has met before this came from files
        self._flushing = (-1, -1)  # FLUSHING: the entries that must be in files
        self._unproven: tuple[FetchedBatch, ...] = ()  # wait for the proof of their leg
        self._doubt: _Doubt | None = None  # CLOSING: what must still prove true
        self._verdict: TubeMQError | None = None  # CLOSING: why the range fails, unless something worse comes up

        self._leg_start: int  # where the last seek went, which is the group's confirmed position
        self._least_begin: int  # the next reply begins here or later
        self._last_begin: int | None  # of the last reply since the seek
        self._fresh: bool  # nothing moved the cursor since the seek: the next reply begins just there
        self._passed: int  # how often a 404 moved the cursor since the seek
        self._span = ENTRIES_PER_READ * UNIT  # what one fetch gets on with, as seen last

        self._generation = 0  # counts the seeks: what came before the last one does not matter any more
        self._to_send: list[Command] = []
        self._unanswered: deque[tuple[int, Command]] = deque()
        self._seek(start, State.OPENING, roll_back=False)

    def __repr__(self) -> str:
        return f"<ExactRange {self.partition} [{self.start}, {self.end}) {self._state.name} at {self._least_begin}>"

    @property
    def done(self) -> bool:
        """Everything is given out and proven. The group stands at `start` then."""
        return self._state is State.DONE

    @property
    def waits_for_flush(self) -> tuple[int, int] | None:
        """The entries that must be in files before the reading goes on, as [begin, end), None without any."""
        return self._flushing if self._state is State.FLUSHING else None

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

    def on_seek(self, curr_offset: int, max_offset: int) -> None:
        """The oldest unanswered command, a seek, put the cursor at `curr_offset`; the store ends at `max_offset`."""
        command = self._answered(Action.SEEK)
        if command is None:
            return
        if curr_offset > command.position:
            gone = f"[{self.start}, {min(curr_offset, self.end)})"
            raise self._data_loss(
                self.start, curr_offset, f"retention removed {gone}, the store begins at {curr_offset}"
            )
        if curr_offset < command.position or max_offset < self.end:
            end = min(curr_offset, max_offset) if curr_offset < command.position else max_offset
            raise self._data_loss(self.end, end, f"the store lost its tail, [{end}, {self.end})")
        self._on(Event.SOUGHT, _Reply(curr_offset, (), max_offset))

    def on_flushed_end(self, position: int) -> None:
        """The oldest unanswered command asked where the files end: at `position`. While that is too early it is asked
        again, and the caller should wait before."""
        if self._answered(Action.FIND_FLUSHED_END) is None:
            return
        begin, end = self._flushing
        if position >= end:
            self._files_end = position
            self._seek(begin, State.OPENING, roll_back=False)
        else:
            self._to_send = [Command(Action.FIND_FLUSHED_END, begin)]

    def on_fetch(self, begin: int, max_offset: int, messages: Sequence[StoredMessage]) -> None:
        """The oldest unanswered command, a fetch, read `messages` (maybe none) from `begin` on."""
        if self._answered(Action.FETCH) is None:
            return
        if begin % UNIT:
            raise ProtocolError(f"{self!r}: a fetch began at {begin}, which is no index position")
        if begin < self._least_begin or (self._fresh and begin != self._least_begin):
            self._fail(f"a fetch began at {begin}, and the one before had come to {self._least_begin}")
            return
        self._fresh = False
        if self._sole or (self._last_begin is None and len(messages) >= _MANY):
            self._span = max(UNIT, begin - self._least_begin + UNIT * len(messages))
        elif self._last_begin is not None:  # others have entries too: a reply tells how far the one before it got on
            self._span = max(UNIT, begin - self._last_begin)
        self._last_begin = begin
        self._least_begin = begin + UNIT * len(messages)  # each message has an entry of its own, at least
        self._on(Event.FETCHED, _Reply(begin, messages, max_offset))

    def on_not_found(self, kind: NotFound) -> None:
        """The oldest unanswered command, a fetch, found no message."""
        if self._answered(Action.FETCH) is None:
            return
        if kind is NotFound.PASSED:
            self._passed += 1
            self._fresh = False
        if kind is NotFound.END or self._passed == _PASSES_TO_END:
            self._on(Event.ENDED, _AT_END)
        else:
            self._on(Event.PASSED if kind is NotFound.PASSED else Event.WAITED)

    def on_roll_back(self, curr_offset: int) -> None:
        """The oldest unanswered command, a roll-back, answered that the group stands at `curr_offset`."""
        command = self._answered(Action.ROLL_BACK)
        if command is None:
            return
        if curr_offset != command.position:
            self._fail(f"the group stood at {curr_offset} instead of {command.position}")
        else:
            self._on(Event.ROLLED_BACK)

    def on_disconnect(self) -> None:
        """Nothing sent so far will be answered, the connection is gone: read the range anew from its start, and go on
        behind what was given out if that is still what the store has."""
        self._unanswered.clear()
        if self._state is not State.DONE:
            self._held = self._doubt = self._verdict = None
            self._unproven = ()
            self._counts, self._missing, self._files_end = self._sole, 0, -1
            self._given.read_again()
            self._seek(self.start, State.OPENING, roll_back=False)

    def take_batches(self) -> list[FetchedBatch]:
        """The batches that became complete since the last call, in order."""
        batches, self._ready = self._ready, []
        return batches

    # Sending

    def _seek(self, position: int, state: State, *, roll_back: bool = True, action: Action = Action.SEEK) -> None:
        self._generation += 1
        self._to_send = [Command(Action.ROLL_BACK, self._leg_start)] if roll_back else []
        self._to_send.append(Command(action, position))
        self._leg_start = self._least_begin = position
        self._last_begin = None
        self._passed = 0
        self._fresh = True
        self._state = state

    def _wanted_fetches(self) -> int:
        if self._state in (State.FLUSHING, State.CLOSING, State.DONE):
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

    def _on(self, event: Event, reply: _Reply = _NOTHING) -> None:
        handler = _HANDLERS.get((self._state, event))
        if handler is None:
            raise ProtocolError(f"{self!r} cannot deal with {event.name}")
        handler(self, reply)

    # READING: hold each reply until the next one tells where it ended

    def _opened(self, _: _Reply) -> None:
        self._state = State.READING
        self._give_proven()

    def _give_proven(self) -> None:
        state = self._state
        batches, self._unproven = self._unproven, ()
        for batch in batches:
            if self._state is state:  # else one before it made trouble
                self._give(batch)

    def _read(self, reply: _Reply) -> None:
        held, self._held = self._held, None
        if held is not None and held.begin == reply.begin:
            held = None  # it read nothing at all
        if held is not None and reply.begin > self.end:
            self._cut(held, reply.begin)
        elif held is not None:
            self._complete(held.messages, held.begin, reply.begin)
        elif reply.begin >= self.end:
            self._close()
        if self._state is State.READING and (
            reply.messages or self._sole
        ):  # where all entries have to be accounted for
            self._held = reply
            if self._counts and self._least_begin == reply.max_offset >= self.end:
                self._read(_AT_END)  # surely, so there is no need to wait for a 404

    def _cut(self, held: _Reply, bound: int) -> None:
        """`held` is the last reply. It may reach over `end`, but not over `bound`."""
        inside = held.messages[: (self.end - held.begin) // UNIT]
        counted = held.begin + len(held.messages) * UNIT  # where it ends if each entry was one of its messages
        limit = counted if self._counts else self.end
        if self._counts and bound == counted:
            self._complete(inside, held.begin, self.end)
        elif bound == _AT_END.begin and held.max_offset == limit == max(counted, self.end):
            self._doubt = _Doubt(held, limit)
            self._complete(inside, held.begin, self.end)
        else:
            self._look_for_fence(held, bound)

    # CUTTING: the first message at `end` is the first one of the held reply that does not belong

    def _look_for_fence(self, held: _Reply, bound: int) -> None:
        self._held, self._bound = held, bound
        self._seek(self.end, State.CUTTING)

    def _cut_at(self, fence: _Reply) -> None:
        assert self._held is not None
        begin, messages, _ = self._held
        if fence.messages:
            cut = index_of(fence.messages[0], messages)
            if not self._sole or cut < len(messages) or self._last_entry() <= self._files_end:
                self._complete(messages[:cut], begin, self.end)
            elif len(messages) == (self.end - begin) // UNIT:
                # The first message at `end` may have been too long for the first reading, which then has later ones.
                self._seek(self.end - UNIT, State.COUNTING)
            else:  # the first reading may have left out the message that is there
                self._await_files(begin, self._last_entry())
        elif fence.begin >= self._bound:
            self._complete(messages, begin, self.end)

    def _last_entry(self) -> int:
        """Where the entries end that the held reply may have left out messages of."""
        return self.end if self._bound == _AT_END.begin else self._bound

    def _count(self, found: _Reply) -> None:
        """As many messages as entries are complete if the last one stands at the last entry."""
        assert self._held is not None
        begin, messages, _ = self._held
        if found.messages and key_of(found.messages[0]) == key_of(messages[-1]):
            self._complete(messages, begin, self.end)
        elif found.messages or found.begin >= self.end:
            self._await_files(begin, self._last_entry())

    # Completing batches; FLUSHING waits for entries that gave no message, LOCATING finds those that have none

    def _complete(self, messages: Sequence[StoredMessage], begin: int, end: int) -> None:
        """`messages` are all of [begin, end), the last ones if that is `end`."""
        entries = (end - begin) // UNIT
        if len(messages) > entries:
            self._fail(f"{len(messages)} messages came from the {entries} entries at {begin}")
        elif self._sole and len(messages) < entries and end > self._files_end:
            self._await_files(begin, end)
        elif not messages:
            self._miss(entries)
            if end == self.end:
                self._close()
        elif self._counts and len(messages) < entries:
            self._located = GapSearch(messages, begin, end, MAX_EMPTY_ENTRIES - self._missing)
            self._locate_next()
        else:
            batch = FetchedBatch(messages, range(begin, end, UNIT) if self._counts else None, begin, end)
            if end == self.end:
                self._close(batch)
            else:
                self._give(batch)

    def _miss(self, entries: int) -> None:
        self._missing += entries
        self._counts = self._counts and self._missing <= MAX_EMPTY_ENTRIES

    def _await_files(self, begin: int, end: int) -> None:
        self._held = self._doubt = None
        self._flushing = begin, end
        self._seek(begin, State.FLUSHING, action=Action.FIND_FLUSHED_END)

    def _locate_next(self) -> None:
        located = self._located
        probe = located.next_probe()
        if probe is not None:
            self._seek(probe, State.LOCATING)
            return
        self._miss(located.missing)
        known, bound = located.known, located.bound
        batches = [FetchedBatch(located.messages[:known], located.positions[:known], located.begin, bound)]
        if not self._counts:
            batches.append(FetchedBatch(located.messages[known:], None, bound, located.end))
        if located.end == self.end:
            self._close(*batches)
        else:
            self._unproven = tuple(batches)  # until the roll-back of this leg is answered
            self._seek(located.end, State.OPENING)

    def _locate(self, reply: _Reply) -> None:
        if not reply.messages and reply is not _AT_END and not self._located.is_answered_by(reply.begin):
            return
        if self._located.found(reply.messages[0] if reply.messages else None):
            self._locate_next()
        else:
            self._fail(f"other messages stand on one side of {self._leg_start} than were read")

    # VERIFYING: a second reading differs from the first: is what was given out last still where it was?

    def _give(self, batch: FetchedBatch) -> None:
        try:
            self._ready += self._given.add(batch)
        except ValueError:
            self._verify()

    def _verify(self) -> None:
        assert self._given.last is not None
        self._ahead = self._given.last.ordinal
        self._seek(self._given.last.begin, State.VERIFYING)

    def _look(self, reply: _Reply) -> None:
        last = self._given.last
        assert last is not None
        if len(reply.messages) >= self._ahead and key_of(reply.messages[self._ahead - 1]) == last.key:
            self._fail("what was given out is there, but not in the order or at the positions that it was given")
        elif len(reply.messages) < self._ahead and reply.begin < last.end:
            self._ahead -= len(reply.messages)
        else:
            assert self._given.awaited is not None
            lost = f"[{self._given.awaited.begin}, {last.end})"
            what = f"the store lost what was read in {lost} and uses the positions for other messages"
            self._verdict = self._data_loss(last.end, self._given.awaited.begin, what)
            self._close()

    # CLOSING: nothing of the range may have gone while it was read

    def _close(self, *final: FetchedBatch) -> None:
        self._unproven = final
        self._seek(self.start, State.CLOSING)

    def _closed(self, reply: _Reply) -> None:
        if self._verdict is not None:
            raise self._verdict
        doubt, self._doubt = self._doubt, None
        if doubt is not None and doubt.limit != reply.max_offset:
            self._unproven = ()
            self._look_for_fence(doubt.reply, _AT_END.begin)
            return
        self._state = State.DONE
        self._give_proven()
        if self._given.awaited is not None and self._state is State.DONE:
            self._verify()

    def _fail(self, reason: str) -> None:
        """Something moved the cursor: one more seek finds out whether retention did, and how much is lost."""
        self._verdict = PositionMovedError(
            f"{self.partition}: the group's position was moved while [{self.start}, {self.end}) was read "
            f"({reason}); was it reset by an administrator, or dropped as idle? Run the batch again"
        )
        self._seek(self.start, State.CLOSING, roll_back=False)

    def _data_loss(self, asked: int, offered: int, what: str) -> DataLossError:
        return DataLossError(
            f"{self.partition}: messages that were to be read, in [{self.start}, {self.end}), are gone: {what}",
            topic=self.partition.topic,
            broker_id=self.partition.broker_id,
            partition=self.partition.partition_id,
            asked=asked,
            offered=offered,
        )

    def _ignore(self, _: _Reply) -> None:
        """The answer tells nothing new."""


_HANDLERS: Mapping[tuple[State, Event], Callable[[ExactRange, _Reply], None]] = {
    (State.OPENING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.OPENING, Event.SOUGHT): ExactRange._opened,
    (State.READING, Event.FETCHED): ExactRange._read,
    (State.READING, Event.PASSED): ExactRange._ignore,
    (State.READING, Event.WAITED): ExactRange._ignore,
    (State.READING, Event.ENDED): ExactRange._read,
    (State.CUTTING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.CUTTING, Event.SOUGHT): ExactRange._ignore,
    (State.CUTTING, Event.FETCHED): ExactRange._cut_at,
    (State.CUTTING, Event.PASSED): ExactRange._ignore,
    (State.CUTTING, Event.WAITED): ExactRange._ignore,
    (State.CUTTING, Event.ENDED): ExactRange._cut_at,
    (State.COUNTING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.COUNTING, Event.SOUGHT): ExactRange._ignore,
    (State.COUNTING, Event.FETCHED): ExactRange._count,
    (State.COUNTING, Event.PASSED): ExactRange._ignore,
    (State.COUNTING, Event.WAITED): ExactRange._ignore,
    (State.COUNTING, Event.ENDED): ExactRange._count,
    (State.FLUSHING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.LOCATING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.LOCATING, Event.SOUGHT): ExactRange._ignore,
    (State.LOCATING, Event.FETCHED): ExactRange._locate,
    (State.LOCATING, Event.PASSED): ExactRange._ignore,
    (State.LOCATING, Event.WAITED): ExactRange._ignore,
    (State.LOCATING, Event.ENDED): ExactRange._locate,
    (State.VERIFYING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.VERIFYING, Event.SOUGHT): ExactRange._ignore,
    (State.VERIFYING, Event.FETCHED): ExactRange._look,
    (State.VERIFYING, Event.PASSED): ExactRange._ignore,
    (State.VERIFYING, Event.WAITED): ExactRange._ignore,
    (State.VERIFYING, Event.ENDED): ExactRange._look,
    (State.CLOSING, Event.ROLLED_BACK): ExactRange._ignore,
    (State.CLOSING, Event.SOUGHT): ExactRange._closed,
}
