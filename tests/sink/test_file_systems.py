# SPDX-License-Identifier: Apache-2.0
"""The file of `effectivelyOnce` in real file systems: local ones, an S3 endpoint, HDFS, and those of fsspec."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from tests.clusters.embedded import EmbeddedCluster
from tests.real.hdfs import RealHdfs
from tests.real.jars import MissingTool
from tests.real.s3 import S3
from tests.without_spark.sink import Task, Writing, bodies, schema
from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.batch_state import FILE, StateFile, StateFileError
from tubemq_spark.sink.file_systems import open_remote
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.output_dir import OutputDir
from tubemq_spark.sink.task_attempts import WriteTask

pytestmark = pytest.mark.thorough

LOCAL = ["path", "file:", "relative"]
RENAMING = ["hdfs:", "webhdfs:", "memory:", "s3: by fsspec"]  # a file that exists is removed before
PLACES = [*LOCAL, "s3:", "s3a:", "s3: with its endpoint", *RENAMING]
BUCKET = "checkpoints"

OLD, NEW, NEWER = pa.py_buffer(b"old"), pa.py_buffer(b"the new one"), pa.py_buffer(b"newer")


def need(*modules: str) -> None:
    """Skip the test if a library is not installed; on CI it fails."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"{name} is not installed: make .venv/.filesystems")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    need("moto", "flask", "flask_cors")
    with S3() as running:
        running.create_bucket(BUCKET)
        yield running


@pytest.fixture(scope="module")
def real_hdfs() -> Iterator[RealHdfs]:
    try:
        running = RealHdfs()
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"HDFS needs Java and Maven: {error}")
    with running:
        yield running


@pytest.fixture(autouse=True)
def forget_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are made for the environment of a test."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    open_remote.cache_clear()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how an option names a new folder, with what a user sets besides."""
    name, kind = f"c{uuid.uuid4().hex[:8]}", request.param
    if kind in LOCAL:
        monkeypatch.chdir(tmp_path)
        return {"path": f"{tmp_path}/{name}", "file:": f"file://{tmp_path}/{name}", "relative": name}[kind]
    if kind == "memory:":
        need("fsspec")
        return f"memory://{name}/deep"
    if kind == "webhdfs:":
        need("fsspec", "requests")
        return f"{request.getfixturevalue('real_hdfs').webhdfs}/{name}/deep"
    if kind == "hdfs:":
        if not os.environ.get("ARROW_LIBHDFS_DIR") and not os.environ.get("HADOOP_HOME"):
            pytest.skip("hdfs: needs a Hadoop installation: HADOOP_HOME is not set")
        hdfs = request.getfixturevalue("real_hdfs")
        monkeypatch.setenv("CLASSPATH", hdfs.class_path)
        return f"{hdfs.hdfs}/{name}/deep"
    s3: S3 = request.getfixturevalue("s3")
    for variable, value in s3.environment.items():
        monkeypatch.setenv(variable, value)
    if kind == "s3: by fsspec":
        need("s3fs")
        monkeypatch.setattr(pafs, "FileSystem", WithoutS3)
    if kind == "s3: with its endpoint":
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        address = s3.endpoint.removeprefix("http://")
        return f"s3://{BUCKET}/{name}/deep?endpoint_override={address}&scheme=http"
    return f"{'s3a' if kind == 's3a:' else 's3'}://{BUCKET}/{name}/deep"


class WithoutS3:
    """`FileSystem` of an Arrow that was built without S3."""

    @staticmethod
    def from_uri(uri: str) -> Any:
        raise pa.ArrowNotImplementedError("Got S3 URI but Arrow compiled without S3 support")


def within(folder: str, name: str) -> str:
    """Return a folder in another one."""
    path, question, settings = folder.partition("?")
    return f"{path}/{name}{question}{settings}"


def another_driver(folder: str) -> OutputDir:
    open_remote.cache_clear()
    return OutputDir(folder, "effectivelyOnceLocation")


class KilledError(BaseException):
    """The driver ends here."""


class KilledIn:
    """A file system whose driver is killed when it begins an operation, or at its end."""

    def __init__(self, files: Any, operation: str, *, at_the_end: bool = False) -> None:
        self._files = files
        self._operation = operation
        self._at_the_end = at_the_end

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if name != self._operation:
            return found

        def killed(*arguments: Any, **more: Any) -> None:
            if self._at_the_end:
                done = found(*arguments, **more)
                if hasattr(done, "close"):
                    done.close()  # without content
            raise KilledError

        return killed


def write_and_die(folder: str, content: pa.Buffer, operation: str, *, at_the_end: bool = False) -> None:
    driver = another_driver(folder)
    driver._files = KilledIn(driver._files, operation, at_the_end=at_the_end)
    with pytest.raises(KilledError):
        driver.write(FILE, content)


@pytest.mark.parametrize("folder", PLACES, indirect=True)
def test_a_file_is_replaced(folder: str) -> None:
    state = within(folder, "tubemq")
    for content in (None, OLD, NEW, NEWER, pa.py_buffer(b"")):
        if content is not None:
            another_driver(state).write(FILE, content)
        found = another_driver(state).read(FILE)
        assert found == content
    assert another_driver(folder).names("tubemq") == [FILE]
    assert another_driver(folder).names("missing") == []
    another_driver(state).check()


@pytest.mark.parametrize("folder", PLACES, indirect=True)
def test_a_long_file_is_whole(folder: str) -> None:
    """As the begins of a hundred thousand partitions."""
    content = pa.py_buffer(b"0123456789" * 500_000)
    another_driver(folder).write(FILE, content)
    another_driver(folder).write(FILE, content)
    assert another_driver(folder).read(FILE) == content
    with pytest.raises(ConfigError, match="it has 5000000 bytes; at most 4999999 are read"):
        another_driver(folder).read(FILE, 4_999_999)


@pytest.mark.parametrize("folder", RENAMING, indirect=True)
def test_a_file_is_found_when_the_driver_was_killed_while_it_replaced_it(folder: str) -> None:
    def found() -> pa.Buffer | None:
        return another_driver(folder).read(FILE)

    write_and_die(folder, OLD, "open_output_stream", at_the_end=True)
    assert found() is None  # no file, and not an empty one
    another_driver(folder).write(FILE, OLD)
    write_and_die(folder, NEW, "delete_file")
    assert found() == OLD
    write_and_die(folder, NEW, "move")
    assert found() == NEW
    write_and_die(folder, NEWER, "open_output_stream", at_the_end=True)
    assert found() == NEW
    write_and_die(folder, NEWER, "move")
    assert found() == NEWER
    another_driver(folder).write(FILE, OLD)
    assert found() == OLD
    write_and_die(folder, NEW, "move", at_the_end=True)
    assert found() == NEW


@pytest.mark.parametrize("folder", ["webhdfs:"], indirect=True)
def test_a_name_that_another_driver_takes_meanwhile_is_an_error(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """WebHDFS answers `{"boolean": false}` with status 200 then, and fsspec does not read it."""
    driver, other = another_driver(folder), another_driver(folder)
    driver.write(FILE, OLD)
    handler = driver._files.handler

    def deleted_and_taken(path: str) -> None:
        type(handler).delete_file(handler, path)
        if path.endswith(f"/{FILE}"):
            other._put(path, NEWER)

    monkeypatch.setattr(handler, "delete_file", deleted_and_taken)
    with pytest.raises(ConfigError, match="the file system did not rename the new file"):
        driver.write(FILE, NEW)
    assert other.read(FILE) == NEWER
    folder_name = folder.rpartition("/")[2]
    assert another_driver(folder.rpartition("/")[0]).names(folder_name) == [FILE]


def test_a_server_that_is_away_is_no_missing_file() -> None:
    """fsspec's own checks say that a file is missing then, and the state would begin anew."""
    need("fsspec", "requests")
    with pytest.raises(ConfigError, match=r"cannot be read .*Connection refused"):
        another_driver("webhdfs://me@127.0.0.1:9/folder").read(FILE)


@pytest.mark.parametrize("folder", ["webhdfs:"], indirect=True)
def test_a_folder_of_another_user_is_an_error(folder: str) -> None:
    another_driver(folder).write(FILE, OLD)
    files: Any = another_driver(folder)._files.handler.fs
    files.chmod(another_driver(folder)._path, 700)
    foreign = f"webhdfs://nobody@{folder.partition('@')[2]}"
    with pytest.raises(ConfigError, match=r"cannot be read .*Permission denied: user=nobody"):
        another_driver(foreign).read(FILE)
    with pytest.raises(ConfigError, match=r"cannot be written to .*Permission denied: user=nobody"):
        another_driver(foreign).write(FILE, NEW)
    assert another_driver(folder).read(FILE) == OLD


# Batches


def plan(cluster: EmbeddedCluster, **location: Any) -> Writing:
    """Plan a batch for topic `demo`."""
    return Writing(cluster, schema(), "demo", streaming=True, effectivelyOnce=True, **location)


def write(cluster: EmbeddedCluster, task: Task, **location: str) -> None:
    """Plan, write and commit a batch of one task."""
    planned = plan(cluster, **location)
    planned.commit([planned.write(rows_of(task.batch), task)], task.batch)


def rows_of(batch: int) -> list[dict[str, Any]]:
    return [{"value": b"%d-%d" % (batch, number)} for number in range(20)]


@pytest.mark.parametrize("folder", PLACES, indirect=True)
def test_batches_of_a_query(folder: str, cluster: EmbeddedCluster) -> None:
    task = Task()
    for batch in range(3):
        open_remote.cache_clear()
        write(cluster, replace(task, batch=batch), effectivelyOnceLocation=folder)
    assert bodies(cluster, "demo") == sorted(row["value"] for batch in range(3) for row in rows_of(batch))
    state = StateFile(EffectivelyOnceOptions(folder, "effectivelyOnceLocation", ("demo",))).read()
    assert state is not None
    assert (state.committed, state.query, state.plans) == (2, task.query, 3)
    first, second = (plan(cluster, effectivelyOnceLocation=folder).plan.batch for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.is_first, second.is_first) == (True, False)
    behind = WriteTask(str(task.query), 3, 0, 0)
    assert first.check(behind) is None
    assert second.begins(behind) == first.begins(behind)


@pytest.mark.parametrize("folder", ["file:", "s3a:", "memory:", "hdfs:"], indirect=True)
def test_a_checkpoint_is_found_where_spark_keeps_it(folder: str, cluster: EmbeddedCluster) -> None:
    task = Task()
    with pytest.raises(StateFileError, match="metadata is missing, so this folder is not the checkpoint"):
        write(cluster, task, checkpointLocation=folder)
    another_driver(folder).write("metadata", pa.py_buffer(b"{}"))
    write(cluster, task, checkpointLocation=folder)
    assert another_driver(folder).names("tubemq") == [FILE]


# What it costs in an object store


@pytest.mark.parametrize("folder", ["s3a:"], indirect=True)
def test_a_batch_costs_eight_requests(folder: str, cluster: EmbeddedCluster, s3: S3) -> None:
    """Five of them before its tasks begin: Arrow asks for the size of a file before it reads it."""
    object_name = f"/{folder.partition('://')[2]}/{FILE}"
    read, written = [f"HEAD {object_name}", f"GET {object_name}"], [f"PUT {object_name}"]
    task = Task()
    write(cluster, task, effectivelyOnceLocation=folder)
    s3.requests.clear()
    planned = plan(cluster, effectivelyOnceLocation=folder)
    assert s3.requests == [*read, *read, *written]
    done = planned.write(rows_of(1), task.next())
    s3.requests.clear()
    planned.commit([done], 1)
    assert s3.requests == [*read, *written]
