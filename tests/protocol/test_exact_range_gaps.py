# SPDX-License-Identifier: Apache-2.0
"""Index entries that give no message: unreadable ones, messages too long for memory, other partitions' entries."""

from __future__ import annotations

import random

import pytest

from tests.protocol.range_scenarios import scenario
from tests.protocol.range_session import (
    OURS,
    Session,
    counting_entries,
    how_it_ends,
    searching_gaps,
    store_of,
)
from tests.protocol.simulated_store import UNIT, Limits, SimulatedStore
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES, Action, State


@pytest.mark.parametrize("owns_store", [True, False])
def test_a_message_that_arrives_during_the_last_fetch_does_not_belong_to_the_range(owns_store: bool) -> None:
    """The reply's maxOffset is the end of the range, but its last message is behind it."""
    store = store_of(OURS, flushed=False)
    store.append(OURS if owns_store else 8, unreadable=True)
    store.append(OURS)
    store.racing = [OURS]
    session = Session(store, 0, 3 * UNIT, owns_store)
    assert [message for _, message in session.run()] == [message for _, message in store.readable(OURS, 0, 3 * UNIT)]
    assert len(store.readable(OURS, 0, 4 * UNIT)) == 3


def test_an_unreadable_entry_shifts_no_positions() -> None:
    store = store_of(OURS)
    for _ in range(3):
        store.append(OURS, unreadable=True)
        store.append(OURS, OURS)
    session = Session(store, 0, 10 * UNIT, owns_store=True)
    session.run()
    assert [position for position, _ in session.rows] == [UNIT * n for n in (0, 2, 3, 5, 6, 8, 9)]


@pytest.mark.parametrize(("entry", "ends"), [(0, "moved"), (4, "moved"), (7, "moved"), (2, "done")])
def test_detects_a_moved_group_while_it_counts_entries(entry: int, ends: str) -> None:
    session = counting_entries()
    session.store.move_group(entry)
    assert how_it_ends(session) == ends


@pytest.mark.parametrize(("entry", "ends"), [(0, "moved"), (5, "moved"), (7, "moved"), (10, "moved"), (2, "done")])
def test_detects_a_moved_group_while_it_searches_gaps(entry: int, ends: str) -> None:
    session = searching_gaps()
    session.store.move_group(entry)
    assert how_it_ends(session) == ends


def test_searches_gaps_although_the_broker_is_busy() -> None:
    session = searching_gaps()
    session.store.busy = 2
    assert session.run() == session.expected


# Messages that are too long for the broker's reader of memory


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("limits", [Limits(), Limits(file_entries=3, memory_entries=3), Limits(1, 1, 1, 1)])
def test_reads_a_message_that_is_too_long_for_memory_from_files(number: int, limits: Limits) -> None:
    store = SimulatedStore(limits)
    for entry in range(12):
        store.append(OURS, too_long=entry == number)
        if entry == 5:
            store.swap_blocks()
    session = Session(store, 2 * UNIT, 10 * UNIT, owns_store=True)
    assert session.run() == session.expected
    assert [position for position, _ in session.rows] == [UNIT * n for n in range(2, 10)]
    assert session.asked == (3 if 2 <= number < 10 else session.asked)


def test_reads_a_range_of_messages_that_are_too_long_for_memory() -> None:
    store = SimulatedStore()
    store.append(*[OURS] * 8, too_long=True)
    session = Session(store, 2 * UNIT, 6 * UNIT, owns_store=True)
    assert len(session.run()) == 4
    assert session.rows == session.expected


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


@pytest.mark.parametrize("limits", [Limits(), Limits(file_entries=7, memory_entries=5), Limits(1, 1, 1, 1)])
@pytest.mark.parametrize("flushed", [True, False])
def test_messages_behind_too_many_gaps_have_no_positions(limits: Limits, flushed: bool) -> None:
    """It takes few seeks, and the same messages have positions, however they are fetched."""
    store = store_of(*[OURS] * 20, *[OURS, 8, 9] * 200, limits=limits, flushed=flushed)
    session = Session(store, 5 * UNIT, 610 * UNIT, owns_store=True)
    asked = sought = 0
    while not session.reader.done:
        actions = [command.action for command in session.exchange()]
        sought += actions.count(Action.SEEK)
        asked += actions.count(Action.FIND_FLUSHED_END)
    assert session.rows == session.expected
    assert [position for position, _ in session.rows].index(None) == 15 + 1 + MAX_EMPTY_ENTRIES // 2
    assert sought < 60
    assert asked <= 3


def test_a_range_of_unreadable_entries_is_empty() -> None:
    store = store_of(OURS)
    store.append(OURS, OURS, OURS, unreadable=True)
    store.append(OURS)
    session = Session(store, 1 * UNIT, 4 * UNIT, owns_store=True)
    assert session.run() == []


def test_a_complete_range_does_not_wait_for_a_flush_if_the_store_grew() -> None:
    """The reader assumed that the range ends with the store, and new messages arrived before it proved that."""
    store = SimulatedStore(Limits(memory_entries=100))
    for _ in range(3):
        store.append(OURS)
    session = Session(store, 0, 3 * UNIT, owns_store=True, flushes=False)
    while session.reader._state is not State.CLOSING:
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
