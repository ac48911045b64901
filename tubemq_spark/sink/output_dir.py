# SPDX-License-Identifier: Apache-2.0
"""Reads and writes files in a folder on a local disk, in an object store, or in HDFS."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tubemq_spark.client import system
from tubemq_spark.client.clock import SystemClock
from tubemq_spark.errors import ConfigError
from tubemq_spark.peer_text import shown
from tubemq_spark.sink.file_systems import open_remote, without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters or more, because one is a drive of Windows

# An object becomes visible as a whole, and renaming one copies it.
_OBJECT_STORES = {"s3", "gcs", "abfs"}
_LOCAL = "local"  # it alone replaces a file by renaming another one; HDFS does not, and WebHDFS says nothing then


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
        self._shown = without_secrets(location).rstrip("/")
        self._redaction = (rest, without_secrets(rest))
        try:
            self._files, path = open_remote(scheme, rest)
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
            try:
                return self._content(path, most)
            except OSError as problem:  # it is most likely missing; to ask before would be a call more each time
                if not isinstance(problem, FileNotFoundError) and self._files.type_name not in _OBJECT_STORES:
                    raise  # to ask whether it is missing helps little: Arrow takes any error of HDFS for a yes
                found = self._found(name)
                return None if found is None else self._content(found, most)
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
            replaces = self._must_remove(name)
            if not replaces:
                self._files.create_dir(self._path, recursive=True)  # it may be new, or somebody may have removed it
            hidden = f"{self._path}/{_hidden_name(name, replaces)}"
            try:
                self._put(hidden, content)
                if not replaces:
                    self._files.move(hidden, path)
            except Exception:
                with suppress(Exception):
                    self._files.delete_file(hidden)
                raise
            if replaces:  # from here on, the hidden file may be the only one
                self._files.delete_file(path)
                self._files.move(hidden, path)
            if self._files.type_name != _LOCAL and self._has(hidden):
                if self._has(path):  # it is that of another driver
                    self._files.delete_file(hidden)
                raise OSError("the file system did not rename the new file")
        except Exception as problem:
            raise self._error(f"cannot be written to ({name})", problem) from None

    def _content(self, path: str, most: int | None) -> pa.Buffer:
        if most is not None or self._files.type_name == _LOCAL:
            found = self._files.get_file_info(path)
            if found.type == pafs.FileType.NotFound:
                raise FileNotFoundError(path)
            if found.type != pafs.FileType.File:
                raise ValueError("it is no regular file")
            if most is not None and found.size is not None and found.size > most:
                raise ValueError(f"it has {found.size} bytes; at most {most} are read")
        with self._files.open_input_stream(path, compression=None) as stream:
            return stream.read_buffer()

    def _has(self, path: str) -> bool:
        return self._files.get_file_info(path).type != pafs.FileType.NotFound  # type: ignore[no-any-return]

    def _must_remove(self, name: str) -> bool:
        """Return True if file `name` exists and cannot be replaced by renaming another one.

        A file that was to replace it when the driver was killed takes its place before: the next kill may leave an
        unfinished one beside it.
        """
        if self._files.type_name == _LOCAL:
            return False
        path = f"{self._path}/{name}"
        if self._has(path):
            return True
        found = self._found(name)
        if found is not None and found != path:
            self._files.move(found, path)
        return found is not None

    def _found(self, name: str) -> str | None:
        """Return the path of a file, or of the newest one that was to replace it when the driver was killed."""
        path = f"{self._path}/{name}"
        if self._files.type_name in {*_OBJECT_STORES, _LOCAL}:
            return path if self._has(path) else None
        folder, _, own_name = path.rpartition("/")
        # One list has the file or its successor, also if another driver replaces it now.
        names = [one.base_name for one in self._files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))]
        if own_name in names:
            return path
        newest = max((one for one in names if re.fullmatch(_successors(own_name), one)), default=None)
        return newest and f"{folder}/{newest}"

    def _put(self, path: str, content: Any) -> None:
        with self._files.open_output_stream(path, compression=None) as stream:
            stream.write(content)

    def _error(self, what: str, problem: Exception) -> ConfigError:
        reason = shown(" ".join(str(problem).replace(*self._redaction).split())) or type(problem).__name__
        return ConfigError(
            f"option '{self._option}': folder {self._shown!r} {what}: {reason}; name a folder that the driver can read "
            "and write"
        )


def _hidden_name(name: str, replaces: bool) -> str:
    """Return the name of a file that gets `name` when it is whole. Spark and Arrow skip files that begin with a dot.

    Only one that replaces another can be read under this name: that one is removed when it is whole. The names are in
    the order of time, which not all file systems tell.
    """
    when = f"{int(SystemClock().time() * 1e6):017d}." if replaces else ""
    return f".{name}.{when}{system.new_uuid().hex}"


def _successors(name: str) -> str:
    """Return a pattern of the names of files that replace another. Spark's own hidden files do not match it."""
    return rf"\.{re.escape(name)}\.\d{{17}}\.[0-9a-f]{{32}}"
