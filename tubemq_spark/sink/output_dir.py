"""A folder anywhere: on a local disk, in an object store, in HDFS. There is no JVM here: the file systems are Arrow's,
and those of fsspec where it is installed."""

from __future__ import annotations

import importlib
import os
import re
import uuid
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tubemq_spark.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters or more: one is a drive of Windows
# Behind the scheme, up to the last `@`, may stand a name and a password, which may have any characters; behind `?` a
# store's settings.
_SECRETS = re.compile(r"(?P<scheme>^(?:[A-Za-z][A-Za-z0-9+.-]+:)?/*).*@|\?.*$", re.DOTALL)
_NOT_OF_HADOOP = {"s3a": "s3", "s3n": "s3"}

# An object is there when all of it is, and to rename one is to copy it.
_OBJECT_STORES = {"s3", "gcs", "abfs"}


class OutputDir:
    """`place` is a path, which is the local machine's, or a URI. As for Spark, paths of `file:` are not
    percent-encoded, and `dbfs:/x` is the local `/dbfs/x`."""

    def __init__(self, place: str, option: str) -> None:
        """`ConfigError` when there is no such file system; errors name the option that says the place."""
        self._option = option
        found = _SCHEME.match(place)
        scheme, rest = (found[1].lower(), place[found.end() :]) if found else ("", place)
        self._shown = place.rstrip("/")
        self._hide = ("", "")  # what not to say, and what instead
        if scheme in ("", "file", "dbfs"):
            path = re.sub(r"^//[^/]*(?=/)", "", rest) if scheme else rest
            self._files: Any = pafs.LocalFileSystem()
            self._path = os.path.abspath(f"/dbfs{path}" if scheme == "dbfs" else path)
            return
        self._shown = _without_secrets(place).rstrip("/")
        self._hide = (rest, _without_secrets(rest))
        try:
            self._files, path = _remote(scheme, rest)
        except Exception as problem:  # libraries of file systems raise what they like
            raise self._error("cannot be used", problem) from None
        self._path = path.rstrip("/")

    def __repr__(self) -> str:
        return f"<Folder {self._shown}>"

    def shown(self, name: str) -> str:
        """A file's place, without secrets."""
        return f"{self._shown}/{name}"

    def check(self) -> None:
        """Makes the folder, if it is not there; `ConfigError` when a file cannot be written to it.

        A file system may have symbolic links, and opening one truncates its target. So the probe has a name there that
        nobody can have prepared. An object store has none, and may forbid removal: there the name is always the same.
        """
        name = ".probe" if self._files.type_name in _OBJECT_STORES else f".probe.{uuid.uuid4().hex}"
        probe = f"{self._path}/{name}"
        try:
            self._files.create_dir(self._path, recursive=True)
            self._put(probe, b"")
        except Exception as problem:
            raise self._error("cannot be written to", problem) from None
        with suppress(Exception):  # it is not read; another query may have removed it, or nobody may remove anything
            self._files.delete_file(probe)

    def read(self, name: str) -> pa.Buffer | None:
        """A file's bytes, None when it is not there; `ConfigError` when it cannot be read."""
        path = f"{self._path}/{name}"
        try:
            if self._files.get_file_info(path).type == pafs.FileType.NotFound:
                return None
            with self._files.open_input_stream(path, compression=None) as stream:
                return stream.read_buffer()
        except Exception as problem:
            raise self._error(f"cannot be read ({name})", problem) from None

    def write(self, name: str, content: pa.Buffer) -> None:
        """Replaces the file or makes it; nobody sees half of it. `ConfigError` when that fails.

        (HDFS does not replace: there is a moment without the file.)
        """
        path = f"{self._path}/{name}"
        try:
            if self._files.type_name in _OBJECT_STORES:
                self._put(path, content)
                return
            self._files.create_dir(self._path, recursive=True)  # someone may have cleared it away
            # Spark and Arrow do not read what has a dot in front.
            hidden = f"{self._path}/.{name}.{uuid.uuid4().hex}"
            try:
                self._put(hidden, content)
                self._files.move(hidden, path)
            except Exception:
                with suppress(Exception):
                    self._files.delete_file(hidden)
                raise
        except Exception as problem:
            raise self._error(f"cannot be written to ({name})", problem) from None

    def _put(self, path: str, content: Any) -> None:
        with self._files.open_output_stream(path, compression=None) as stream:
            stream.write(content)

    def _error(self, what: str, problem: Exception) -> ConfigError:
        reason = " ".join(str(problem).replace(*self._hide).split()) or type(problem).__name__
        said = f"option '{self._option}': folder {self._shown!r} {what}: {reason}"
        return ConfigError(f"{said}; give one that the driver can read and write")


def _remote(scheme: str, rest: str) -> tuple[Any, str]:
    """An Arrow file system and the path in it."""
    uri = f"{_NOT_OF_HADOOP.get(scheme, scheme)}:{rest}"
    try:
        return pafs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:  # unknown to Arrow, or left out of its build
        return _by_fsspec(scheme, uri, problem)


def _by_fsspec(scheme: str, uri: str, problem: Exception) -> tuple[Any, str]:
    """`problem` is why Arrow itself cannot."""
    try:
        files, path = importlib.import_module("fsspec.core").url_to_fs(uri)
    except ImportError:
        if not str(problem).startswith("Unrecognized filesystem type"):
            raise problem from None
        raise ValueError(f"'{scheme}:' is neither known to pyarrow nor to an installed library of fsspec") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(files)), path


def _without_secrets(place: str) -> str:
    return _SECRETS.sub(lambda found: found["scheme"] or "", place)
