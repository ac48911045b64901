"""The index of stored rows matches each row once, in little memory and in linear time."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict

import pytest

from tubemq_spark.client.producer.send_queue import RecordMetadata
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.stored_rows import StoredRows, StoredRowsOfTask

HERE, THERE = Partition(1, "demo", 0), Partition(2, "demo", 3)


def digest(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"


def location(number: int) -> RecordMetadata:
    return RecordMetadata((HERE, THERE)[number % 2], number, None if number % 3 else number * 28, None)


@pytest.mark.parametrize("run_length", [1, 2, 7, 1 << 18])
@pytest.mark.parametrize("seed", range(8))
def test_each_stored_row_is_matched_once(run_length: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a simple model. A row may be added several times."""
    monkeypatch.setattr("tubemq_spark.sink.stored_rows.RUN_LENGTH", run_length)
    r = random.Random(seed)
    found = StoredRows()
    model: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for number in range(r.choice([0, 1, 5, 40, 120])):
        task, row, kind = r.randrange(3), r.randrange(10), r.randrange(4)
        model[task].setdefault((row, kind), number)
        found.add(task, row, digest(kind), location(model[task][row, kind]))
    assert found.tasks == set(model)
    for task in range(4):
        rows = dict(model[task])
        numbers = {row for row, _ in rows}
        stored_rows = found.of(task)
        assert len(stored_rows) == stored_rows.unmatched == len(rows)
        for _ in range(40):
            row, kind = r.randrange(12), r.randrange(5)
            assert stored_rows.free_number(row) == (row + (1 << 32) if row in numbers else row)
            taken = stored_rows.take(row, digest(kind))
            equal = [one for one in rows if one[1] == kind]
            if taken is None:
                assert not equal
                continue
            number, stored = taken
            assert number == row or (row, kind) not in rows
            assert stored == location(rows.pop((number, kind)))
            assert stored_rows.unmatched == len(rows)
        assert len(stored_rows) == len(model[task])


def test_a_used_number_is_not_free() -> None:
    found = StoredRows()
    for row in (3, 3 + (1 << 32)):
        found.add(0, row, digest(row), location(row))
    assert found.of(0).free_number(3) == 3 + (2 << 32)
    assert found.of(1).free_number(3) == 3


def test_nothing_is_stored() -> None:
    assert not StoredRowsOfTask()
    assert StoredRowsOfTask().take(0, digest(0)) is None
    assert StoredRowsOfTask().free_number(0) == 0


class Counted(int):
    """A number that counts its comparisons."""

    count = 0

    def __lt__(self, other: int) -> bool:
        Counted.count += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Counted.count += 1
        return int(self) > other

    def __eq__(self, other: object) -> bool:
        Counted.count += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("shift", [0, 1, 5000])
def test_equal_rows_take_linear_time(shift: int) -> None:
    """Also if they come in another order."""
    found = StoredRows()
    for row in range(10_000):
        found.add(0, row, digest(1), location(row))
    stored_rows = found.of(0)
    Counted.count = 0
    for row in range(10_000):
        assert stored_rows.take(Counted((row + shift) % 10_001), digest(1)) is not None
    assert stored_rows.unmatched == 0
    assert Counted.count < 10_000 * 40


def test_memory_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubemq_spark.sink.stored_rows.RUN_LENGTH", 2000)
    found = StoredRows()
    tracemalloc.start()
    try:
        for row in range(20_000):
            found.add(0, row, digest(row), location(row))
        stored_rows = found.of(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(stored_rows) == 20_000
    assert peak < 20_000 * 60
    assert stored_rows.take(7, digest(7)) == (7, location(7))
