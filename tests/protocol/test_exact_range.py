# SPDX-License-Identifier: Apache-2.0
"""A range returns exactly its messages in order, whatever happens meanwhile, or raises an error that is true."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.range_scenarios import HARMFUL, HARMLESS, check, disturb, scenario, scenarios
from tests.protocol.range_session import (
    OURS,
    PARTITION,
    Session,
    commands_of,
    counting_entries,
    how_it_ends,
    long_session,
    searching_gaps,
    store_of,
)
from tests.protocol.simulated_store import UNIT, Fetched, Limits, SimulatedStore
from tubemq_spark.errors import DataLossError, PositionMovedError, ProtocolError
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES, Action, Command, EntryCount, RangeState


@settings(max_examples=150)
@given(scenarios)
def test_a_range_is_exact_while_messages_arrive_and_connections_break(rng: random.Random) -> None:
    played = scenario(rng, HARMLESS)
    assert played.play() == played.session.expected
    assert played.session.group == played.session.start


@settings(max_examples=250)
@given(scenarios)
def test_a_range_is_exact_or_raises_a_true_error(rng: random.Random) -> None:
    check(scenario(rng, HARMLESS + HARMFUL * 2))


@settings(max_examples=80)
@given(scenarios, st.sampled_from([state for state in RangeState if state is not RangeState.DONE]))
def test_survives_a_closed_connection_in_any_state(rng: random.Random, state: RangeState) -> None:
    played = scenario(rng, ["append", "race", "swap"])
    session = played.session
    while not session.reader.done and session.state is not state:
        session.step()
    session.disconnect()
    assert played.play() == session.expected


@settings(max_examples=80)
@given(scenarios, st.sampled_from([state for state in RangeState if state is not RangeState.DONE]))
def test_survives_a_broker_crash_in_any_state(rng: random.Random, state: RangeState) -> None:
    played = scenario(rng, ["append", "race", "disconnect"])
    session = played.session
    while not session.reader.done and session.state is not state:
        session.step()
    size = len(session.store.entries)
    disturb(session, "crash", (rng.randint(0, size), 0, *[rng.choice([OURS, 8]) for _ in range(size + 1)]))
    assert check(played, crashed=True) != "moved"


@settings(max_examples=60)
@given(scenarios, st.data())
def test_adjacent_ranges_return_the_same_as_one_over_both(rng: random.Random, data: st.DataObject) -> None:
    session = scenario(rng, HARMLESS).session
    entries = session.start // UNIT, session.end // UNIT
    middle = data.draw(st.integers(*entries)) * UNIT
    cuts = [(session.start, session.end), (session.start, middle), (middle, session.end)]
    whole, *parts = (
        Session(session.store, start, end, session.owns_store, depth, rng.randint(0, 99)).run() if start < end else []
        for depth, (start, end) in enumerate(cuts, start=1)
    )
    assert whole == session.run()
    assert [message for _, message in whole] == [message for _, message in parts[0] + parts[1]]
    # Behind many entries without a message, only a range that begins there has positions.
    assert all(one in (None, other) for (one, _), (other, _) in zip(whole, parts[0] + parts[1], strict=True))


def test_a_closed_connection_does_not_restart_a_range_that_is_done() -> None:
    session = long_session()
    session.run()
    session.disconnect()
    assert session.reader.done
    assert session.reader.commands() == []
    assert session.reader.take_batches() == []


# A second reading, of a partition that was doubtful


@settings(max_examples=80)
@given(scenarios)
def test_a_second_reading_has_the_same_messages_and_delivers_none(rng: random.Random) -> None:
    played = scenario(rng, HARMLESS)
    rows = played.play()
    played.session.reader.read_again()
    assert played.play() == rows


@pytest.mark.parametrize("rows", [1, 4])
def test_a_second_reading_finds_the_messages_that_the_first_missed(rows: int) -> None:
    """A late fetch of another client moved the cursor, in the middle or at the end."""
    session = long_session()
    while len(session.rows) < rows:
        session.exchange()
    session.store.fetch(OURS)
    assert len(session.run()) < len(session.expected)
    session.reader.read_again()
    with pytest.raises(PositionMovedError, match="two readings differ"):
        session.run()


# Invalid replies

REPLIES: dict[str, Callable[[ExactRange], None]] = {
    "sought": lambda reader: reader.on_seek(0, 280),
    "fetched": lambda reader: reader.on_fetch(0, 280, ()),
    "not found": lambda reader: reader.on_not_found(NotFound.END),
    "rolled back": lambda reader: reader.on_roll_back(0),
}


@pytest.mark.parametrize("name", REPLIES)
def test_refuses_a_reply_without_a_command(name: str) -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    with pytest.raises(ProtocolError, match="out of turn"):
        REPLIES[name](reader)


@pytest.mark.parametrize("name", [name for name in REPLIES if name != "sought"])
def test_refuses_a_reply_to_another_command(name: str) -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    reader.commands()
    with pytest.raises(ProtocolError, match="out of turn"):
        REPLIES[name](reader)


def test_an_end_without_any_message_waits_for_the_files() -> None:
    """A late fetch of another client may have moved the cursor to the end, and messages may be unreadable in memory."""
    reader = ExactRange(PARTITION, 0, 2 * UNIT, owns_store=True, depth=1)
    reader.commands()
    reader.on_seek(0, 2 * UNIT)
    reader.on_not_found(NotFound.END)
    assert reader.waits_for_flush == (0, 2 * UNIT)
    reader.commands()
    reader.on_roll_back(0)
    reader.on_flushed_end(2 * UNIT)
    reader.commands()
    reader.on_seek(0, 2 * UNIT)
    reader.on_not_found(NotFound.END)  # the files have no message either
    assert [one.action for one in reader.commands()] == [Action.ROLL_BACK, Action.SEEK]
    reader.on_roll_back(0)
    reader.on_seek(0, 2 * UNIT)
    assert reader.done


def test_a_store_that_loses_entries_is_noticed_while_the_reader_waits_for_the_files() -> None:
    reader = ExactRange(PARTITION, 0, 2 * UNIT, owns_store=True, depth=1)
    reader.commands()
    reader.on_seek(0, 2 * UNIT)
    reader.on_not_found(NotFound.END)
    reader.commands()
    reader.on_roll_back(0)
    reader.on_flushed_end(0)
    assert [one.action for one in reader.commands()] == [Action.SEEK, Action.FIND_FLUSHED_END]
    with pytest.raises(DataLossError, match="the store lost its tail"):
        reader.on_seek(0, UNIT)


def test_refuses_a_fetch_that_begins_between_two_entries() -> None:
    reader = ExactRange(PARTITION, 0, 280, owns_store=False)
    reader.commands()
    reader.on_seek(0, 280)
    with pytest.raises(ProtocolError, match="not an index position"):
        reader.on_fetch(5, 280, ())


@pytest.mark.parametrize(("start", "end"), [(0, 0), (28, 0), (-28, 28), (1, 28), (0, 29)])
def test_refuses_invalid_ranges(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        ExactRange(PARTITION, start, end, owns_store=False)


# A group that is moved, retention, and a broker that crashes while a range is read


def test_detects_a_group_reset_to_its_own_position_by_repeated_messages() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(4)
    with pytest.raises(PositionMovedError):
        session.run()


def test_finds_the_last_delivered_message_in_smaller_replies() -> None:
    session = long_session()
    session.store.limits = Limits(file_entries=4, first_messages=1)
    session.exchange()
    assert session.store.move_group(8)
    while len(session.rows) < 6:
        session.exchange()
    session.disconnect()
    with pytest.raises(PositionMovedError, match="in another order"):
        session.run()


def test_the_loss_begins_at_the_position_before_the_store_grew() -> None:
    reader = ExactRange(PARTITION, 10 * UNIT, 20 * UNIT, owns_store=True)
    reader.commands()
    with pytest.raises(DataLossError) as caught:
        reader.on_seek(5 * UNIT, 6 * UNIT)
    assert (caught.value.asked, caught.value.offered) == (20 * UNIT, 5 * UNIT)


def test_delivers_a_message_at_a_reused_position_behind_the_last_delivered_one() -> None:
    """The last batch covers entries of other partitions. After the crash one of them is ours."""
    store = store_of(OURS, 8, 8, 8, OURS, OURS, limits=Limits(file_entries=3))
    session = Session(store, 0, 6 * UNIT, depth=1)
    while not session.rows:
        session.exchange()
    session.crash(keep=2, confirmed=0)
    store.append(OURS, OURS, 8, 8, 8)
    assert session.run() == session.expected
    assert [store.numbers[message] for _, message in session.rows] == [0, 2, 3]


def test_reports_the_loss_although_the_broker_crashes_again() -> None:
    session = long_session()
    while len(session.rows) < 8:
        session.exchange()
    session.crash(keep=11, confirmed=0)
    session.store.append(*[OURS] * 40)
    while session.state is not RangeState.VERIFYING:
        session.exchange()
    session.crash(keep=30, confirmed=4)
    with pytest.raises(DataLossError, match="uses the positions for other messages"):
        session.run()


# Index entries that give no message: unreadable ones, messages too long for memory, other partitions' entries


@pytest.mark.parametrize(
    ("begin", "entry"),
    [*((counting_entries, entry) for entry in (0, 2, 4, 7)), *((searching_gaps, entry) for entry in (0, 2, 5, 7, 10))],
)
def test_detects_a_moved_group_while_it_counts_entries_or_searches_gaps(
    begin: Callable[[], Session], entry: int
) -> None:
    session = begin()
    session.store.move_group(entry)
    assert how_it_ends(session) == ("done" if entry == 2 else "moved")


def test_searches_gaps_although_the_broker_is_busy() -> None:
    session = searching_gaps()
    session.store.busy = 2
    assert session.run() == session.expected


# Messages that are too long for the broker's reader of memory


def test_waits_for_the_flush_and_reports_the_entries() -> None:
    store = store_of(*[OURS] * 3)
    store.append(OURS, too_long=True)
    store.append(OURS)
    session = Session(store, 1 * UNIT, 5 * UNIT, owns_store=True, flushes=False)
    while session.reader.waits_for_flush is None:
        session.exchange()
    for _ in range(9):
        assert session.exchange()[-1].action is Action.FIND_FLUSHED_END
        assert session.reader.waits_for_flush == (3 * UNIT, 5 * UNIT)
    store.swap_blocks()
    store.flush()
    assert session.run() == session.expected
    assert session.reader.waits_for_flush is None


# Stores that got partitions after the range was planned


def test_a_complete_range_does_not_wait_for_a_flush_if_the_store_grew() -> None:
    """The reader assumed that the range ends with the store, and new messages arrived before it proved that."""
    store = SimulatedStore(Limits(memory_entries=100))
    for _ in range(3):
        store.append(OURS)
    session = Session(store, 0, 3 * UNIT, owns_store=True, flushes=False)
    while session.reader._state is not RangeState.CLOSING:
        session.step()
    for _ in range(2):
        store.append(OURS)
    while not session.reader.done:
        session.step()
        assert session.reader.waits_for_flush is None
    assert sum(len(batch.messages) for batch in session.batches) == 3


@pytest.mark.parametrize("seed", [55, 8580, 13191, 29166])
def test_a_later_message_never_replaces_one_that_was_too_long(seed: int) -> None:
    """The reader of memory left out messages; after a flush the broker returns them."""
    played = scenario(random.Random(seed), ("disconnect", "flush", "append"))
    assert played.play() == played.session.expected


# Round trips that a range takes, and the fetches in flight


SEARCH, BACK = "ROLL_BACK, SEEK 5, FETCH", "ROLL_BACK, SEEK 0"
FOUR = Limits(file_entries=4)
ROUND_TRIPS: dict[str, tuple[Callable[[], SimulatedStore], tuple[int, int], list[str]]] = {
    "to the end of an unshared store": (
        partial(store_of, *[OURS] * 5, flushed=False), (1, 5), ["SEEK 1, FETCH", "ROLL_BACK, SEEK 1"]
    ),
    "to the end of a shared store": (
        partial(store_of, OURS, 8, OURS, 8, flushed=False), (0, 4), ["SEEK 0, FETCH", "FETCH", BACK]
    ),
    "cut by counting in an unshared store": (
        partial(store_of, *[OURS] * 9, limits=Limits(file_entries=3)), (1, 5),
        ["SEEK 1, FETCH", "FETCH", "FETCH", "ROLL_BACK, SEEK 1"],
    ),
    "cut at the next message in a shared store": (
        partial(store_of, *[OURS, 8] * 9, limits=FOUR), (0, 5), ["SEEK 0, FETCH", "FETCH", "FETCH", SEARCH, BACK]
    ),
    "cut if one reply has the rest of the store": (
        partial(store_of, *[OURS, 8] * 9, flushed=False), (0, 5), ["SEEK 0, FETCH", "FETCH", SEARCH, BACK]
    ),
    "ended by the first reply from behind a range without messages": (
        partial(store_of, 8, 8, 8, 8, *[OURS] * 8, limits=FOUR), (0, 4), ["SEEK 0, FETCH", "FETCH", BACK]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_a_range_takes_few_round_trips(case: str) -> None:
    new_store, (start, end), trips = ROUND_TRIPS[case]
    session = Session(new_store(), start * UNIT, end * UNIT, owns_store="unshared" in case, depth=1)
    assert list(map(", ".join, commands_of(session))) == trips
    assert session.rows == session.expected


def test_the_cut_does_not_wait_for_replies_to_earlier_fetches() -> None:
    store = store_of(*[OURS, 8] * 50, limits=Limits(file_entries=4, first_messages=1))
    session = Session(store, 0, 6 * UNIT, depth=4)
    while session.state is not RangeState.CUTTING:
        if not session.requests and not session.replies:
            session.send()
        while session.requests:
            session.handle()
        session.receive()
    assert session.replies
    assert session.reader.commands() == [
        Command(Action.ROLL_BACK, 0),
        Command(Action.SEEK, 6 * UNIT),
        Command(Action.FETCH),
    ]


def test_a_range_that_seemed_to_end_with_its_store_is_cut_if_the_store_grew() -> None:
    session = Session(store_of(OURS, 8, OURS, 8, flushed=False), 0, 4 * UNIT)
    session.exchange()
    session.exchange()
    session.store.append(OURS)
    assert commands_of(session) == [["ROLL_BACK", "SEEK 0"], ["ROLL_BACK", "SEEK 4", "FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == session.expected


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_keeps_as_many_fetches_in_flight_as_allowed(depth: int) -> None:
    store = store_of(*[OURS] * 24_000)
    reader = ExactRange(PARTITION, 0, 24_000 * UNIT, owns_store=True, depth=depth)
    assert reader.commands() == [Command(Action.SEEK, 0)] + [Command(Action.FETCH)] * depth
    assert reader.commands() == []
    answer = store.seek(0)
    reader.on_seek(answer.curr_offset, answer.max_offset)
    fetched = store.fetch(OURS)
    assert isinstance(fetched, Fetched)
    reader.on_fetch(fetched.begin, fetched.max_offset, fetched.messages)
    assert reader.commands() == [Command(Action.FETCH)]


def test_small_replies_lead_to_more_fetches_in_flight() -> None:
    session = Session(store_of(*[OURS] * 100, limits=Limits(file_entries=10)), 0, 95 * UNIT, owns_store=True, depth=4)
    assert [c.action for c in session.exchange()] == [Action.SEEK, Action.FETCH]
    assert session.exchange() == [Command(Action.FETCH)] * 4


def test_sends_no_more_fetches_than_the_range_needs() -> None:
    reader = ExactRange(PARTITION, 0, 10 * UNIT, owns_store=False, depth=4)
    assert reader.commands() == [Command(Action.SEEK, 0), Command(Action.FETCH)]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("messages", [0, 1])
def test_a_range_ends_while_other_partitions_fill_the_store(messages: int, filtered: bool) -> None:
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


def session_with_a_message_behind_an_empty_block() -> Session:
    """The reply to a filtered reader says that it passed the first block, and nothing about the next one."""
    store = SimulatedStore(filtered=True)
    store.append(8, 8, matches=False)
    store.swap_blocks()
    store.append(OURS)
    return Session(store, 0, 3 * UNIT, depth=1)


def test_passing_one_block_twice_does_not_count_as_two_blocks() -> None:
    session = session_with_a_message_behind_an_empty_block()
    session.exchange()
    assert session.store.move_group(0)
    assert session.run() == session.expected


def test_a_block_passed_on_a_closed_connection_does_not_count() -> None:
    session = session_with_a_message_behind_an_empty_block()
    session.exchange()
    session.disconnect()
    session.exchange()
    session.disconnect()
    assert session.run() == session.expected


def test_positions_end_behind_too_many_empty_entries() -> None:
    entries = EntryCount(owns_store=True)
    found = []
    for more in (MAX_EMPTY_ENTRIES, 1):
        entries.add_empty(more, 0)
        found.append((entries.has_positions, entries.most_empty))
    entries.restart()
    found.append((entries.has_positions, entries.most_empty))
    assert found == [(True, 0), (False, -1), (True, MAX_EMPTY_ENTRIES)]


def test_an_end_right_behind_a_seek_shows_that_the_cursor_was_moved() -> None:
    """Two late fetches may each take all messages of a reading: then both readings are empty, and equal."""
    shared = ExactRange(Partition(1, "t", 0), 0, 8 * UNIT, owns_store=False)
    assert [one.action for one in shared.commands()] == [Action.SEEK, Action.FETCH]
    shared.on_seek(0, 8 * UNIT)
    shared.on_not_found(NotFound.END)
    assert [one.action for one in shared.commands()] == [Action.SEEK]
    with pytest.raises(PositionMovedError, match="has entries behind 0"):
        shared.on_seek(0, 8 * UNIT)


def test_an_end_behind_the_seek_that_cuts_a_reply_shows_it_too() -> None:
    """The reply has messages behind the range, which nothing would cut off."""
    shared = ExactRange(Partition(1, "t", 0), 0, 8 * UNIT, owns_store=False)
    shared.commands()
    shared.on_seek(0, 20 * UNIT)
    shared.on_fetch(0, 20 * UNIT, [SimpleNamespace(messageId=n, checkSum=n) for n in (1, 2, 3)])
    shared.commands()
    shared.on_not_found(NotFound.END)
    assert [one.action for one in shared.commands()] == [Action.ROLL_BACK, Action.SEEK, Action.FETCH]
    shared.on_roll_back(0)
    shared.on_seek(8 * UNIT, 20 * UNIT)
    shared.on_not_found(NotFound.END)
    shared.commands()
    with pytest.raises(PositionMovedError, match="has entries behind 224"):
        shared.on_seek(0, 20 * UNIT)
