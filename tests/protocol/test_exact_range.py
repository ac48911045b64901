"""A range gives exactly its messages, in order, whatever happens around it, or an error that tells the truth.

The reader talks to a simulated store. A random number of its steps (send, have handled, hear the answer) lie between
one disturbance and the next.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.simulated_store import UNIT, Fetched, FilesEnd, Limits, Message, SimulatedStore, Sought
from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol import exact_range
from tubemq_spark.protocol.entry_count import MAX_EMPTY_ENTRIES
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.not_found import NotFound
from tubemq_spark.protocol.range_commands import Action, Command
from tubemq_spark.protocol.range_state import State

OURS = 7
PARTITION = Partition(3, "demo", OURS)
MOST_STEPS = 3000

Row = tuple[int | None, Message]
Answer = Sought | FilesEnd | Fetched | NotFound | int


@dataclass
class Session:
    """A reader, the broker it talks to, and the connection between them."""

    store: SimulatedStore
    start: int
    end: int
    sole: bool = False
    depth: int = 4
    seed: int = 0
    flushes: bool = True  # the store, when it is asked again and again

    asked: int = 0
    reader: ExactRange = field(init=False)
    requests: deque[Command] = field(default_factory=deque)
    answers: deque[tuple[Command, Answer]] = field(default_factory=deque)
    batches: list[FetchedBatch] = field(default_factory=list)
    truth: list[tuple[int, Message]] = field(default_factory=list)
    group: int = -1
    steps: int = 0

    def __post_init__(self) -> None:
        self.reader = ExactRange(PARTITION, self.start, self.end, owns_store=self.sole, depth=self.depth)
        self._random = random.Random(self.seed)

    def step(self) -> None:
        """Send what the reader has to say, let the broker handle one request, or let the reader hear one answer."""
        self.steps += 1
        assert self.steps < MOST_STEPS, f"{self.reader!r} does not come to an end"
        possible: list[Callable[[], None]] = [self.send]
        possible += [self.handle] * bool(self.requests)
        possible += [self.hear] * bool(self.answers)
        self._random.choice(possible)()

    def send(self) -> None:
        self.requests += self.reader.commands()
        unanswered = [*self.requests, *(command for command, _ in self.answers)]
        # One more than `depth`: the answers to those of a leg that is over do not matter any more.
        assert sum(command.action is Action.FETCH for command in unanswered) <= self.depth + 1

    def handle(self) -> None:
        command = self.requests.popleft()
        self.answers.append((command, self._answer(command)))

    def _answer(self, command: Command) -> Answer:
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

    def hear(self) -> None:
        _, answer = self.answers.popleft()
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
    def state(self) -> State:
        return next(state for state in State if f" {state.name} at " in repr(self.reader))

    def take(self) -> None:
        self.batches += self.reader.take_batches()

    def exchange(self) -> list[Command]:
        """One round trip: everything is sent, handled and heard. What was sent."""
        self.send()
        sent = list(self.requests)
        while self.requests:
            self.handle()
        while self.answers:
            self.hear()
        self.take()
        return sent

    def interrupt(self) -> None:
        """The connection breaks: some requests were handled, some not, and their answers are lost."""
        for _ in range(self._random.randint(0, len(self.requests))):
            self.handle()
        self.requests.clear()
        self.answers.clear()
        self.reader.on_disconnect()

    def crash(self, keep: int, confirmed: int) -> None:
        """The broker dies. Some of its answers are still on the way and are heard, all else is lost."""
        for _ in range(self._random.randint(0, len(self.answers))):
            self.hear()
        self.requests.clear()
        self.answers.clear()
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

    @property
    def expected(self) -> list[Row]:
        return [
            (position if self.sole and (position - self.start) // UNIT - number <= MAX_EMPTY_ENTRIES else None, message)
            for number, (position, message) in enumerate(self.truth)
        ]


# Scenarios: a store, a range, and what happens while it is read

HARMLESS = ("append", "append", "flush", "swap", "stale", "busy", "race", "interrupt")
HARMFUL = ("expire", "move", "drop", "crash")


@dataclass
class Scenario:
    """`script` tells how many steps to make before each disturbance, the disturbance, and its numbers."""

    session: Session
    script: list[tuple[int, str, tuple[int, ...]]]

    def play(self) -> list[Row]:
        for steps, disturbance, numbers in self.script:
            for _ in range(steps):
                if not self.session.reader.done:
                    self.session.step()
            disturb(self.session, disturbance, numbers)
        return self.session.run()

    @property
    def disturbances(self) -> set[str]:
        return {disturbance for _, disturbance, _ in self.script}


def disturb(session: Session, disturbance: str, numbers: tuple[int, ...]) -> None:
    store = session.store
    match disturbance:
        case "append":
            store.append(*numbers)
        case "flush":
            store.flush()
        case "swap":
            store.swap_blocks()
        case "stale":
            store.stale = 1
        case "busy":
            store.busy = 2
        case "race":
            store.racing += numbers
        case "interrupt":
            session.interrupt()
        case "expire":
            store.expire(numbers[0])
        case "move":
            store.move_group(numbers[0])
        case "drop":
            store.move_group(None)
        case "crash":
            keep, confirmed, *refill = numbers
            session.crash(keep, confirmed)
            store.append(*refill)


def scenario(rng: random.Random, kinds: Sequence[str]) -> Scenario:
    sole = rng.random() < 0.4
    filtered = not sole and rng.random() < 0.4
    limits = Limits(rng.randint(1, 8), rng.randint(1, 8), rng.randint(1, 4), rng.randint(1, 6))
    store = SimulatedStore(limits, filtered)
    # A store of its own may still hold entries of partitions that the topic once had.
    own, shared = [[OURS], [OURS, OURS, OURS, 8]], [[OURS, OURS, 8], [OURS, 8, 9], [OURS, 8, 8, 8, 8, 8]]
    partitions = rng.choice(own if sole else shared)
    size = rng.randint(2, 40)
    for _ in range(size):
        poisoned, matches, too_long = (rng.random() < share for share in (0.15, 0.7, 0.1 if sole else 0))
        store.append(rng.choice(partitions), poisoned=poisoned, matches=matches, too_long=too_long)
        if rng.random() < 0.05:
            store.swap_blocks()
    if rng.random() < 0.5:
        store.flush()
    store.expire(rng.choice([0, 0, 1, 3]))
    start = rng.randint(store.minimum, size - 1)
    end = rng.choice([size, rng.randint(start + 1, size)])

    def numbers(kind: str) -> tuple[int, ...]:
        entries = tuple(rng.choice(partitions) for _ in range(rng.randint(1, 6)))
        match kind:
            case "append" | "race":
                return entries
            case "expire" | "move":
                return (rng.choice([start, end, 0, size + 10, rng.randint(0, size)]),)
            case "crash":
                refill = tuple(rng.choice(partitions) for _ in range(rng.choice([0, 3, size, size + 5])))
                return (rng.randint(max(0, start - 2), size), rng.randint(0, start), *refill)
        return ()

    script = [(rng.randint(0, 14), kind, numbers(kind)) for kind in rng.choices(kinds, k=rng.randint(0, 6))]
    session = Session(store, start * UNIT, end * UNIT, sole, rng.randint(1, 4), rng.randint(0, 1 << 30))
    return Scenario(session, script)


scenarios = st.randoms(use_true_random=False)


@settings(max_examples=600)
@given(scenarios)
def test_gives_exactly_the_range_whatever_comes_in_and_however_often_the_connection_breaks(rng: random.Random) -> None:
    played = scenario(rng, HARMLESS)
    assert played.play() == played.session.expected
    assert played.session.group == played.session.start


@settings(max_examples=1200)
@given(scenarios)
def test_gives_exactly_the_range_or_an_error_that_is_true(rng: random.Random) -> None:
    check(scenario(rng, HARMLESS + HARMFUL * 2))


def check(played: Scenario, *, crashed: bool = False) -> str:
    """How it ended. `crashed`: there was a crash that the script does not tell of."""
    session = played.session
    try:
        rows = played.play()
    except DataLossError as error:
        assert crashed or played.disturbances & {"expire", "crash"}
        check_loss(session, error, moved=bool(played.disturbances & {"move", "drop"}))
        return "lost"
    except PositionMovedError:
        assert played.disturbances & {"move", "drop"}
        return "moved"
    assert rows == session.expected
    assert session.group == session.start
    return "done"


def check_loss(session: Session, error: DataLossError, *, moved: bool) -> None:
    """Two of a kind at once, a move before a crash, leave no more than a guess at where the loss begins."""
    store, asked, offered = session.store, error.asked, error.offered
    assert (error.topic, error.broker_id, error.partition) == ("demo", 3, OURS)
    if offered > asked:
        assert asked == session.start
        assert offered in (minimum * UNIT for minimum in store.minima)
        return
    session.take()
    gone = [store.numbers[message] * UNIT for _, message in session.rows if message not in store.messages]
    if asked == session.end:
        assert offered in (end * UNIT for end in store.ends)
    elif not moved:
        assert gone
        assert all(offered <= position < asked for position in gone)


@settings(max_examples=150)
@given(scenarios, st.sampled_from([state for state in State if state is not State.DONE]))
def test_survives_an_interruption_in_any_state(rng: random.Random, state: State) -> None:
    played = scenario(rng, ["append", "race", "swap"])
    session = played.session
    while not session.reader.done and session.state is not state:
        session.step()
    session.interrupt()
    assert played.play() == session.expected


@settings(max_examples=150)
@given(scenarios, st.sampled_from([state for state in State if state is not State.DONE]))
def test_survives_a_crash_in_any_state(rng: random.Random, state: State) -> None:
    played = scenario(rng, ["append", "race", "interrupt"])
    session = played.session
    while not session.reader.done and session.state is not state:
        session.step()
    size = len(session.store.entries)
    disturb(session, "crash", (rng.randint(0, size), 0, *[rng.choice([OURS, 8]) for _ in range(size + 1)]))
    assert check(played, crashed=True) != "moved"


@settings(max_examples=100)
@given(scenarios, st.data())
def test_ranges_side_by_side_give_what_one_over_both_gives(rng: random.Random, data: st.DataObject) -> None:
    session = scenario(rng, HARMLESS).session
    entries = session.start // UNIT, session.end // UNIT
    middle = data.draw(st.integers(*entries)) * UNIT
    cuts = [(session.start, session.end), (session.start, middle), (middle, session.end)]
    whole, *parts = (
        Session(session.store, start, end, session.sole, depth, rng.randint(0, 99)).run() if start < end else []
        for depth, (start, end) in enumerate(cuts, start=1)
    )
    assert whole == session.run()
    assert [message for _, message in whole] == [message for _, message in parts[0] + parts[1]]
    # Behind many entries without a message only the range that begins there knows positions.
    assert all(one in (None, other) for (one, _), (other, _) in zip(whole, parts[0] + parts[1], strict=True))


# The least number of round trips


def commands_of(session: Session) -> list[list[str]]:
    """What is sent in each round trip until the range is done."""
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


def test_a_range_up_to_the_end_of_a_store_of_its_own_takes_two_round_trips() -> None:
    session = Session(store_of(*[OURS] * 5, flushed=False), 1 * UNIT, 5 * UNIT, sole=True)
    assert commands_of(session) == [["SEEK 1", "FETCH"], ["ROLL_BACK", "SEEK 1"]]
    assert session.rows == session.expected


def test_a_range_up_to_the_end_of_a_shared_store_takes_three() -> None:
    session = Session(store_of(OURS, 8, OURS, 8, flushed=False), 0, 4 * UNIT)
    assert commands_of(session) == [["SEEK 0", "FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == session.expected


def test_a_range_that_ends_before_its_store_does_is_cut_by_counting_if_nobody_shares_it() -> None:
    session = Session(store_of(*[OURS] * 9, limits=Limits(file_entries=3)), 1 * UNIT, 5 * UNIT, sole=True, depth=1)
    assert commands_of(session) == [["SEEK 1", "FETCH"], ["FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 1"]]
    assert session.rows == session.expected


def test_a_range_that_ends_before_a_shared_store_does_is_cut_at_the_first_message_behind() -> None:
    session = Session(store_of(*[OURS, 8] * 9, limits=Limits(file_entries=4)), 0, 5 * UNIT, depth=1)
    assert commands_of(session) == [
        ["SEEK 0", "FETCH"],
        ["FETCH"],
        ["FETCH"],
        ["ROLL_BACK", "SEEK 5", "FETCH"],
        ["ROLL_BACK", "SEEK 0"],
    ]
    assert session.rows == session.expected


def test_the_same_when_one_answer_held_all_the_rest_of_the_store() -> None:
    session = Session(store_of(*[OURS, 8] * 9, flushed=False), 0, 5 * UNIT)
    assert commands_of(session) == [
        ["SEEK 0", "FETCH"],
        ["FETCH"],
        ["ROLL_BACK", "SEEK 5", "FETCH"],
        ["ROLL_BACK", "SEEK 0"],
    ]
    assert session.rows == session.expected


def test_a_range_without_messages_ends_with_the_first_answer_from_behind_it() -> None:
    session = Session(store_of(8, 8, 8, 8, *[OURS] * 8, limits=Limits(file_entries=4)), 0, 4 * UNIT, depth=1)
    assert commands_of(session) == [["SEEK 0", "FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == []


def test_the_fence_is_looked_for_while_answers_to_earlier_fetches_are_on_the_way() -> None:
    store = store_of(*[OURS, 8] * 50, limits=Limits(file_entries=4, first_messages=1))
    session = Session(store, 0, 6 * UNIT, depth=4)
    while session.state is not State.CUTTING:
        if not session.requests and not session.answers:
            session.send()
        while session.requests:
            session.handle()
        session.hear()
    assert session.answers
    assert session.reader.commands() == [
        Command(Action.ROLL_BACK, 0),
        Command(Action.SEEK, 6 * UNIT),
        Command(Action.FETCH),
    ]


def test_a_range_that_seemed_to_end_with_its_store_is_cut_when_more_came_in() -> None:
    session = Session(store_of(OURS, 8, OURS, 8, flushed=False), 0, 4 * UNIT)
    session.exchange()
    session.exchange()
    session.store.append(OURS)
    assert commands_of(session) == [["ROLL_BACK", "SEEK 0"], ["ROLL_BACK", "SEEK 4", "FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == session.expected


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_keeps_as_many_fetches_under_way_as_allowed(depth: int) -> None:
    store = store_of(*[OURS] * 100_000)
    reader = ExactRange(PARTITION, 0, 100_000 * UNIT, owns_store=True, depth=depth)
    assert reader.commands() == [Command(Action.SEEK, 0)] + [Command(Action.FETCH)] * depth
    assert reader.commands() == []
    answer = store.seek(0)
    reader.on_seek(answer.curr_offset, answer.max_offset)
    fetched = store.fetch(OURS)
    assert isinstance(fetched, Fetched)
    reader.on_fetch(fetched.begin, fetched.max_offset, fetched.messages)
    assert reader.commands() == [Command(Action.FETCH)]


def test_small_answers_make_it_ask_for_more_at_a_time() -> None:
    session = Session(store_of(*[OURS] * 100, limits=Limits(file_entries=10)), 0, 95 * UNIT, sole=True, depth=4)
    assert [c.action for c in session.exchange()] == [Action.SEEK, Action.FETCH]
    assert session.exchange() == [Command(Action.FETCH)] * 4


def test_asks_for_no_more_than_is_left() -> None:
    reader = ExactRange(PARTITION, 0, 10 * UNIT, owns_store=False, depth=4)
    assert reader.commands() == [Command(Action.SEEK, 0), Command(Action.FETCH)]


# Traps, one by one


@pytest.mark.parametrize("sole", [True, False])
def test_a_message_that_came_in_while_a_fetch_read_the_store_to_its_end_does_not_belong(sole: bool) -> None:
    """The reply's maxOffset is the range's end, and still its last message stands behind it."""
    store = store_of(OURS, flushed=False)
    store.append(OURS if sole else 8, poisoned=True)
    store.append(OURS)
    store.racing = [OURS]
    session = Session(store, 0, 3 * UNIT, sole)
    assert [message for _, message in session.run()] == [message for _, message in store.readable(OURS, 0, 3 * UNIT)]
    assert len(store.readable(OURS, 0, 4 * UNIT)) == 3


def test_a_poisoned_entry_is_no_row_and_moves_no_position() -> None:
    store = store_of(OURS)
    for _ in range(3):
        store.append(OURS, poisoned=True)
        store.append(OURS, OURS)
    session = Session(store, 0, 10 * UNIT, sole=True)
    session.run()
    assert [position for position, _ in session.rows] == [UNIT * n for n in (0, 2, 3, 5, 6, 8, 9)]


def looking_for_a_gap() -> Session:
    """The next request to be handled is a fetch of this search. Others' entries follow in memory."""
    store = store_of(OURS, OURS)
    store.append(OURS, poisoned=True)
    store.append(*[OURS] * 4)
    store.swap_blocks()
    store.flush()
    store.append(8, 8, 8)
    session = Session(store, 0, 7 * UNIT, sole=True)
    while not store.sought_at or session.requests[0].action is not Action.FETCH:
        session.step()
    assert session.state is State.LOCATING
    return session


def how_it_ends(session: Session) -> str:
    """`moved` for an error that says so, `done` for the right rows."""
    try:
        rows = session.run()
    except PositionMovedError:
        return "moved"
    return "done" if rows == session.expected else "other rows"


def counting_entries() -> Session:
    """The next request to be handled is a fetch of the last entry. Others sent when the range was read, in memory."""
    store = store_of(OURS, OURS, OURS, flushed=False)
    session = Session(store, 0, 3 * UNIT, sole=True)
    step_to(State.CLOSING, session)
    store.append(OURS, 8, 8, 8)
    step_to(State.COUNTING, session)
    while {one.action for one in session.requests} != {Action.FETCH}:
        session.step()
    return session


def step_to(state: State, session: Session) -> None:
    while session.state is not state:
        session.step()


@pytest.mark.parametrize(("entry", "ends"), [(0, "moved"), (4, "moved"), (7, "moved"), (2, "done")])
def test_a_group_that_is_moved_while_entries_are_counted(entry: int, ends: str) -> None:
    session = counting_entries()
    session.store.move_group(entry)
    assert how_it_ends(session) == ends


@pytest.mark.parametrize(("entry", "ends"), [(0, "moved"), (5, "moved"), (7, "moved"), (10, "moved"), (2, "done")])
def test_a_group_that_is_moved_while_a_gap_is_looked_for(entry: int, ends: str) -> None:
    session = looking_for_a_gap()
    session.store.move_group(entry)
    assert how_it_ends(session) == ends


def test_the_broker_may_want_time_while_a_gap_is_looked_for() -> None:
    session = looking_for_a_gap()
    session.store.busy = 2
    assert session.run() == session.expected


# Messages that are too long to be read from memory


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("limits", [Limits(), Limits(file_entries=3, memory_entries=3), Limits(1, 1, 1, 1)])
def test_a_message_that_is_too_long_for_memory_is_read_from_files(number: int, limits: Limits) -> None:
    store = SimulatedStore(limits)
    for entry in range(12):
        store.append(OURS, too_long=entry == number)
        if entry == 5:
            store.swap_blocks()
    session = Session(store, 2 * UNIT, 10 * UNIT, sole=True)
    assert session.run() == session.expected
    assert [position for position, _ in session.rows] == [UNIT * n for n in range(2, 10)]
    assert session.asked == (3 if 2 <= number < 10 else session.asked)


def test_a_range_of_messages_that_are_too_long_for_memory() -> None:
    store = SimulatedStore()
    store.append(*[OURS] * 8, too_long=True)
    session = Session(store, 2 * UNIT, 6 * UNIT, sole=True)
    assert len(session.run()) == 4
    assert session.rows == session.expected


def test_as_long_as_they_are_in_memory_it_waits_and_says_for_what() -> None:
    store = store_of(*[OURS] * 3)
    store.append(OURS, too_long=True)
    store.append(OURS)
    session = Session(store, 1 * UNIT, 5 * UNIT, sole=True, flushes=False)
    while session.reader.waits_for_flush is None:
        session.exchange()
    for _ in range(9):
        assert session.exchange()[-1].action is Action.FIND_FLUSHED_END
        assert session.reader.waits_for_flush == (3 * UNIT, 5 * UNIT)
    store.swap_blocks()
    store.flush()
    assert session.run() == session.expected
    assert session.reader.waits_for_flush is None


# Stores that got partitions since the range was planned


@pytest.mark.parametrize("limits", [Limits(), Limits(file_entries=7, memory_entries=5), Limits(1, 1, 1, 1)])
@pytest.mark.parametrize("flushed", [True, False])
def test_behind_too_many_gaps_there_are_no_positions(limits: Limits, flushed: bool) -> None:
    """Nor many seeks, and the same messages have positions however they are fetched."""
    store = store_of(*[OURS] * 20, *[OURS, 8, 9] * 200, limits=limits, flushed=flushed)
    session = Session(store, 5 * UNIT, 610 * UNIT, sole=True)
    asked = sought = 0
    while not session.reader.done:
        actions = [command.action for command in session.exchange()]
        sought += actions.count(Action.SEEK)
        asked += actions.count(Action.FIND_FLUSHED_END)
    assert session.rows == session.expected
    assert [position for position, _ in session.rows].index(None) == 15 + 1 + MAX_EMPTY_ENTRIES // 2
    assert sought < 60
    assert asked <= 3


def test_a_range_of_poisoned_entries_alone_is_empty() -> None:
    store = store_of(OURS)
    store.append(OURS, OURS, OURS, poisoned=True)
    store.append(OURS)
    session = Session(store, 1 * UNIT, 4 * UNIT, sole=True)
    assert session.run() == []


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("messages", [0, 1])
def test_comes_to_an_end_although_others_fill_the_store_all_the_time(messages: int, filtered: bool) -> None:
    store = store_of(*[OURS] * messages, 8, 8, flushed=False)
    store.filtered = filtered
    store.swap_blocks()
    store.append(8, 8, 8, matches=False)
    if filtered:
        store.entries = [entry._replace(matches=entry.partition == OURS) for entry in store.entries]
    session = Session(store, 0, (messages + 4) * UNIT)
    for _ in range(20):
        store.append(8, matches=False)
        session.exchange()
    assert session.reader.done
    assert len(session.rows) == messages


def session_with_a_message_behind_a_block_without() -> Session:
    """A filtered reader is told that it passed the block, and nothing of the next one."""
    store = SimulatedStore(filtered=True)
    store.append(8, 8, matches=False)
    store.swap_blocks()
    store.append(OURS)
    return Session(store, 0, 3 * UNIT, depth=1)


def test_a_block_passed_twice_is_not_taken_for_two() -> None:
    session = session_with_a_message_behind_a_block_without()
    session.exchange()
    assert session.store.move_group(0)
    assert session.run() == session.expected


def test_a_block_passed_before_an_interruption_does_not_count() -> None:
    session = session_with_a_message_behind_a_block_without()
    session.exchange()
    session.interrupt()
    session.exchange()
    session.interrupt()
    assert session.run() == session.expected


# Entries are counted from 0; the range of `long_session` is [4, 20) of 30.
MOVES = {"back": 0, "forth": 13, "to the end of the range": 20, "to the end of the store": 30, "dropped": None}


def long_session(*, depth: int = 1) -> Session:
    """[4, 20) of a shared store with 30 entries, two of ours in three, up to 4 entries a fetch."""
    return Session(store_of(*[OURS, OURS, 8] * 10, limits=Limits(file_entries=4)), 4 * UNIT, 20 * UNIT, depth=depth)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("exchanges", range(1, 5))
def test_a_moved_group_is_noticed(exchanges: int, name: str) -> None:
    session = long_session()
    for _ in range(exchanges):
        session.exchange()
    assert session.state is State.READING
    assert session.store.move_group(MOVES[name])
    with pytest.raises(PositionMovedError, match=r"3:demo:7.*\[112, 560\)"):
        session.run()


@pytest.mark.parametrize("name", MOVES)
def test_a_group_moved_between_the_last_fetch_and_its_proof_is_noticed(name: str) -> None:
    session = long_session()
    while session.state is not State.CLOSING:
        session.exchange()
    assert session.store.move_group(MOVES[name])
    with pytest.raises(PositionMovedError):
        session.run()


def test_a_group_moved_while_the_fence_is_looked_for_is_noticed() -> None:
    """The fetch behind the seek to the fence begins somewhere else."""
    session = Session(store_of(*[OURS] * 20, limits=Limits(file_entries=8)), 0, 5 * UNIT, depth=1)
    while session.state is not State.CUTTING:
        session.exchange()
    session.send()
    session.handle()
    session.handle()
    assert session.store.move_group(15)
    with pytest.raises(PositionMovedError, match="a fetch began at 420, but the one before it ended at 140"):
        session.run()


def test_a_group_reset_to_where_it_stands_is_noticed_when_messages_repeat() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(4)
    with pytest.raises(PositionMovedError):
        session.run()


@pytest.mark.parametrize("name", MOVES)
def test_a_move_after_which_nothing_was_given_out_is_undone_by_reading_anew(name: str) -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(MOVES[name])
    session.send()
    session.handle()
    session.hear()
    session.interrupt()
    assert session.run() == session.expected


def test_messages_left_out_before_an_interruption_fail_the_range() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(15)
    while len(session.rows) < 8:
        session.exchange()
    session.interrupt()
    with pytest.raises(PositionMovedError, match="in another order"):
        session.run()


def test_what_was_given_out_last_is_found_again_in_smaller_answers() -> None:
    session = long_session()
    session.store.limits = Limits(file_entries=4, first_messages=1)
    session.exchange()
    assert session.store.move_group(8)
    while len(session.rows) < 6:
        session.exchange()
    session.interrupt()
    with pytest.raises(PositionMovedError, match="in another order"):
        session.run()


def test_positions_given_out_before_an_interruption_must_still_be_right() -> None:
    """A move back by as many entries as hold no message makes the stretch look as if it had none such."""
    store = store_of(OURS, OURS, limits=Limits(memory_entries=5), flushed=False)
    store.append(OURS, poisoned=True)
    store.append(*[OURS] * 4)
    session = Session(store, 0, 7 * UNIT, sole=True)
    session.exchange()
    assert store.move_group(4)
    session.exchange()
    assert [position for position, _ in session.rows] == [0, 28, 56, 84]
    session.interrupt()
    with pytest.raises(PositionMovedError, match="at other positions"):
        session.run()


@pytest.mark.parametrize("exchanges", range(6))
def test_retention_that_overtakes_the_reader_is_a_loss(exchanges: int) -> None:
    session = long_session()
    for _ in range(exchanges):
        session.exchange()
    session.store.expire(17)
    with pytest.raises(DataLossError, match=r"retention removed \[112, 476\)") as caught:
        session.run()
    assert (caught.value.asked, caught.value.offered) == (4 * UNIT, 17 * UNIT)


def test_retention_up_to_the_start_loses_nothing() -> None:
    session = long_session()
    session.exchange()
    session.store.expire(4)
    assert session.run() == session.expected


def test_a_lost_tail_is_a_loss() -> None:
    session = long_session()
    session.exchange()
    session.crash(keep=11, confirmed=0)
    with pytest.raises(DataLossError, match="lost its tail") as caught:
        session.run()
    assert (caught.value.asked, caught.value.offered) == (20 * UNIT, 11 * UNIT)


def test_a_store_that_grows_while_it_answers_lost_what_it_had_not_then() -> None:
    reader = ExactRange(PARTITION, 10 * UNIT, 20 * UNIT, owns_store=True)
    reader.commands()
    with pytest.raises(DataLossError) as caught:
        reader.on_seek(5 * UNIT, 6 * UNIT)
    assert (caught.value.asked, caught.value.offered) == (20 * UNIT, 5 * UNIT)


def test_a_tail_lost_behind_the_range_is_nobodys_loss() -> None:
    session = long_session()
    session.exchange()
    session.crash(keep=20, confirmed=0)
    session.store.append(OURS)
    assert session.run() == session.expected


@pytest.mark.parametrize("refill", [10, 19, 40])
@pytest.mark.parametrize("confirmed", [0, 4])
def test_lost_positions_that_are_used_again_are_a_loss_if_they_were_given_out(refill: int, confirmed: int) -> None:
    session = long_session()
    while len(session.rows) < 8:
        session.exchange()
    session.crash(keep=11, confirmed=confirmed)
    session.store.append(*[OURS] * refill)
    with pytest.raises(DataLossError, match="uses the positions for other messages") as caught:
        session.run()
    lost = [
        session.store.numbers[message] * UNIT for _, message in session.rows if message not in session.store.messages
    ]
    assert 4 * UNIT <= caught.value.offered <= min(lost) <= max(lost) < caught.value.asked <= 20 * UNIT


def test_lost_positions_that_are_used_again_before_they_were_read_are_read_as_they_are() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    session.crash(keep=11, confirmed=0)
    session.store.append(*[OURS] * 40)
    assert session.run() == session.expected
    assert session.rows[-1][1].messageId < session.rows[0][1].messageId


def test_a_message_that_came_to_a_lost_position_behind_the_last_one_given_out_is_not_left_out() -> None:
    """The last batch reaches over entries of other partitions; after the crash one of them is ours."""
    store = store_of(OURS, 8, 8, 8, OURS, OURS, limits=Limits(file_entries=3))
    session = Session(store, 0, 6 * UNIT, depth=1)
    while not session.rows:
        session.exchange()
    session.crash(keep=2, confirmed=0)
    store.append(OURS, OURS, 8, 8, 8)
    assert session.run() == session.expected
    assert [store.numbers[message] for _, message in session.rows] == [0, 2, 3]


def test_a_crash_while_a_mismatch_is_looked_into_changes_nothing() -> None:
    session = long_session()
    while len(session.rows) < 8:
        session.exchange()
    session.crash(keep=11, confirmed=0)
    session.store.append(*[OURS] * 40)
    while session.state is not State.VERIFYING:
        session.exchange()
    session.crash(keep=30, confirmed=4)
    with pytest.raises(DataLossError, match="uses the positions for other messages"):
        session.run()


def test_a_range_that_is_done_stays_done() -> None:
    session = long_session()
    session.run()
    session.interrupt()
    assert session.reader.done
    assert session.reader.commands() == []
    assert session.reader.take_batches() == []


# Answers that no broker gives

ANSWERS: dict[str, Callable[[ExactRange], None]] = {
    "sought": lambda reader: reader.on_seek(0, 280),
    "fetched": lambda reader: reader.on_fetch(0, 280, ()),
    "not found": lambda reader: reader.on_not_found(NotFound.END),
    "rolled back": lambda reader: reader.on_roll_back(0),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_to_nothing_is_refused(name: str) -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    with pytest.raises(ProtocolError, match="out of turn"):
        ANSWERS[name](reader)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "sought"])
def test_an_answer_to_another_command_is_refused(name: str) -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    reader.commands()
    with pytest.raises(ProtocolError, match="out of turn"):
        ANSWERS[name](reader)


def test_a_begin_between_two_entries_is_refused() -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    reader.commands()
    reader.on_seek(0, 280)
    with pytest.raises(ProtocolError, match="no index position"):
        reader.on_fetch(5, 280, ())


@pytest.mark.parametrize(("start", "end"), [(0, 0), (28, 0), (-28, 28), (1, 28), (0, 29)])
def test_what_is_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        ExactRange(PARTITION, start, end, owns_store=False)


# The table


class Recorder(dict[object, object]):
    def __init__(self, table: object) -> None:
        super().__init__(cast("dict[object, object]", table))
        self.used: set[object] = set()

    def get(self, key: object, default: object = None) -> object:
        self.used.add(key)
        return super().get(key, default)


def test_the_table_has_what_can_occur_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(exact_range._HANDLERS)
    monkeypatch.setattr(exact_range, "_HANDLERS", recorder)
    outcomes = {check(scenario(random.Random(seed), HARMLESS + HARMFUL)) for seed in range(2500)}
    assert outcomes == {"done", "lost", "moved"}
    for seed in range(1500):
        check(scenario(random.Random(seed), ("move", "crash", "interrupt", "flush")))
    for entry in (7, 10):
        test_a_group_that_is_moved_while_a_gap_is_looked_for(entry, "moved")
    for entry in (4, 7):
        test_a_group_that_is_moved_while_entries_are_counted(entry, "moved")
    test_the_broker_may_want_time_while_a_gap_is_looked_for()
    assert recorder.used == set(recorder)


def test_a_range_that_was_read_to_its_end_waits_for_no_files_when_more_comes() -> None:
    """The reader took the end of the range for that of the store, and others sent before it had proven that."""
    store = SimulatedStore(Limits(memory_entries=100))
    for _ in range(3):
        store.append(OURS)
    session = Session(store, 0, 3 * UNIT, sole=True, flushes=False)
    while session.reader._state is not State.CLOSING:
        session.step()
    for _ in range(2):
        store.append(OURS)
    while not session.reader.done:
        session.step()
        assert session.reader.waits_for_flush is None
    assert sum(len(batch.messages) for batch in session.batches) == 3


@pytest.mark.parametrize("seed", [55, 8580, 13191, 29166])
def test_a_later_message_never_takes_the_place_of_one_that_was_too_long(seed: int) -> None:
    """The reading from memory left out messages, and the flush before the cut brought them back."""
    played = scenario(random.Random(seed), ("interrupt", "flush", "append"))
    assert played.play() == played.session.expected
