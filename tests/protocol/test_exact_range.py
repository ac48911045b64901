# SPDX-License-Identifier: Apache-2.0
"""A range returns exactly its messages in order, whatever happens meanwhile, or raises an error that is true."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.range_scenarios import HARMFUL, HARMLESS, check, disturb, scenario, scenarios
from tests.protocol.range_session import (
    OURS,
    PARTITION,
    Session,
    long_session,
)
from tests.protocol.simulated_store import UNIT
from tubemq_spark.errors import DataLossError, ProtocolError
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.range_state import Action, State


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
@given(scenarios, st.sampled_from([state for state in State if state is not State.DONE]))
def test_survives_a_closed_connection_in_any_state(rng: random.Random, state: State) -> None:
    played = scenario(rng, ["append", "race", "swap"])
    session = played.session
    while not session.reader.done and session.state is not state:
        session.step()
    session.disconnect()
    assert played.play() == session.expected


@settings(max_examples=80)
@given(scenarios, st.sampled_from([state for state in State if state is not State.DONE]))
def test_survives_a_broker_crash_in_any_state(rng: random.Random, state: State) -> None:
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


# The table
