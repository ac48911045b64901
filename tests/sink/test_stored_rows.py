# SPDX-License-Identifier: Apache-2.0
"""The index of stored rows matches each row once, in little memory and in linear time."""

from __future__ import annotations

import random
import resource
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tubemq_spark.client.producer.record_batch import RecordMetadata
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.stored_rows import StoredRows, TemporaryFolderError

HERE, THERE = Partition(1, "demo", 0), Partition(2, "demo", 3)


def digest(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"


def location(number: int) -> RecordMetadata:
    return RecordMetadata((HERE, THERE)[number % 2], number, None if number % 3 else number * 28)


@pytest.mark.parametrize("inserted", [1, 7, 1000], ids=lambda rows: f"{rows} at a time")
@pytest.mark.parametrize("seed", range(8))
def test_each_stored_row_is_matched_once(inserted: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a simple model. A row may be added several times."""
    monkeypatch.setattr("tubemq_spark.sink.stored_rows.INSERTED", inserted)
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
        assert stored_rows.unmatched == stored_rows.count_others() == len(rows)
        kinds_taken: set[int] = set()
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
            kinds_taken.add(kind)
            assert stored_rows.count_others() == (
                sum(one not in kinds_taken for _, one in rows) if len(numbers) < len(model[task]) else len(rows)
            )


def test_a_used_number_is_not_free() -> None:
    found = StoredRows()
    for row in (3, 3 + (1 << 32)):
        found.add(0, row, digest(row), location(row))
    assert found.of(0).free_number(3) == 3 + (2 << 32)
    assert found.of(1).free_number(3) == 3


@pytest.mark.parametrize("number", [0, 2**63, 2**64 - 1])
def test_any_digest_may_be_stored(number: int) -> None:
    found = StoredRows()
    found.add(0, 5, f"{number:016x}", location(5))
    stored_rows = found.of(0)
    assert stored_rows.take(1, f"{number ^ 1:016x}") is None
    assert stored_rows.take(1, f"{number:016x}") == (5, location(5))


def test_each_attempt_in_this_process_gets_all_rows() -> None:
    """Spark may run a task again in the worker that knows the rows of the batch."""
    found = StoredRows()
    found.add(0, 5, digest(1), location(5))
    for _ in range(2):
        stored_rows = found.of(0)
        assert stored_rows.unmatched == 1
        assert stored_rows.take(5, digest(1)) == (5, location(5))
        assert stored_rows.take(5, digest(1)) is None


@pytest.mark.parametrize("shift", [0, 1, 5000])
def test_equal_rows_take_linear_time(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they come in another order, and if more come than are stored."""
    steps = 0

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        def count() -> None:
            nonlocal steps
            steps += 100

        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(count, 100)  # is called after each 100 steps of SQLite's virtual machine
        return connection

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", counted)
    found = StoredRows()
    for row in range(3000):
        found.add(0, row, digest(1), location(row))
    stored_rows = found.of(0)
    steps = 0
    taken = [stored_rows.take((row + shift) % 3001, digest(1)) for row in range(6000)]
    assert len({number for number, _ in filter(None, taken)}) == 3000
    assert stored_rows.unmatched == 0
    assert 0 < steps < 6000 * 100


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process in /proc")
def test_memory_does_not_grow_with_the_rows() -> None:
    """In a process of its own, whose memory nothing else takes."""
    code = """
import resource
from pathlib import Path
from tubemq_spark.sink import stored_rows
from tests.sink.test_stored_rows import digest, location

stored_rows.MEMORY = 1 << 20
found = stored_rows.StoredRows()

def fill(rows):
    for row in rows:
        found.add(0, row, digest(row), location(row))

def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

fill(range(2000))
before = memory()
fill(range(2000, 200_000))
stored = found.of(0)
assert stored.unmatched == 200_000 and stored.take(7, digest(7)) == (7, location(7))
print(memory() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 200_000 * 40


def test_an_index_that_outgrows_its_disk_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tubemq_spark.sink.stored_rows.MEMORY", 1 << 12)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    stored = StoredRows()

    def add_rows() -> None:
        for number in range(10_000):
            stored.add(0, number, digest(number), location(number))

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, most[1]))
        with pytest.raises(TemporaryFolderError, match=r"cannot write into .*: .*\. Make room there, or set TMPDIR"):
            add_rows()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
