"""Receipts, from the rows of tasks to the file of their batch, and the folder it is in."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tubemq_spark.errors import ConfigError
from tubemq_spark.sink import output_dir
from tubemq_spark.sink import receipts as receipts_module
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.receipts import SCHEMA, Receipts, check_folder, write_receipts

ID = "3f6c2c0e-9d1b-4a53-8e55-1f0a4c6f7b11"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIME = 1_790_000_000_123

# row, topic, broker, partition, offset, message id, append time
Landed = tuple[int, str, int, int, int | None, int | None, int | None]


def packed(partition: int, rows: Iterable[Landed]) -> bytes:
    receipts = Receipts(partition)
    for row in rows:
        receipts.add(*row)
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


@pytest.mark.parametrize("parts", [[], [packed(0, []), packed(1, [])]], ids=["no tasks", "tasks without rows"])
def test_an_empty_batch_has_an_empty_file(tmp_path: Path, parts: list[bytes]) -> None:
    assert read(write_receipts(str(tmp_path), ID, 7, parts)) == []


@pytest.mark.parametrize("spark_id", ["", "_hidden", ".hidden", "a/b", "..", "a b"])
def test_ids_that_cannot_name_a_file_are_refused(tmp_path: Path, spark_id: str) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        write_receipts(str(tmp_path), spark_id, 1, [])
    assert os.listdir(tmp_path) == []


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    folder = tmp_path / "receipts"
    check_folder(str(folder))
    folder.rmdir()
    assert read(write_receipts(str(folder), ID, 1, [])) == []


# A batch that is committed again


def test_a_repeated_commit_writes_the_same_file(tmp_path: Path) -> None:
    parts = [packed(1, [landed(1), landed(0)]), packed(0, [landed(0)])]
    content = Path(write_receipts(str(tmp_path), ID, 1, parts)).read_bytes()
    file = Path(write_receipts(str(tmp_path), ID, 1, parts))
    assert file.read_bytes() == content
    assert os.listdir(tmp_path) == [file.name]


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
    ],
)
def test_facts_of_an_earlier_commit_about_the_same_message_are_kept(
    tmp_path: Path, now: Landed, then: Landed, merged: Landed
) -> None:
    write_receipts(str(tmp_path), ID, 1, [packed(3, [then, landed(1)])])
    file = write_receipts(str(tmp_path), ID, 1, [packed(3, [landed(1, offset=84), now])])
    assert read(file) == [*expected(1, 3, [merged, landed(1, offset=84)])]


@pytest.mark.parametrize(
    "now",
    [
        known(None, -6, None),
        known(None, -5, None, broker_id=2),
        known(None, -5, None, partition=3),
    ],
)
def test_facts_about_another_message_are_not_kept(tmp_path: Path, now: Landed) -> None:
    write_receipts(str(tmp_path), ID, 1, [packed(3, [known(28, -5, TIME)])])
    assert read(write_receipts(str(tmp_path), ID, 1, [packed(3, [now])])) == [*expected(1, 3, [now])]


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


def test_facts_about_a_message_without_an_id_are_not_kept(tmp_path: Path) -> None:
    now = known(None, -5, None)
    write_receipts(str(tmp_path), ID, 1, [packed(3, [known(28, None, TIME)])])
    assert read(write_receipts(str(tmp_path), ID, 1, [packed(3, [now])])) == [*expected(1, 3, [now])]


def test_no_row_is_lost_from_the_file(tmp_path: Path) -> None:
    write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0), landed(1)]), packed(2, [landed(0, **UNKNOWN)])])
    file = write_receipts(str(tmp_path), ID, 1, [packed(1, [landed(0)]), packed(0, [landed(2), landed(0, offset=0)])])
    assert read(file) == [
        *expected(1, 0, [landed(0), landed(1), landed(2)]),
        *expected(1, 1, [landed(0)]),
        *expected(1, 2, [landed(0, **UNKNOWN)]),
    ]
    assert read(write_receipts(str(tmp_path), ID, 1, [])) == read(file)


def test_files_of_other_batches_and_ids_do_not_change(tmp_path: Path) -> None:
    one = write_receipts(str(tmp_path), ID, 1, [packed(0, [landed(0)])])
    write_receipts(str(tmp_path), ID, 2, [packed(0, [landed(0, offset=56)])])
    write_receipts(str(tmp_path), ID, None, [packed(0, [landed(0, offset=56)])])
    write_receipts(str(tmp_path), "another", 1, [packed(0, [landed(0, offset=56)])])
    assert read(one) == [*expected(1, 0, [landed(0)])]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "cannot be read"), (b"PAR1 half of a file", "cannot be read"), (None, "has other columns")],
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


class Failing(pafs.FSSpecHandler):  # type: ignore[misc]
    """The local file system with one failing operation."""

    def __init__(self, fails: str) -> None:
        super().__init__(None)
        self._fails = fails
        self._local = pafs.LocalFileSystem()
        self.calls: list[tuple[Any, ...]] = []

    def get_type_name(self) -> str:
        return "failing"

    def _call(self, name: str, *arguments: Any, **others: Any) -> Any:
        self.calls.append((name, *arguments))
        if name == self._fails:
            raise OSError(28, "No space left on device")
        return getattr(self._local, name)(*arguments, **others)

    def get_file_info(self, paths: Any) -> Any:
        return self._local.get_file_info(paths)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._call("create_dir", path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._call("delete_file", path)

    def move(self, src: str, dest: str) -> None:
        self._call("move", src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._call("open_input_stream", path, compression=None)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._call("open_output_stream", path, compression=None)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `odd:<path>` a local path in a file system with one failing operation."""

    def install(fails: str) -> Failing:
        handler = Failing(fails)
        monkeypatch.setattr(output_dir, "_remote", lambda scheme, rest: (pafs.PyFileSystem(handler), rest))
        return handler

    return install


@pytest.mark.parametrize("fails", ["open_output_stream", "move"])
def test_a_failed_write_leaves_no_file(tmp_path: Path, failing: Any, fails: str) -> None:
    """Earlier files stay."""
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


# The folder


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}", "{}/"])
@pytest.mark.parametrize("name", ["receipts", "deep/er", "a b%20c#d?e", "日本"])
def test_local_folders(tmp_path: Path, form: str, name: str) -> None:
    folder = form.format(tmp_path / name)
    check_folder(folder)
    assert os.listdir(tmp_path / name) == []
    file = write_receipts(folder, ID, 1, [packed(0, [landed(0)])])
    assert file == f"{folder.rstrip('/')}/{ID}-0000000001.parquet"
    assert read(tmp_path / name / Path(file).name) == [*expected(1, 0, [landed(0)])]


def test_a_relative_folder_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_receipts("some/where", ID, 1, [])
    assert os.listdir(tmp_path / "some" / "where") == [f"{ID}-0000000001.parquet"]


def test_dbfs_is_a_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Local(pafs.FSSpecHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(None)

        def get_type_name(self) -> str:
            return "local"

        def create_dir(self, path: str, recursive: bool) -> None:
            asked.append(path)
            raise OSError("this is none of Databricks' machines")

    monkeypatch.setattr(pafs, "LocalFileSystem", lambda: pafs.PyFileSystem(Local()))
    for folder in ("dbfs:/a/b", "dbfs:///a/b"):
        with pytest.raises(
            ConfigError,
            match=f"^option 'receipts': folder '{folder}' cannot be written to: this is none of Databricks'",
        ):
            check_folder(folder)
    assert asked == ["/dbfs/a/b"] * 2


@pytest.mark.parametrize("below", ["", "/receipts", "/deep/er"])
def test_a_folder_that_cannot_be_created_is_a_config_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = f"{tmp_path}/file{below}"
    with pytest.raises(
        ConfigError,
        match=f"^option 'receipts': folder '{folder}' cannot be written to: .*; name a folder that the driver can",
    ):
        check_folder(folder)
    with pytest.raises(
        ConfigError,
        match=f"^the rows are stored, but not their receipts: .* folder '{folder}' cannot be",
    ):
        write_receipts(folder, ID, 1, [])
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_folder_that_cannot_be_written_to_is_a_config_error(tmp_path: Path, failing: Any) -> None:
    failing("open_output_stream")
    with pytest.raises(ConfigError, match=r"^option 'receipts': folder 'odd:.*' cannot be written to: .*No space left"):
        check_folder(f"odd:{tmp_path}")


def test_a_folder_that_forbids_removal_is_accepted(tmp_path: Path, failing: Any) -> None:
    failing("delete_file")
    check_folder(f"odd:{tmp_path}")


@pytest.mark.parametrize("form", ["{}", "file:{}", "odd:{}"])
def test_a_prepared_link_is_not_followed(tmp_path: Path, failing: Any, form: str) -> None:
    """Otherwise anybody who can write to the folder could truncate any file of the driver."""
    failing("")
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_text("all that there is")
    folder.mkdir()
    for name in (".probe", f"{ID}-0000000001.parquet"):
        (folder / name).symlink_to(precious)
    check_folder(form.format(folder))
    (folder / f"{ID}-0000000001.parquet").unlink()
    (folder / f"{ID}-0000000001.parquet").symlink_to(tmp_path / "nowhere")
    write_receipts(form.format(folder), ID, 1, [packed(0, [landed(0)])])
    assert precious.read_text() == "all that there is"
    assert sorted(os.listdir(folder)) == sorted([".probe", f"{ID}-0000000001.parquet"])
    assert sorted(os.listdir(tmp_path)) == ["folder", "precious"]


def test_in_an_object_store_the_probe_has_a_fixed_name(
    tmp_path: Path, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some object stores forbid removal."""
    failing("delete_file")
    monkeypatch.setattr(output_dir, "_OBJECT_STORES", {"py::failing"})
    for _ in range(3):
        check_folder(f"odd:{tmp_path}")
    assert os.listdir(tmp_path) == [".probe"]


@pytest.mark.parametrize("folder", ["nowhere://host/folder", "NoWhere:/folder", "kafka+x:folder"])
def test_an_unknown_scheme_is_a_config_error(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)  # as if fsspec were not installed
    scheme = folder.split(":")[0].lower()
    with pytest.raises(ConfigError) as caught:
        check_folder(folder)
    assert str(caught.value) == (
        f"option 'receipts': folder '{folder}' cannot be used: neither pyarrow nor an installed fsspec "
        f"library knows '{scheme}:'; name a folder that the driver can read and write"
    )


@pytest.fixture
def asked_of_fsspec(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Act as if fsspec were installed, without file systems of its own."""
    asked: list[str] = []

    def url_to_fs(uri: str) -> Any:
        asked.append(uri)
        raise ValueError(f"Protocol not known: {uri}")

    core = ModuleType("fsspec.core")
    core.url_to_fs = url_to_fs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fsspec.core", core)
    return asked


def test_fsspec_opens_what_arrow_does_not_know(asked_of_fsspec: list[str]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^option 'receipts': folder 'oss://bucket/folder' cannot be used: Protocol not known: oss://",
    ):
        check_folder("oss://bucket/folder")
    assert asked_of_fsspec == ["oss://bucket/folder"]


@pytest.mark.parametrize("given", ["s3a://bucket/folder", "s3n://bucket/folder", "S3://bucket/folder"])
def test_hadoops_schemes_are_accepted(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Arrow:
        @staticmethod
        def from_uri(uri: str) -> Any:
            asked.append(uri)
            raise OSError("no such bucket")

    monkeypatch.setattr(pafs, "FileSystem", Arrow)
    with pytest.raises(ConfigError, match=f"^option 'receipts': folder '{given}' cannot be used: no such bucket"):
        check_folder(given)
    assert asked == ["s3://bucket/folder"]


@pytest.mark.parametrize("form", ["s3a://me:geheim@bad bucket/folder", "s3://me:geheim@bucket/folder?no=geheim"])
def test_arrow_errors_show_no_passwords(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        ConfigError, match=r"^option 'receipts': folder 's3a?://(bad )?bucket/folder' cannot be"
    ) as caught:
        check_folder(form)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_errors_show_no_passwords(asked_of_fsspec: list[str]) -> None:
    folder = "store://me:geheim@host/folder?token=geheim"
    with pytest.raises(
        ConfigError, match=r"^option 'receipts': folder 'store://host/folder' cannot be used: .*; name"
    ) as caught:
        check_folder(folder)
    assert asked_of_fsspec == [folder]
    assert "geheim" not in "".join(traceback.format_exception(caught.value))
    assert "geheim" not in repr(SinkOptions.from_options({"tubemq.master": "127.0.0.1:8715", "receipts": folder}))


# The option


@pytest.mark.parametrize(("given", "read_as"), [({}, None), ({"receipts": " s3://bucket/a b "}, "s3://bucket/a b")])
def test_the_option_names_the_folder(given: dict[str, str], read_as: str | None) -> None:
    assert SinkOptions.from_options({"tubemq.master": "127.0.0.1:8715", **given}).receipts == read_as


def test_a_blank_option_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^option 'receipts' is ' '; expected a folder: a path of the driver's"):
        SinkOptions.from_options({"tubemq.master": "127.0.0.1:8715", "receipts": " "})
