# SPDX-License-Identifier: Apache-2.0
"""A group that is moved, retention, and a broker that crashes while a range is read."""

from __future__ import annotations

import pytest

from tests.protocol.range_session import (
    MOVES,
    OURS,
    PARTITION,
    Session,
    long_session,
    store_of,
)
from tests.protocol.simulated_store import UNIT, Limits
from tubemq_spark.errors import DataLossError, PositionMovedError
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.range_state import State


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("exchanges", range(1, 5))
def test_detects_a_moved_group(exchanges: int, name: str) -> None:
    session = long_session()
    for _ in range(exchanges):
        session.exchange()
    assert session.state is State.READING
    assert session.store.move_group(MOVES[name])
    with pytest.raises(PositionMovedError, match=r"3:demo:7.*\[112, 560\)"):
        session.run()


@pytest.mark.parametrize("name", MOVES)
def test_detects_a_group_moved_between_the_last_fetch_and_its_proof(name: str) -> None:
    session = long_session()
    while session.state is not State.CLOSING:
        session.exchange()
    assert session.store.move_group(MOVES[name])
    with pytest.raises(PositionMovedError):
        session.run()


def test_detects_a_group_moved_while_it_searches_the_cut() -> None:
    """The fetch after the seek to the end begins elsewhere."""
    session = Session(store_of(*[OURS] * 20, limits=Limits(file_entries=8)), 0, 5 * UNIT, depth=1)
    while session.state is not State.CUTTING:
        session.exchange()
    session.send()
    session.handle()
    session.handle()
    assert session.store.move_group(15)
    with pytest.raises(PositionMovedError, match="a fetch began at 420, but the one before it ended at 140"):
        session.run()


def test_detects_a_group_reset_to_its_own_position_by_repeated_messages() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(4)
    with pytest.raises(PositionMovedError):
        session.run()


@pytest.mark.parametrize("name", MOVES)
def test_a_new_reading_undoes_a_move_if_nothing_was_delivered_after_it(name: str) -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(MOVES[name])
    session.send()
    session.handle()
    session.receive()
    session.disconnect()
    assert session.run() == session.expected


def test_messages_skipped_before_a_disconnect_fail_the_range() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    assert session.store.move_group(15)
    while len(session.rows) < 8:
        session.exchange()
    session.disconnect()
    with pytest.raises(PositionMovedError, match="in another order"):
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


def test_wrong_positions_delivered_before_a_disconnect_fail_the_range() -> None:
    """The group moves back by as many entries as have no message, so that they seem to have one."""
    store = store_of(OURS, OURS, limits=Limits(memory_entries=5), flushed=False)
    store.append(OURS, unreadable=True)
    store.append(*[OURS] * 4)
    session = Session(store, 0, 7 * UNIT, owns_store=True)
    session.exchange()
    assert store.move_group(4)
    session.exchange()
    assert [position for position, _ in session.rows] == [0, 28, 56, 84]
    session.disconnect()
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


def test_the_loss_begins_at_the_position_before_the_store_grew() -> None:
    reader = ExactRange(PARTITION, 10 * UNIT, 20 * UNIT, owns_store=True)
    reader.commands()
    with pytest.raises(DataLossError) as caught:
        reader.on_seek(5 * UNIT, 6 * UNIT)
    assert (caught.value.asked, caught.value.offered) == (20 * UNIT, 5 * UNIT)


def test_a_tail_lost_behind_the_range_is_no_loss() -> None:
    session = long_session()
    session.exchange()
    session.crash(keep=20, confirmed=0)
    session.store.append(OURS)
    assert session.run() == session.expected


@pytest.mark.parametrize("refill", [10, 19, 40])
@pytest.mark.parametrize("confirmed", [0, 4])
def test_reused_positions_are_a_loss_if_they_were_delivered(refill: int, confirmed: int) -> None:
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


def test_positions_reused_before_they_were_read_are_read_as_they_are() -> None:
    session = long_session()
    session.exchange()
    session.exchange()
    session.crash(keep=11, confirmed=0)
    session.store.append(*[OURS] * 40)
    assert session.run() == session.expected
    assert session.rows[-1][1].messageId < session.rows[0][1].messageId


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
    while session.state is not State.VERIFYING:
        session.exchange()
    session.crash(keep=30, confirmed=4)
    with pytest.raises(DataLossError, match="uses the positions for other messages"):
        session.run()
