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
from tubemq_spark.protocol.range_state import Action, State


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
