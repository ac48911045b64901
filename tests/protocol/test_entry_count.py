from __future__ import annotations

import pytest

from tubemq_spark.protocol.entry_count import MAX_EMPTY_ENTRIES, EntryCount


@pytest.mark.parametrize("owns_store", [True, False])
def test_only_the_partition_of_an_unshared_store_has_positions(owns_store: bool) -> None:
    assert EntryCount(owns_store).has_positions is owns_store


def test_positions_end_behind_too_many_empty_entries() -> None:
    entries = EntryCount(owns_store=True)
    found = []
    for more in (MAX_EMPTY_ENTRIES, 1):
        entries.add_empty(more)
        found.append((entries.has_positions, entries.most_empty))
    entries.restart()
    found.append((entries.has_positions, entries.most_empty))
    assert found == [(True, 0), (False, -1), (True, MAX_EMPTY_ENTRIES)]
