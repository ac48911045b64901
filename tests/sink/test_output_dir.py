# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in other file systems: files are written whole, and errors show no passwords."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from tests.sink.conftest import Failing
from tests.sink.test_receipts import ID, expected, landed, packed, read
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink import file_systems, output_dir
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
    assert asked == ["s3://bucket/folder?allow_delayed_open=true"]


def test_an_arrow_that_needs_three_requests_for_an_object_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before release 21 it refuses a parameter that it does not know."""
    asked: list[str] = []

    class Arrow:
        @staticmethod
        def from_uri(uri: str) -> Any:
            asked.append(uri)
            if "allow_delayed_open" in uri:
                raise pa.ArrowInvalid("Unexpected query parameter in S3 URI: 'allow_delayed_open'")
            return pafs.LocalFileSystem(), "bucket/older"

    monkeypatch.setattr(pafs, "FileSystem", Arrow)
    OutputDir("s3://bucket/older?region=here", "receipts")
    assert asked == ["s3://bucket/older?region=here&allow_delayed_open=true", "s3://bucket/older?region=here"]


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

    def url_to_fs(uri: str, **_: object) -> Any:
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


@pytest.mark.parametrize("folder", ["memory:/folder", "webhdfs:folder", "simplecache::memory://folder"])
def test_fsspec_does_not_take_a_uri_for_a_local_path(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", SimpleNamespace(url_to_fs=None))
    with pytest.raises(ConfigError, match=f"cannot be used: '//' is missing behind '{folder.split(':')[0]}:'"):
        check_folder(folder)


def test_a_server_of_fsspec_that_is_away_is_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the state of a query would begin anew, and replace the one that is there."""

    class Away:
        protocol = "away", "AWAY"

        def __getattr__(self, name: str) -> Any:
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setitem(sys.modules, "fsspec.core", SimpleNamespace(url_to_fs=lambda uri, **_: (Away(), "/folder")))
    folder = OutputDir("away://host/folder", "receipts")
    for operation in (folder.read, folder.names):
        with pytest.raises(ConfigError, match=r"cannot be read \(state\): .*Connection refused"):
            operation("state")
    with pytest.raises(ConfigError, match=r"cannot be written to \(state\): .*Connection refused"):
        folder.write("state", pa.py_buffer(b"new"))


class KilledError(BaseException):
    """The driver ends here."""


@pytest.mark.parametrize("killed_in", ["move", "delete_file"])
def test_a_file_that_was_being_replaced_when_the_driver_was_killed_is_read(
    tmp_path: Path, failing: Any, killed_in: str
) -> None:
    """Its file system cannot rename a file onto another one."""

    handler: Failing = failing("")
    folder = OutputDir(f"odd:{tmp_path}", "receipts")
    folder.write("state", pa.py_buffer(b"old"))

    def kill(*_: object) -> None:
        raise KilledError

    setattr(handler, killed_in, kill)
    with pytest.raises(KilledError):
        folder.write("state", pa.py_buffer(b"new"))
    assert folder.read("state") == pa.py_buffer(b"new" if killed_in == "move" else b"old")
    delattr(handler, killed_in)
    folder.write("state", pa.py_buffer(b"newer"))
    assert folder.read("state") == pa.py_buffer(b"newer")


def test_a_file_system_that_renames_nothing_without_a_word_is_an_error(tmp_path: Path, failing: Any) -> None:
    failing("").move = lambda *_: None
    with pytest.raises(ConfigError, match=r"cannot be written to .*did not rename the new file"):
        OutputDir(f"odd:{tmp_path}", "receipts").write("state", pa.py_buffer(b"new"))


def test_a_file_that_no_driver_finished_is_not_read(tmp_path: Path, failing: Any) -> None:
    """A driver is killed between removal and renaming, and the next one while it writes the next file."""
    handler: Failing = failing("")
    folder = OutputDir(f"odd:{tmp_path}", "receipts")

    def killed(*_: object) -> None:
        raise KilledError

    def killed_before_the_content(path: str, _: object) -> None:
        handler._local.open_output_stream(path).close()
        raise KilledError

    def die(content: bytes, operation: str, how: Callable[..., None]) -> None:
        setattr(handler, operation, how)
        with pytest.raises(KilledError):
            folder.write("state", pa.py_buffer(content))
        delattr(handler, operation)

    die(b"1", "open_output_stream", killed_before_the_content)
    assert folder.read("state") is None
    folder.write("state", pa.py_buffer(b"1"))
    die(b"2", "move", killed)
    die(b"3", "open_output_stream", killed_before_the_content)
    assert folder.read("state") == pa.py_buffer(b"2")
    die(b"3", "move", killed)
    assert folder.read("state") == pa.py_buffer(b"3")


def test_what_cannot_be_renamed_is_kept(tmp_path: Path, failing: Any) -> None:
    """Its predecessor is gone then."""
    handler: Failing = failing("")
    folder = OutputDir(f"odd:{tmp_path}", "receipts")
    folder.write("state", pa.py_buffer(b"old"))
    handler._fails = "move"
    with pytest.raises(ConfigError, match="No space left"):
        folder.write("state", pa.py_buffer(b"new"))
    assert folder.read("state") == pa.py_buffer(b"new")


def test_hidden_files_of_spark_are_not_read(tmp_path: Path, failing: Any) -> None:
    failing("")
    (tmp_path / ".metadata.6e7a3c1e-0d1f-4b0e-9a53-0c4e3a3f1c55.tmp").write_text("{}")
    assert OutputDir(f"odd:{tmp_path}", "receipts").read("metadata") is None


# HDFS


def hadoop_command(folder: Path, script: str) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "hadoop").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "hadoop").chmod(0o755)


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return what the class path is when Arrow opens HDFS, None without one."""
    monkeypatch.setenv("CLASSPATH", "")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    seen: list[str | None] = []

    class Arrow:
        @staticmethod
        def from_uri(uri: str) -> Any:
            seen.append(os.environ.get("CLASSPATH") or None)
            raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm/default-java/libjvm.so) failed")

    monkeypatch.setattr(pafs, "FileSystem", Arrow)

    def opened(uri: str = "hdfs://namenode:8020/folder") -> str | None:
        with pytest.raises(ConfigError) as caught:
            check_folder(uri)
        assert str(caught.value) == (
            f"option 'receipts': folder '{uri}' cannot be used: pyarrow opens HDFS with Java and the libhdfs.so of a "
            "Hadoop installation, and did not find both: set JAVA_HOME and HADOOP_HOME. Or name "
            "webhdfs://USER@NAMENODE:9870/path, which needs nothing but 'pip install fsspec requests'; name a folder "
            "that the driver can read and write"
        )
        return seen[-1]

    return opened


@pytest.mark.parametrize("uri", ["hdfs://namenode:8020/folder", "viewfs://cluster/folder"])
@pytest.mark.parametrize("named_by", ["PATH", "HADOOP_HOME"])
def test_the_class_path_of_hdfs_is_that_of_hadoop(
    tmp_path: Path, hdfs: Any, monkeypatch: pytest.MonkeyPatch, uri: str, named_by: str
) -> None:
    hadoop_command(tmp_path, 'test "$*" = "classpath --glob" && echo /a.jar:/b.jar')
    if named_by == "HADOOP_HOME":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    assert hdfs(uri) == "/a.jar:/b.jar"


def test_a_class_path_of_the_environment_stays(tmp_path: Path, hdfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hadoop_command(tmp_path, "echo /a.jar")
    monkeypatch.setenv("CLASSPATH", "/mine.jar")
    assert hdfs() == "/mine.jar"


def test_without_a_hadoop_command_the_error_says_what_to_do(hdfs: Any) -> None:
    assert hdfs() is None


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 10"], ids=["fails", "hangs"])
def test_a_hadoop_command_that_says_nothing_is_ignored(
    tmp_path: Path, hdfs: Any, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(file_systems, "_HADOOP_TIMEOUT", 0.2)
    hadoop_command(tmp_path, script)
    assert hdfs() is None
