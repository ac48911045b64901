# SPDX-License-Identifier: Apache-2.0
"""Reads and writes files in a folder on a local disk, in an object store, or in HDFS.

Python workers have no JVM, so the file systems are Arrow's, and those of fsspec if it is installed.
"""

from __future__ import annotations

import importlib
import os
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tubemq_spark.client import system
from tubemq_spark.errors import ConfigError
from tubemq_spark.peer_text import shown

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters or more, because one is a drive of Windows
# A name and a password of any characters may follow the scheme, up to the last `@`. A store's settings follow `?`.
_SECRETS = re.compile(r"(?P<scheme>^(?:[A-Za-z][A-Za-z0-9+.-]+:)?/*).*@|\?.*$", re.DOTALL)
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}

# An object becomes visible as a whole, and renaming one copies it.
_OBJECT_STORES = {"s3", "gcs", "abfs"}
_REPLACES_BY_RENAMING = {"local"}  # HDFS does not, and WebHDFS says nothing then


class OutputDir:
    """A folder that an option names with a local path or a URI.

    As in Spark, paths of `file:` are not percent-encoded, and `dbfs:/x` is the local `/dbfs/x`.
    """

    def __init__(self, location: str, option: str) -> None:
        """Raise `ConfigError` if there is no such file system. Errors name the `option`."""
        self._option = option
        match = _SCHEME.match(location)
        scheme, rest = (match[1].lower(), location[match.end() :]) if match else ("", location)
        self._shown = location.rstrip("/")
        self._redaction = ("", "")  # what errors must not show, and its replacement
        if scheme in ("", "file", "dbfs"):
            path = re.sub(r"^//[^/]*(?=/)", "", rest) if scheme else rest
            self._files: Any = pafs.LocalFileSystem()
            self._path = os.path.abspath(f"/dbfs{path}" if scheme == "dbfs" else path)
            return
        self._shown = _without_secrets(location).rstrip("/")
        self._redaction = (rest, _without_secrets(rest))
        try:
            self._files, path = _remote(scheme, rest)
        except Exception as problem:  # file system libraries raise errors of any class
            raise self._error("cannot be used", problem) from None
        self._path = path.rstrip("/")

    def __repr__(self) -> str:
        return f"<OutputDir {self._shown}>"

    def shown(self, name: str) -> str:
        """Return the path of file `name`, without secrets."""
        return f"{self._shown}/{name}"

    def check(self) -> None:
        """Create the folder if it is missing. Raise `ConfigError` if no file can be written to it.

        A file system may have symbolic links, and opening one truncates its target. So the probe has a name there that
        nobody can have prepared. An object store has no links but may forbid removal, so its probe has a fixed name.
        """
        name = ".probe" if self._files.type_name in _OBJECT_STORES else f".probe.{system.new_uuid().hex}"
        probe = f"{self._path}/{name}"
        try:
            self._files.create_dir(self._path, recursive=True)
            self._put(probe, b"")
        except Exception as problem:
            raise self._error("cannot be written to", problem) from None
        with suppress(Exception):  # another query may have removed it, or the store forbids removal
            self._files.delete_file(probe)

    def names(self, below: str) -> list[str]:
        """Return the names of what folder `below` has, none if it is missing. Raise `ConfigError` if that fails."""
        try:
            found = self._files.get_file_info(pafs.FileSelector(f"{self._path}/{below}", allow_not_found=True))
        except Exception as problem:
            raise self._error(f"cannot be read ({below})", problem) from None
        return [one.base_name for one in found]

    def read(self, name: str, most: int | None = None) -> pa.Buffer | None:
        """Return the bytes of file `name`, None if it is missing. Raise `ConfigError` if it cannot be read, has more
        than `most` bytes, or is a device or a pipe, which may never end."""
        path = f"{self._path}/{name}"
        try:
            found = self._files.get_file_info(path)
            if found.type == pafs.FileType.NotFound:
                found = self._interrupted(name)
                if found is None:
                    return None
                path = found.path
            if found.type != pafs.FileType.File:
                raise ValueError("it is no regular file")
            if most is not None and found.size is not None and found.size > most:
                raise ValueError(f"it has {found.size} bytes; at most {most} are read")
            with self._files.open_input_stream(path, compression=None) as stream:
                return stream.read_buffer()
        except Exception as problem:
            raise self._error(f"cannot be read ({name})", problem) from None

    def write(self, name: str, content: pa.Buffer) -> None:
        """Create or replace file `name`, so that readers see a whole file. Raise `ConfigError` if that fails.

        HDFS cannot replace a file, so there is a moment without it. If the driver is killed then, `read` finds the new
        one under its hidden name.
        """
        path = f"{self._path}/{name}"
        try:
            if self._files.type_name in _OBJECT_STORES:
                self._put(path, content)
                return
            self._files.create_dir(self._path, recursive=True)  # somebody may have removed it
            hidden = f"{self._path}/{_hidden(name)}{system.new_uuid().hex}"
            try:
                self._put(hidden, content)
                self._files.move(hidden, path)
            except Exception:
                with suppress(Exception):
                    self._files.delete_file(hidden)
                raise
            if self._files.type_name not in _REPLACES_BY_RENAMING:
                self._replace_if_left(hidden, path)
        except Exception as problem:
            raise self._error(f"cannot be written to ({name})", problem) from None

    def _replace_if_left(self, hidden: str, path: str) -> None:
        """Replace the file if the file system has not renamed the hidden one, and has not said so. If this fails, the
        hidden file stays, for `read`."""
        if self._files.get_file_info(hidden).type == pafs.FileType.NotFound:
            return
        self._files.delete_file(path)
        self._files.move(hidden, path)
        if self._files.get_file_info(path).type == pafs.FileType.NotFound:
            raise OSError("the file system did not rename the new file")

    def _interrupted(self, name: str) -> Any:
        """Return the newest file that was to replace `name` when the driver was killed, None if there is none."""
        if self._files.type_name in _OBJECT_STORES | _REPLACES_BY_RENAMING:
            return None
        in_folder = self._files.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        hidden = [one for one in in_folder if one.base_name.startswith(_hidden(name))]
        return max(hidden, key=lambda one: (one.mtime_ns or 0, one.base_name), default=None)

    def _put(self, path: str, content: Any) -> None:
        with self._files.open_output_stream(path, compression=None) as stream:
            stream.write(content)

    def _error(self, what: str, problem: Exception) -> ConfigError:
        reason = shown(" ".join(str(problem).replace(*self._redaction).split())) or type(problem).__name__
        return ConfigError(
            f"option '{self._option}': folder {self._shown!r} {what}: {reason}; name a folder that the driver can read "
            "and write"
        )


def _hidden(name: str) -> str:
    """Return what the names of files begin with that are to replace `name`. Spark and Arrow skip files with a dot."""
    return f".{name}."


@lru_cache(maxsize=8)  # a new client of an object store asks for the bucket's region first
def _remote(scheme: str, rest: str) -> tuple[Any, str]:
    """Return a file system and the path in it."""
    uri = f"{_ARROW_SCHEMES.get(scheme, scheme)}:{rest}"
    try:
        return pafs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:  # Arrow does not know it, or was built without it
        try:
            files, path = importlib.import_module("fsspec.core").url_to_fs(uri)
        except ImportError:
            if not str(problem).startswith("Unrecognized filesystem type"):
                raise problem from None
            raise ValueError(f"neither pyarrow nor an installed fsspec library knows '{scheme}:'") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(files)), path


def _without_secrets(location: str) -> str:
    return _SECRETS.sub(lambda match: match["scheme"] or "", location)
