# SPDX-License-Identifier: Apache-2.0
"""A group that is moved, retention, and a broker that crashes while a range is read."""

from __future__ import annotations

import pytest

from tests.protocol.range_session import (
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
    while session.state is not State.VERIFYING:
        session.exchange()
    session.crash(keep=30, confirmed=4)
    with pytest.raises(DataLossError, match="uses the positions for other messages"):
        session.run()
