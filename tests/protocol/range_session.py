# SPDX-License-Identifier: Apache-2.0
"""A session of an `ExactRange` with a simulated store, and sessions in the states that tests begin with."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from tests.protocol.simulated_store import UNIT, Fetched, FilesEnd, Limits, Message, SimulatedStore, Sought
from tubemq_spark.errors import PositionMovedError
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES, Action, Command, RangeState

OURS = 7
PARTITION = Partition(3, "demo", OURS)
MOST_STEPS = 3000

Row = tuple[int | None, Message]
Answer = Sought | FilesEnd | Fetched | NotFound | int


@dataclass
class Session:
    """A reader of a range, a simulated broker, and the connection between them."""

    store: SimulatedStore
    start: int
    end: int
    owns_store: bool = False
    depth: int = 4
    seed: int = 0
    flushes: bool = True  # the store flushes at every third question for the end of its files

    asked: int = 0
    reader: ExactRange = field(init=False)
    requests: deque[Command] = field(default_factory=deque)
    replies: deque[tuple[Command, Answer]] = field(default_factory=deque)
    batches: list[FetchedBatch] = field(default_factory=list)
    truth: list[tuple[int, Message]] = field(default_factory=list)
    group: int = -1
    steps: int = 0

    def __post_init__(self) -> None:
        self.reader = ExactRange(PARTITION, self.start, self.end, owns_store=self.owns_store, depth=self.depth)
        self._random = random.Random(self.seed)

    def step(self) -> None:
        """Send the reader's commands, let the broker handle one request, or let the reader receive one reply."""
        self.steps += 1
        assert self.steps < MOST_STEPS, f"{self.reader!r} does not end"
        possible: list[Callable[[], None]] = [self.send]
        possible += [self.handle] * bool(self.requests)
        possible += [self.receive] * bool(self.replies)
        self._random.choice(possible)()

    def send(self) -> None:
        self.requests += self.reader.commands()
        unanswered = [*self.requests, *(command for command, _ in self.replies)]
        # One more than `depth`, because replies to fetches before the last seek do not matter any more.
        assert sum(command.action is Action.FETCH for command in unanswered) <= self.depth + 1

    def handle(self) -> None:
        command = self.requests.popleft()
        self.replies.append((command, self._handled(command)))

    def _handled(self, command: Command) -> Answer:
        match command.action:
            case Action.SEEK:
                sought = self.store.seek(command.position)
                if command.position == self.start:
                    self.truth = self.store.readable(OURS, self.start, self.end)
                self.group = sought.curr_offset
                return sought
            case Action.FIND_FLUSHED_END:
                self.asked += 1
                if self.asked % 3 == 0 and self.flushes:
                    self.store.swap_blocks()
                    self.store.flush()
                return self.store.ask_files(command.position)
            case Action.ROLL_BACK:
                return self.store.roll_back()
            case Action.FETCH:
                return self.store.fetch(OURS)

    def receive(self) -> None:
        _, answer = self.replies.popleft()
        match answer:
            case Sought(curr_offset, max_offset):
                self.reader.on_seek(curr_offset, max_offset)
            case FilesEnd(position):
                self.reader.on_flushed_end(position)
            case Fetched(begin, max_offset, messages):
                self.reader.on_fetch(begin, max_offset, messages)
            case NotFound():
                self.reader.on_not_found(answer)
            case int():
                self.reader.on_roll_back(answer)
        if self._random.random() < 0.5:
            self.take()

    @property
    def state(self) -> RangeState:
        return next(state for state in RangeState if f" {state.name} at " in repr(self.reader))

    def take(self) -> None:
        self.batches += self.reader.take_batches()

    def exchange(self) -> list[Command]:
        """Make one round trip of all commands, and return them."""
        self.send()
        sent = list(self.requests)
        while self.requests:
            self.handle()
        while self.replies:
            self.receive()
        self.take()
        return sent

    def disconnect(self) -> None:
        """Close the connection. The broker handled some of the requests; all replies are lost."""
        for _ in range(self._random.randint(0, len(self.requests))):
            self.handle()
        self.requests.clear()
        self.replies.clear()
        self.reader.on_disconnect()

    def crash(self, keep: int, confirmed: int) -> None:
        """Crash the broker. The reader receives some replies that were already sent; all others are lost."""
        for _ in range(self._random.randint(0, len(self.replies))):
            self.receive()
        self.requests.clear()
        self.replies.clear()
        self.store.crash(keep, confirmed)
        self.reader.on_disconnect()

    def run(self) -> list[Row]:
        while not self.reader.done:
            self.step()
        self.take()
        return self.rows

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for batch in self.batches:
            positions = [None] * len(batch.messages) if batch.positions is None else batch.positions
            rows += zip(positions, cast(Sequence[Message], batch.messages), strict=True)
        return rows

    def _has_position(self, position: int, number: int) -> bool:
        return self.owns_store and (position - self.start) // UNIT - number <= MAX_EMPTY_ENTRIES

    @property
    def expected(self) -> list[Row]:
        return [
            (position if self._has_position(position, number) else None, message)
            for number, (position, message) in enumerate(self.truth)
        ]


def commands_of(session: Session) -> list[list[str]]:
    """Return the commands of each round trip until the range is done."""
    sent = []
    while not session.reader.done:
        commands = session.exchange()
        sent.append([c.action.name + f" {c.position // UNIT}" * (c.action is Action.SEEK) for c in commands])
    return sent


def store_of(*partitions: int, limits: Limits | None = None, flushed: bool = True) -> SimulatedStore:
    store = SimulatedStore(limits or Limits())
    store.append(*partitions)
    if flushed:
        store.swap_blocks()
        store.flush()
    return store


def long_session(*, depth: int = 1) -> Session:
    """Return a session of [4, 20) in a shared store of 30 entries, two of three ours, up to 4 entries in a fetch."""
    return Session(store_of(*[OURS, OURS, 8] * 10, limits=Limits(file_entries=4)), 4 * UNIT, 20 * UNIT, depth=depth)


def searching_gaps() -> Session:
    """Return a session that searches gaps. The broker handles a fetch next. Entries of others follow in memory."""
    store = store_of(OURS, OURS)
    store.append(OURS, unreadable=True)
    store.append(*[OURS] * 4)
    store.swap_blocks()
    store.flush()
    store.append(8, 8, 8)
    session = Session(store, 0, 7 * UNIT, owns_store=True)
    while not store.sought_at or session.requests[0].action is not Action.FETCH:
        session.step()
    assert session.state is RangeState.LOCATING
    return session


def how_it_ends(session: Session) -> str:
    """Return `moved` for a `PositionMovedError`, `done` for the right rows."""
    try:
        rows = session.run()
    except PositionMovedError:
        return "moved"
    return "done" if rows == session.expected else "other rows"


def counting_entries() -> Session:
    """Return a session that counts entries. The broker handles a fetch of the last entry next. Entries of others came
    into memory while the range was read."""
    store = store_of(OURS, OURS, OURS, flushed=False)
    session = Session(store, 0, 3 * UNIT, owns_store=True)
    step_to(RangeState.CLOSING, session)
    store.append(OURS, 8, 8, 8)
    step_to(RangeState.COUNTING, session)
    while {one.action for one in session.requests} != {Action.FETCH}:
        session.step()
    return session


def step_to(state: RangeState, session: Session) -> None:
    while session.state is not state:
        session.step()
