# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.range_state import MAX_EMPTY_ENTRIES, EntryCount, ReadCursor


def test_the_first_fetch_begins_exactly_at_the_seek() -> None:
    cursor = ReadCursor(owns_store=False, position=10 * UNIT)
    assert cursor.can_begin_at(10 * UNIT)
    assert not cursor.can_begin_at(11 * UNIT)
    assert not cursor.can_begin_at(9 * UNIT)


def test_a_later_fetch_begins_behind_the_messages_before_it() -> None:
    cursor = ReadCursor(owns_store=False, position=0)
    cursor.fetched(0, messages=3)
    assert not cursor.can_begin_at(2 * UNIT)
    assert cursor.can_begin_at(3 * UNIT)
    assert cursor.can_begin_at(7 * UNIT)  # entries of other partitions lie between them


def test_three_passed_blocks_reach_the_end() -> None:
    cursor = ReadCursor(owns_store=False, position=0)
    reached = []
    for _ in range(3):
        cursor.passed()
        reached.append(cursor.passed_the_end)
    assert reached == [False, False, True]
    cursor.seek(0)
    assert not cursor.passed_the_end


def test_estimates_fetches_by_the_length_of_the_last_one() -> None:
    cursor = ReadCursor(owns_store=True, position=0)
    assert cursor.fetches_to(4000 * UNIT) == 1
    assert cursor.fetches_to(4001 * UNIT) == 2
    cursor.fetched(0, messages=10)
    assert cursor.fetches_to(30 * UNIT) == 2
    assert cursor.fetches_to(10 * UNIT) == 1


def test_positions_end_behind_too_many_empty_entries() -> None:
    entries = EntryCount(owns_store=True)
    found = []
    for more in (MAX_EMPTY_ENTRIES, 1):
        entries.add_empty(more)
        found.append((entries.has_positions, entries.most_empty))
    entries.restart()
    found.append((entries.has_positions, entries.most_empty))
    assert found == [(True, 0), (False, -1), (True, MAX_EMPTY_ENTRIES)]
