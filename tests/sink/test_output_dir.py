# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in other file systems: files are written whole, and errors show no passwords."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from tests.sink.conftest import Failing
from tests.sink.test_receipts import ID, expected, landed, packed, read
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink import output_dir
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.output_dir import OutputDir
from tubemq_spark.sink.receipts import check_folder, write_receipts


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


@pytest.mark.parametrize("folder", ["dbfs:/a/b", "dbfs:///a/b"])
def test_dbfs_is_a_local_folder(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    local = Failing("create_dir")
    monkeypatch.setattr(pafs, "LocalFileSystem", lambda: pafs.PyFileSystem(local))
    with pytest.raises(
        ConfigError, match=f"^option 'receipts': folder '{folder}' cannot be written to: .*No space left"
    ):
        check_folder(folder)
    assert local.calls == [("create_dir", "/dbfs/a/b")]


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


def test_fsspec_opens_what_arrow_does_not_know_and_errors_show_no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if fsspec were installed, without file systems of its own."""
    asked: list[str] = []

    def url_to_fs(uri: str) -> Any:
        asked.append(uri)
        raise ValueError(f"Protocol not known: {uri}")

    monkeypatch.setitem(sys.modules, "fsspec.core", SimpleNamespace(url_to_fs=url_to_fs))
    folder = "store://me:geheim@host/folder?token=geheim"
    with pytest.raises(
        ConfigError,
        match=r"^option 'receipts': folder 'store://host/folder' cannot be used: Protocol not known: store://host/fol",
    ) as caught:
        check_folder(folder)
    assert asked == [folder]
    assert "geheim" not in "".join(traceback.format_exception(caught.value))
    assert "geheim" not in repr(SinkOptions.from_options({"tubemq.master": "127.0.0.1:8715", "receipts": folder}))


@pytest.mark.parametrize("killed_in", ["first move", "second move", "delete_file"])
def test_a_file_that_was_being_replaced_when_the_driver_was_killed_is_read(
    tmp_path: Path, failing: Any, killed_in: str
) -> None:
    """Its file system cannot rename a file onto another one."""

    class KilledError(BaseException):
        pass

    handler: Failing = failing("")
    folder = OutputDir(f"odd:{tmp_path}", "receipts")
    folder.write("state", pa.py_buffer(b"old"))

    def move(src: str, dest: str) -> None:
        moves.append(src)
        if killed_in == ("first move", "second move")[len(moves) - 1]:
            raise KilledError
        if len(moves) == 2:
            Failing.move(handler, src, dest)

    def delete(path: str) -> None:
        if killed_in == "delete_file":
            raise KilledError
        Failing.delete_file(handler, path)

    moves: list[str] = []
    handler.move, handler.delete_file = move, delete  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        folder.write("state", pa.py_buffer(b"new"))
    assert folder.read("state") == pa.py_buffer(b"new" if killed_in == "second move" else b"old")
    del handler.move, handler.delete_file
    folder.write("state", pa.py_buffer(b"newer"))
    assert folder.read("state") == pa.py_buffer(b"newer")


def test_a_file_system_that_renames_nothing_without_a_word_is_an_error(tmp_path: Path, failing: Any) -> None:
    handler = failing("")
    OutputDir(f"odd:{tmp_path}", "receipts").write("state", pa.py_buffer(b"old"))
    handler.move = lambda *_: None
    with pytest.raises(ConfigError, match=r"cannot be written to .*did not rename the new file"):
        OutputDir(f"odd:{tmp_path}", "receipts").write("state", pa.py_buffer(b"new"))
