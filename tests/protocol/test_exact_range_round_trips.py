# SPDX-License-Identifier: Apache-2.0
"""The number of round trips that a range takes, and the fetches in flight."""

from __future__ import annotations

import pytest

from tests.protocol.range_session import (
    OURS,
    PARTITION,
    Session,
    commands_of,
    store_of,
)
from tests.protocol.simulated_store import UNIT, Fetched, Limits, SimulatedStore
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.range_state import Action, Command, State


def test_a_range_to_the_end_of_an_unshared_store_takes_two_round_trips() -> None:
    session = Session(store_of(*[OURS] * 5, flushed=False), 1 * UNIT, 5 * UNIT, owns_store=True)
    assert commands_of(session) == [["SEEK 1", "FETCH"], ["ROLL_BACK", "SEEK 1"]]
    assert session.rows == session.expected


def test_a_range_to_the_end_of_a_shared_store_takes_three_round_trips() -> None:
    session = Session(store_of(OURS, 8, OURS, 8, flushed=False), 0, 4 * UNIT)
    assert commands_of(session) == [["SEEK 0", "FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == session.expected


def test_a_range_that_ends_inside_an_unshared_store_is_cut_by_counting() -> None:
    store = store_of(*[OURS] * 9, limits=Limits(file_entries=3))
    session = Session(store, 1 * UNIT, 5 * UNIT, owns_store=True, depth=1)
    assert commands_of(session) == [["SEEK 1", "FETCH"], ["FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 1"]]
    assert session.rows == session.expected


def test_a_range_that_ends_inside_a_shared_store_is_cut_at_the_next_message() -> None:
    session = Session(store_of(*[OURS, 8] * 9, limits=Limits(file_entries=4)), 0, 5 * UNIT, depth=1)
    assert commands_of(session) == [
        ["SEEK 0", "FETCH"],
        ["FETCH"],
        ["FETCH"],
        ["ROLL_BACK", "SEEK 5", "FETCH"],
        ["ROLL_BACK", "SEEK 0"],
    ]
    assert session.rows == session.expected


def test_a_range_is_cut_at_the_next_message_if_one_reply_has_the_rest_of_the_store() -> None:
    session = Session(store_of(*[OURS, 8] * 9, flushed=False), 0, 5 * UNIT)
    assert commands_of(session) == [
        ["SEEK 0", "FETCH"],
        ["FETCH"],
        ["ROLL_BACK", "SEEK 5", "FETCH"],
        ["ROLL_BACK", "SEEK 0"],
    ]
    assert session.rows == session.expected


def test_a_range_without_messages_ends_with_the_first_reply_from_behind_it() -> None:
    session = Session(store_of(8, 8, 8, 8, *[OURS] * 8, limits=Limits(file_entries=4)), 0, 4 * UNIT, depth=1)
    assert commands_of(session) == [["SEEK 0", "FETCH"], ["FETCH"], ["ROLL_BACK", "SEEK 0"]]
    assert session.rows == []


def test_the_cut_does_not_wait_for_replies_to_earlier_fetches() -> None:
    store = store_of(*[OURS, 8] * 50, limits=Limits(file_entries=4, first_messages=1))
    session = Session(store, 0, 6 * UNIT, depth=4)
    while session.state is not State.CUTTING:
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
