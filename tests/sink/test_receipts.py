# SPDX-License-Identifier: Apache-2.0
"""Receipts, from the rows of tasks to the file of their batch."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tubemq_spark.client.producer.record_batch import RecordPlaces
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink import output_dir
from tubemq_spark.sink import receipts as receipts_module
from tubemq_spark.sink.receipts import SCHEMA, Receipts, check_folder, write_receipts

ID = "3f6c2c0e-9d1b-4a53-8e55-1f0a4c6f7b11"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIME = 1_790_000_000_123

# row, topic, broker, partition, offset, message id, append time
Landed = tuple[int, str, int, int, int | None, int | None, int | None]


def packed(partition: int, rows: Iterable[Landed]) -> bytes:
    receipts = Receipts(partition)
    for row, topic, broker_id, number, offset, message_id, moment in rows:
        place = Partition(broker_id, topic, number)
        receipts.add([row], RecordPlaces(place, [message_id], [offset], [moment]))  # type: ignore[list-item]
    return receipts.packed()


def expected(batch: int | None, partition: int, rows: Iterable[Landed]) -> Iterator[tuple[Any, ...]]:
    for *place, moment in rows:
        time = None if moment is None else EPOCH + timedelta(milliseconds=moment)
        yield (ID, batch, partition, *place, time)


def read(file: str | Path) -> list[tuple[Any, ...]]:
    table = pq.ParquetFile(file).read()
    assert table.schema.equals(SCHEMA)
    return [tuple(row.values()) for row in table.to_pylist()]


def landed(row: int, **others: Any) -> Landed:
    known = {"topic": "demo", "broker_id": 1, "partition": 0, "offset": 28 * row, "message_id": row, "time": TIME}
    return (row, *(known | others).values())  # type: ignore[return-value]


# Packing

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.integers(0, 253_402_300_799_999)  # to the end of the year 9999
PLACES = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1), INT32, INT32, *[st.none() | INT64] * 2,
    st.none() | MOMENTS,
)  # fmt: skip
TASKS = st.dictionaries(INT32.filter(lambda n: n >= 0), st.dictionaries(st.integers(0, 2**63 - 1), PLACES), max_size=4)


@settings(deadline=None, max_examples=50)
@given(TASKS, st.none() | st.integers(0, 2**63 - 1), st.randoms(use_true_random=False))
def test_the_file_has_all_packed_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, tasks: Any, batch: int | None, random: Any
) -> None:
    rows = {number: [(row, *place) for row, place in task.items()] for number, task in tasks.items()}
    parts = [packed(number, task) for number, task in rows.items()]
    random.shuffle(parts)
    file = write_receipts(str(tmp_path_factory.mktemp("receipts")), ID, batch, iter(parts))
    assert read(file) == [row for number in sorted(rows) for row in expected(batch, number, sorted(rows[number]))]


@pytest.mark.parametrize("sizes", [[10], [4, 4, 4], [1] * 7, [0, 9, 0], [3, 0, 25]], ids=str)
def test_many_rows_are_packed_and_written_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int]
) -> None:
    monkeypatch.setattr(receipts_module, "_SLICE", 3)
    monkeypatch.setattr(receipts_module, "_GROUP", 5)
    tasks = [[landed(row) for row in range(size)] for size in sizes]
    file = write_receipts(str(tmp_path), ID, 0, [packed(number, rows) for number, rows in enumerate(tasks)])
    assert read(file) == [row for number, rows in enumerate(tasks) for row in expected(0, number, rows)]
    groups = pq.ParquetFile(file).metadata
    assert all(groups.row_group(number).num_rows >= 5 for number in range(groups.num_row_groups - 1))


def test_receipts_take_few_bytes() -> None:
    part = packed(0, (landed(row, topic="a_topic_with_a_long_name", time=TIME + row // 50) for row in range(20_000)))
    assert len(part) / 20_000 < 20


# The file


@pytest.mark.parametrize(
    ("batch", "name"), [(None, f"{ID}.parquet"), (0, f"{ID}-0000000000.parquet"), (123, f"{ID}-0000000123.parquet")]
)
def test_each_batch_has_a_file(tmp_path: Path, batch: int | None, name: str) -> None:
    file = write_receipts(f"{tmp_path}/", ID, batch, [packed(0, [landed(0)])])
    assert file == str(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("spark_id", ["", "_hidden", ".hidden", "a/b", "..", "a b"])
def test_ids_that_cannot_name_a_file_are_refused(tmp_path: Path, spark_id: str) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        write_receipts(str(tmp_path), spark_id, 1, [])
    assert os.listdir(tmp_path) == []


# A batch that is committed again


UNKNOWN = {"offset": None, "time": None}


def known(offset: int | None, message_id: int | None, time: int | None, **others: Any) -> Landed:
    return landed(0, **{"topic": "a", "partition": 2} | others, offset=offset, message_id=message_id, time=time)


@pytest.mark.parametrize(
    ("now", "then", "merged"),
    [
        (known(None, -5, None), known(28, -5, TIME), known(28, -5, TIME)),
        (known(None, None, None), known(28, -5, TIME), known(28, -5, TIME)),
        (known(56, -5, None), known(28, -5, TIME), known(56, -5, TIME)),
        (known(None, -5, TIME + 1), known(28, -5, TIME), known(28, -5, TIME + 1)),
        (known(None, -5, None), known(None, -5, TIME), known(None, -5, TIME)),
        (known(None, -6, None), known(28, -5, TIME), None),
        (known(None, -5, None, broker_id=2), known(28, -5, TIME), None),
        (known(None, -5, None, partition=3), known(28, -5, TIME), None),
        (known(None, -5, None), known(28, None, TIME), None),
    ],
)
def test_facts_of_an_earlier_commit_are_kept_only_about_the_same_message(
    tmp_path: Path, now: Landed, then: Landed, merged: Landed | None
) -> None:
    write_receipts(str(tmp_path), ID, 1, [packed(3, [then, landed(1)])])
    file = write_receipts(str(tmp_path), ID, 1, [packed(3, [landed(1, offset=84), now])])
    assert read(file) == [*expected(1, 3, [merged or now, landed(1, offset=84)])]


def test_rows_of_two_topics_may_have_the_same_number(tmp_path: Path) -> None:
    """If rows come in another order, the other topic may have a row of the same number."""
    rows = [known(28, -5, TIME), known(56, -6, TIME, topic="b")]
    for _ in range(2):
        file = write_receipts(str(tmp_path), ID, 1, [packed(3, rows)])
        assert sorted(read(file)) == sorted(expected(1, 3, rows))
    rows[0] = known(None, -5, None)
    assert sorted(read(write_receipts(str(tmp_path), ID, 1, [packed(3, rows)]))) == sorted(
        expected(1, 3, [known(28, -5, TIME), rows[1]])
    )


def test_no_row_is_lost_from_the_file(tmp_path: Path) -> None:
    write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0), landed(1)]), packed(2, [landed(0, **UNKNOWN)])])
    file = write_receipts(str(tmp_path), ID, 1, [packed(1, [landed(0)]), packed(0, [landed(2), landed(0, offset=0)])])
    assert read(file) == [
        *expected(1, 0, [landed(0), landed(1), landed(2)]),
        *expected(1, 1, [landed(0)]),
        *expected(1, 2, [landed(0, **UNKNOWN)]),
    ]
    assert read(write_receipts(str(tmp_path), ID, 1, [])) == read(file)


def parquet_with(name: bytes) -> bytes:
    """Return a file of receipts in which a column has another name; each has eleven bytes."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(write_receipts(folder, ID, 1, [])).read_bytes().replace(b"append_time", name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"PAR1 half of a file", "cannot be read"),
        (parquet_with(b"appen\x80_time"), "cannot be read"),
        (parquet_with(b"append_team"), "has other columns"),
        (None, "has other columns"),
    ],
    ids=["empty", "half", "name that is not text", "another name", "another table"],
)
def test_a_file_without_receipts_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, problem: str
) -> None:
    file = tmp_path / f"{ID}-0000000001.parquet"
    if content is None:
        pq.write_table(pa.table({"a": [1]}), file)
    else:
        file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0)])])
    assert read(file) == [*expected(1, 0, [landed(0)])]
    told = [record.message for record in caplog.records if record.name == receipts_module.__name__]
    assert [problem in text and str(file) in text for text in told] == [True]


# Nobody sees half a file


@pytest.mark.parametrize("fails", ["open_output_stream", "move"])
def test_a_failed_write_leaves_no_file(
    tmp_path: Path, failing: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier files stay."""
    monkeypatch.setattr(output_dir, "_LOCAL", "py::failing")
    file = write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0)])])
    handler = failing(fails)
    with pytest.raises(
        ConfigError,
        match=r"^the rows are stored, .*: folder 'odd:.*' cannot be written to \(.*-0{9}1\.parquet\): .*No space left",
    ):
        write_receipts(f"odd:{tmp_path}", ID, 1, [packed(0, [landed(1)])])
    assert os.listdir(tmp_path) == [Path(file).name]
    assert read(file) == [*expected(1, 0, [landed(0)])]
    written = [arguments[0] for name, *arguments in handler.calls if name == "open_output_stream"]
    assert [Path(path).name[:1] for path in written] == ["."]


def test_an_unreadable_earlier_file_is_not_replaced(tmp_path: Path, failing: Any) -> None:
    file = write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0)])])
    failing("open_input_stream")
    with pytest.raises(
        ConfigError,
        match=r"^the rows are stored, .*: folder 'odd:.*' cannot be read \(.*\): .*No space left",
    ):
        write_receipts(f"odd:{tmp_path}", ID, 1, [packed(0, [landed(1)])])
    assert read(file) == [*expected(1, 0, [landed(0)])]


def test_an_object_is_written_without_a_rename(tmp_path: Path, failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store copies to rename, and shows only whole objects anyway."""
    failing("move")
    monkeypatch.setattr(output_dir, "_OBJECT_STORES", {"py::failing"})
    file = write_receipts(f"odd:{tmp_path}", ID, 1, [packed(0, [landed(0)])])
    assert file == f"odd:{tmp_path}/{ID}-0000000001.parquet"
    assert read(file.removeprefix("odd:")) == [*expected(1, 0, [landed(0)])]


def test_spark_reads_the_folder(tmp_path: Path, spark: SparkSession) -> None:
    check_folder(str(tmp_path))
    parts = [packed(0, [landed(0, time=TIME), landed(1, **UNKNOWN, message_id=None)])]
    whole = Path(write_receipts(str(tmp_path), ID, 1, parts))
    write_receipts(str(tmp_path), ID, 2, [])
    write_receipts(str(tmp_path), "one-write", None, [packed(4, [landed(0, topic="語")])])
    # As a writer leaves it that was killed in the middle.
    (tmp_path / f".{whole.name}.0123").write_bytes(whole.read_bytes()[:100])

    rows = spark.read.parquet(str(tmp_path))
    assert rows.schema.simpleString() == (
        "struct<spark_id:string,spark_batch:bigint,spark_partition:int,spark_row:bigint,topic:string,broker_id:int,"
        "partition:int,offset:bigint,message_id:bigint,append_time:timestamp>"
    )
    found = rows.selectExpr("*", "unix_micros(append_time) micros").drop("append_time").collect()
    assert sorted(map(tuple, found), key=str) == [
        (ID, 1, 0, 0, "demo", 1, 0, 0, 0, TIME * 1000),
        (ID, 1, 0, 1, "demo", 1, 0, None, None, None),
        ("one-write", None, 4, 0, "語", 1, 0, 0, 0, TIME * 1000),
    ]
