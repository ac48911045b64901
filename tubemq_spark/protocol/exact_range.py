# SPDX-License-Identifier: Apache-2.0
"""Reads exactly the messages of one partition in [start, end), the same ones at every retry.

The broker makes this hard. A fetch names no position, messages carry none, and the broker keeps the read cursor. A
reply says only where its read *began*. These rules hold (wire: BrokerServiceServer, DefaultOffsetManager, MsgFileStore,
MsgMemStore):

* A seek (the same client registers at a position) sets the cursor, as often as needed. Its reply has the cursor's real
  position and the end of the store. The broker handles the requests of one connection in order.
* Fetches in manual mode move the cursor and confirm nothing. A reply covers [its begin, the next reply's begin). It may
  be small, or empty in the middle of data. A 404 may have moved the cursor, too.
* The broker may take a reply's `maxOffset` before it reads the messages. It limits the earlier replies, not this one.
* A roll-back (a commit with nothing consumed) returns the confirmed position. That is still the position of the last
  seek, unless something moved the group: retention, the removal of an idle group, or an administrator.

So the reader holds each reply until the next one shows where it ended. A reply that crosses `end` is cut: after a seek
to `end`, the first message found is also the first message of the held reply that does not belong to the range. Before
each new seek a roll-back proves that nothing moved the cursor since the last one. The reader closes with a seek to
`start`: the reply is `start` only if retention removed nothing of the range meanwhile.

A broken connection leaves no such proof, and a broker that crashed uses lost positions again. So the reader then reads
the range again from its start, compares the messages with the delivered ones, and leaves these out.

If a store has one partition, every index entry is a message of it, and positions follow by counting, except for entries
that gave no message. The broker leaves out a message that is too long for its reader of memory (MsgMemStore) and does
not report it. So the reader reads such entries once more when they are in files. An entry that gives no message then
never will. `GapSearch` finds these by bisection, with about twelve seeks each. A store that got partitions after the
range was planned has a gap behind nearly every message. So after `MAX_EMPTY_ENTRIES` entries without a message the rest
of the range has no positions. Whether a message has one depends on the store and the range, not on how it was fetched.

`range_state.STEPS` has all changes of state; the methods here name the step.

The reader cannot detect three things: that a group is moved away and back to the last seek's position between two
requests; if several partitions share the store or a filter is set, that a message was too long to be read from memory;
and that retention removed messages' data files before their index (MsgFileStore skips such entries), which
`client.consumer.retention_check` finds out afterwards. `unproven_from` tells it where to look. If the message at `end`
was removed, a cut reply may have messages behind `end`. So the caller keeps what came from `cut_from` on until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch, StoredMessage, index_of, key_of
from tubemq_spark.protocol.gap_search import GapSearch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import (
    AT_END,
    NOTHING,
    STEPS,
    Action,
    Command,
    CommandQueue,
    EntryCount,
    Event,
    RangeEnd,
    RangeState,
    ReadCursor,
    Reply,
    Step,
    Transition,
)


class ExactRange:
    """The messages of `partition` in [start, end), without I/O: returns the commands to send, receives the replies.

    `owns_store` is True if no other partition shares the store and no filter is set. With `stops_at_gap` such a range
    ends before the reply that lacks a message, so that the caller can find out whether retention removed it. At most
    `depth` fetches whose replies matter are in flight.

    Raise `DataLossError` if the store lost a part of the range, `PositionMovedError` if something moved the cursor, and
    `ProtocolError` for replies that no broker sends. The caller must then discard the batches it got.
    """

    def __init__(
        self,
        partition: Partition,
        start: int,
        end: int,
        *,
        owns_store: bool,
        stops_at_gap: bool = False,
        depth: int = 4,
    ) -> None:
        if not (0 <= start < end and start % UNIT == 0 and end % UNIT == 0):
            raise ValueError(f"[{start}, {end}) of {partition} is not a range of index positions")
        self.partition = partition
        self.start = start
        self.end = end
        self._depth = depth
        self._queue = CommandQueue()
        self._cursor = ReadCursor(owns_store, start)
        self.owns_store = owns_store
        self.ends_at_gap = False  # the files lack a message at `end` or behind it
        self.cut_from: int | None = None  # the begin of a reply that a fetch at `end` cut: right if nothing is removed
        self._stops_at_gap = stops_at_gap and owns_store
        self._entries = EntryCount(owns_store)
        self.delivered = DeliveredLog()
        self._ready: list[FetchedBatch] = []
        self._held: Reply | None = None  # the last reply: its end is not known yet
        self._search: GapSearch  # LOCATING
        self._outcome = RangeEnd()
        self._state = RangeState.OPENING
        self._seek(Step.RESTART, start)

    def __repr__(self) -> str:
        where = f"{self._state.name} at {self._cursor.least_begin}"
        return f"<ExactRange {self.partition} [{self.start}, {self.end}) {where}>"

    @property
    def done(self) -> bool:
        """True when all batches are ready and proven. The group is then at `start`."""
        return self._state is RangeState.DONE

    @property
    def may_repeat(self) -> bool:
        """True if something moved the cursor, so that batches of a shared store, where messages have no positions, may
        repeat messages. A broker that removes index files moves a cursor too little (wire: DefaultOffsetManager)."""
        return self._outcome.error is not None and not self.owns_store

    @property
    def unproven_from(self) -> int | None:
        """The position from which on retention may have removed messages before they were read: the first entry that
        gave no message, or a cut reply, or the start if others share the store. None if each entry of the range gave
        its message."""
        if not self.owns_store:
            return self.start
        suspects = [at for at in (self._entries.first_empty, self.cut_from) if at is not None]
        return min(suspects, default=None)

    @property
    def waits_for_flush(self) -> tuple[int, int] | None:
        """The entries [begin, end) that must be in files before the reading continues, None without any."""
        return self._entries.unflushed if self._state is RangeState.FLUSHING else None

    # The caller's side: commands to send, replies, complete batches

    def commands(self) -> list[Command]:
        """Return the commands to send now. Each reply must be passed to one of the methods below, in the same order."""
        return self._queue.next_commands(self._wanted_fetches())

    def on_seek(self, curr_offset: int, max_offset: int) -> None:
        """A seek set the cursor to `curr_offset`; the store ends at `max_offset`."""
        if (command := self._answered(Action.SEEK)) is None:
            return
        if curr_offset > command.position:
            end = min(curr_offset, self.end)
            what = f"retention removed [{self.start}, {end}), the store begins at {curr_offset}"
            raise self._data_loss(self.start, curr_offset, what)
        if curr_offset < command.position or max_offset < self.end:
            end = min(curr_offset, max_offset) if curr_offset < command.position else max_offset
            raise self._data_loss(self.end, end, f"the store lost its tail, [{end}, {self.end})")
        self._cursor.store_end = max_offset
        self._on(Event.SOUGHT, Reply(curr_offset, (), max_offset))

    def on_flushed_end(self, position: int) -> None:
        """The files end at `position`. If that is too early, the next command asks again; the caller waits first."""
        if self._answered(Action.FIND_FLUSHED_END) is None:
            return
        begin, end = self._entries.unflushed
        if position >= end:
            self._entries.flushed_end = position
            self._seek(Step.FLUSHED, begin)
        else:
            # The seek finds out if the store has lost these entries meanwhile.
            self._queue.plan([Command(Action.SEEK, begin), Command(Action.FIND_FLUSHED_END, begin)])

    def on_fetch(self, begin: int, max_offset: int, messages: Sequence[StoredMessage]) -> None:
        """A fetch read `messages`, maybe none, from `begin` on."""
        if self._answered(Action.FETCH) is None:
            return
        if begin % UNIT:
            raise ProtocolError(f"{self!r}: a fetch began at {begin}, which is not an index position")
        if not self._cursor.can_begin_at(begin):
            self._fail(f"a fetch began at {begin}, but the one before it ended at {self._cursor.least_begin}")
            return
        self._cursor.fetched(begin, len(messages))
        self._on(Event.FETCHED, Reply(begin, messages, max_offset))

    def on_not_found(self, kind: NotFound) -> None:
        """A fetch found no message."""
        if self._answered(Action.FETCH) is None:
            return
        if kind is NotFound.PASSED:
            self._cursor.passed()
        if kind is NotFound.END and self._cursor.was_moved and not self.owns_store:
            self._fail(f"the store has entries behind {self._cursor.sought}, and the next fetch was at its end")
        elif kind is NotFound.END or self._cursor.passed_the_end:
            self._on(Event.ENDED, AT_END)
        else:
            self._on(Event.PASSED if kind is NotFound.PASSED else Event.WAITED)

    def on_roll_back(self, curr_offset: int) -> None:
        """A roll-back returned that the group is at `curr_offset`."""
        if (command := self._answered(Action.ROLL_BACK)) is None:
            return
        if curr_offset != command.position:
            self._fail(f"the group was at {curr_offset} instead of {command.position}")
        else:
            self._on(Event.ROLLED_BACK)

    def on_disconnect(self) -> None:
        """The connection is closed: read the range again, and continue behind the delivered messages if still there."""
        self._queue.disconnect()
        if self._state is not RangeState.DONE:
            self._restart()

    def read_again(self) -> None:
        """The range is done: read it once more, and raise `PositionMovedError` if it has other messages."""
        self.delivered.is_whole = True
        self._restart()

    def end_early(self) -> None:
        """Let the range end behind the last batch that was delivered, if it is being read and has one."""
        last = self.delivered.last
        if self._state is RangeState.READING and last is not None and self.delivered.awaited is None:
            self.end = last.end
            self._held = None
            self._close()

    def take_batches(self) -> list[FetchedBatch]:
        """Return the batches that became complete since the last call, in order."""
        batches, self._ready = self._ready, []
        return batches

    def _restart(self) -> None:
        self._held, self._outcome, self.cut_from = None, RangeEnd(), None
        self._entries.restart()
        self.delivered.restart()
        self._seek(Step.RESTART, self.start)

    # Sending

    def _go(self, step: Step) -> Transition:
        """Enter the state that `STEPS` says."""
        transition = STEPS[step]
        assert self._state in transition.before, (self, step)
        self._state = transition.after
        return transition

    def _seek(self, step: Step, position: int) -> None:
        """Take the step, and let the cursor go to `position`."""
        to = self._go(step)
        proof = [Command(Action.ROLL_BACK, self._cursor.sought)] * to.has_proof
        action = Action.FIND_FLUSHED_END if to.after is RangeState.FLUSHING else Action.SEEK
        self._queue.plan([*proof, Command(action, position)])
        self._cursor.seek(position)

    def _wanted_fetches(self) -> int:
        if self._state in (RangeState.FLUSHING, RangeState.CLOSING, RangeState.DONE):
            return 0
        if self._state not in (RangeState.OPENING, RangeState.READING):
            return 1
        return min(self._depth, self._cursor.fetches_to(self.end))

    def _answered(self, action: Action) -> Command | None:
        """Return the oldest unanswered command, None if its reply does not matter any more."""
        if self._queue.awaited is not action:
            raise ProtocolError(f"{self!r}: the reply to {action.name} came out of turn")
        return self._queue.answered()

    def _on(self, event: Event, reply: Reply = NOTHING) -> None:
        if (handler := _HANDLERS.get((self._state, event))) is None:
            raise ProtocolError(f"{self!r}: {event.name} cannot happen now")
        handler(self, reply)

    # READING: hold each reply until the next one shows where it ended

    def _opened(self, _: Reply) -> None:
        self._go(Step.OPENED)
        self._deliver_proven()

    def _read(self, reply: Reply) -> None:
        held, self._held = self._held, None
        if held is not None and held.begin == reply.begin:
            held = None  # that fetch read nothing at all
        if held is not None and reply.begin > self.end:
            self._cut(held._replace(bound=reply.begin))
        elif held is not None:
            self._complete(held.messages, held.begin, reply.begin)
        elif reply is AT_END and not self._cursor.has_passed:  # nothing says why no entry gave a message
            self._complete((), self._cursor.sought, self.end)
        elif reply.begin >= self.end:
            self._close()
        if self._state is RangeState.READING and (reply.messages or self.owns_store):  # all its entries must count
            self._held = reply
            if self._entries.has_positions and self._cursor.least_begin == reply.max_offset >= self.end:
                self._read(AT_END)  # this is certain, so the reader does not wait for a 404

    def _cut(self, held: Reply) -> None:
        """`held` is the last reply, and may cross `end`."""
        inside = held.messages[: (self.end - held.begin) // UNIT]
        counted = held.begin + len(held.messages) * UNIT  # where it ends if each entry gave one of its messages
        has_positions = self._entries.has_positions
        limit = counted if has_positions else self.end
        if has_positions and held.bound == counted:
            self._complete(inside, held.begin, self.end)
        elif held.bound == AT_END.begin and held.max_offset == limit == max(counted, self.end):
            self._outcome.assumed = held, limit
            self._complete(inside, held.begin, self.end)
        else:
            self._cut_by_fetch(held)

    # CUTTING: the first message at `end` is the first message of the held reply that does not belong to the range

    def _cut_by_fetch(self, held: Reply) -> None:
        self._held, self.cut_from = held, held.begin
        self._seek(Step.CUT, self.end)

    def _cut_at(self, found: Reply) -> None:
        assert self._held is not None
        begin, messages, _, bound = self._held
        end, entries = self._held.covered_to(self.end), self._entries
        if found.messages:
            cut = index_of(found.messages[0], messages)
            if not self.owns_store or cut < len(messages) or end <= entries.flushed_end:
                self._complete(messages[:cut], begin, self.end)
            elif len(messages) == (self.end - begin) // UNIT:
                # The first message at `end` may have been too long for the first reading, which then has later ones.
                self._seek(Step.COUNT, self.end - UNIT)
            else:  # the first reading may have left out this message
                self._await_flush(begin, end)
        elif found.begin >= bound:
            self._complete(messages, begin, self.end)

    def _count(self, found: Reply) -> None:
        """As many messages as entries are complete if the last message is at the last entry."""
        assert self._held is not None
        begin, messages, *_ = self._held
        if found.messages and key_of(found.messages[0]) == key_of(messages[-1]):
            self._complete(messages, begin, self.end)
        elif found.messages or found.begin >= self.end:
            self._await_flush(begin, self._held.covered_to(self.end))

    # Complete batches; FLUSHING waits for entries that gave no message, LOCATING finds those that have none

    def _complete(self, messages: Sequence[StoredMessage], begin: int, end: int) -> None:
        """`messages` are all messages of [begin, end). They are the last ones if `end` is the end of the range."""
        entries = (end - begin) // UNIT
        if len(messages) > entries:
            self._fail(f"{len(messages)} messages came from the {entries} entries at {begin}")
        elif self.owns_store and len(messages) < entries and end > self._entries.flushed_end:
            self._await_flush(begin, end)
        elif self._stops_at_gap and len(messages) < entries and not (self.delivered.awaited or self.delivered.is_whole):
            self.end, self.ends_at_gap, self.cut_from = begin, True, None
            self._close()
        elif not messages:
            self._entries.add_empty(entries, begin)
            if end == self.end:
                self._close()
        elif self._entries.has_positions and len(messages) < entries:
            self._search = GapSearch(messages, begin, end, self._entries.most_empty)
            self._search_on()
        else:
            positions = range(begin, end, UNIT) if self._entries.has_positions else None
            finish = self._close if end == self.end else self._deliver
            finish(FetchedBatch(messages, positions, begin, end))

    def _await_flush(self, begin: int, end: int) -> None:
        self._held, self._outcome, self.cut_from = None, RangeEnd(), None
        self._entries.unflushed = begin, end
        self._seek(Step.FLUSH, begin)

    def _search_on(self) -> None:
        search = self._search
        if (probe := search.next_probe()) is not None:
            self._seek(Step.LOCATE, probe)
            return
        known, bound = search.known, search.bound
        self._entries.add_empty(search.missing, search.first_missing)
        batches = [FetchedBatch(search.messages[:known], search.positions[:known], search.begin, bound)]
        if not self._entries.has_positions:
            batches.append(FetchedBatch(search.messages[known:], None, bound, search.end))
        if search.end == self.end:
            self._close(*batches)
        else:
            self._outcome.batches = tuple(batches)  # until the roll-back of this seek is answered
            self._seek(Step.LOCATED, search.end)

    def _located(self, reply: Reply) -> None:
        if not reply.messages and reply is not AT_END and not self._search.is_answered_by(reply.begin):
            return
        if self._search.found(reply.messages[0] if reply.messages else None):
            self._search_on()
        else:
            self._fail(f"the messages on one side of {self._cursor.sought} differ from those that were read")

    # Delivery; VERIFYING: a second reading differs from the first, is the last delivered message where it was?

    def _deliver(self, batch: FetchedBatch) -> None:
        try:
            self._ready += self.delivered.add(batch)
        except ValueError:
            self._on_difference()

    def _on_difference(self) -> None:
        if self.delivered.is_whole:
            self._fail("two readings differ, as they do after a late fetch of an earlier attempt")
        else:
            self._seek(Step.VERIFY, self.delivered.look_for_last())

    def _deliver_proven(self) -> None:
        state = self._state
        batches, self._outcome.batches = self._outcome.batches, ()
        for batch in batches:
            if self._state is state:  # the batch before it did not fail
                self._deliver(batch)

    def _verified(self, reply: Reply) -> None:
        is_there = self.delivered.still_has_last(reply.begin, reply.messages)
        if is_there:
            self._fail("the store has the delivered messages in another order or at other positions")
        elif is_there is False:
            begin, end = self.delivered.unmet
            what = f"the store lost what was read in [{begin}, {end}) and uses the positions for other messages"
            self._outcome.error = self._data_loss(end, begin, what)
            self._close()

    # CLOSING: nothing of the range was removed while it was read

    def _close(self, *batches: FetchedBatch) -> None:
        self._outcome.batches = batches
        self._seek(Step.CLOSE, self.start)

    def _closed(self, reply: Reply) -> None:
        if self._outcome.error is not None:
            raise self._outcome.error
        assumed, self._outcome.assumed = self._outcome.assumed, None
        if assumed is not None and assumed[1] != reply.max_offset:
            self._outcome.batches = ()
            self._cut_by_fetch(assumed[0])
            return
        self._go(Step.FINISH)
        self._deliver_proven()
        if self._state is RangeState.DONE and self.delivered.awaited is not None:
            self._on_difference()

    def _fail(self, reason: str) -> None:
        """Something moved the cursor. One more seek finds out whether retention did, and how much is lost."""
        self._outcome.error = PositionMovedError(
            f"{self.partition}: the group's position was moved while [{self.start}, {self.end}) was read: {reason}. "
            "An administrator may have reset it, or the cluster removed an idle group. Run the batch again"
        )
        self._seek(Step.FAIL, self.start)

    def _data_loss(self, asked: int, offered: int, what: str) -> DataLossError:
        text = f"{self.partition}: messages of the range [{self.start}, {self.end}) are lost: {what}"
        return loss_of(self.partition, text, asked=asked, offered=offered)

    def _ignore(self, _: Reply) -> None:
        """The reply says nothing new."""


# These states seek to one place and wait for the first fetch that says something.
_LOOKUPS: Mapping[RangeState, Callable[[ExactRange, Reply], None]] = {
    RangeState.CUTTING: ExactRange._cut_at,
    RangeState.COUNTING: ExactRange._count,
    RangeState.LOCATING: ExactRange._located,
    RangeState.VERIFYING: ExactRange._verified,
}
_IGNORED = (
    *((state, Event.ROLLED_BACK) for state in (RangeState.OPENING, RangeState.FLUSHING, RangeState.CLOSING, *_LOOKUPS)),
    *((state, Event.SOUGHT) for state in (RangeState.FLUSHING, *_LOOKUPS)),
    *((state, event) for state in (RangeState.READING, *_LOOKUPS) for event in (Event.PASSED, Event.WAITED)),
)
_HANDLERS: Mapping[tuple[RangeState, Event], Callable[[ExactRange, Reply], None]] = {
    **dict.fromkeys(_IGNORED, ExactRange._ignore),
    (RangeState.OPENING, Event.SOUGHT): ExactRange._opened,
    (RangeState.READING, Event.FETCHED): ExactRange._read,
    (RangeState.READING, Event.ENDED): ExactRange._read,
    **{(state, event): handler for state, handler in _LOOKUPS.items() for event in (Event.FETCHED, Event.ENDED)},
    (RangeState.CLOSING, Event.SOUGHT): ExactRange._closed,
}
