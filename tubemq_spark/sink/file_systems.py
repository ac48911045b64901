# SPDX-License-Identifier: Apache-2.0
"""File systems that Python can open without a JVM: those of Arrow, and of fsspec if it is installed."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

# A name and a password of any characters may follow the scheme, up to the last `@`. A store's settings follow `?`.
_SECRETS = re.compile(r"(?P<scheme>^(?:[A-Za-z][A-Za-z0-9+.-]+:)?/*).*@|\?.*$", re.DOTALL)
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_ONE_REQUEST = "allow_delayed_open=true"  # Arrow sends a small object in one request then, instead of three
_HADOOP_TIMEOUT = 60.0  # seconds, for a command that starts Java
_NO_LIBHDFS = (
    "pyarrow opens HDFS with Java and the libhdfs.so of a Hadoop installation, and did not find both: set JAVA_HOME "
    "and HADOOP_HOME. Or name webhdfs://USER@NAMENODE:9870/path, which needs nothing but 'pip install fsspec requests'"
)


class _FsspecFiles(pafs.FSSpecHandler):  # type: ignore[misc]
    """A file system of fsspec. pyarrow's class makes more calls, and takes a server that fails for a missing file."""

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        try:
            paths = self.fs.ls(selector.base_dir, detail=False)
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        return [pafs.FileInfo(path, pafs.FileType.Unknown) for path in paths]

    def open_input_stream(self, path: str) -> Any:
        return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def delete_file(self, path: str) -> None:
        self.fs.rm(path)


@lru_cache(maxsize=8)  # a new client of an object store asks for the bucket's region first
def open_remote(scheme: str, rest: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it. `scheme` is in lower case, `rest` is what follows its colon.
    Libraries of file systems raise errors of any class.
    """
    scheme = _ARROW_SCHEMES.get(scheme, scheme)
    uri = f"{scheme}:{rest}"
    if scheme == "s3":
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):  # Arrow before 21 does not know the parameter
            return pafs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{_ONE_REQUEST}")  # type: ignore[no-any-return]
    if scheme in ("hdfs", "viewfs"):
        _set_class_path()
    try:
        return pafs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:  # Arrow does not know it, or was built without it
        try:
            url_to_fs = importlib.import_module("fsspec.core").url_to_fs
        except ImportError:
            if not str(problem).startswith("Unrecognized filesystem type"):
                raise problem from None
            raise ValueError(f"neither pyarrow nor an installed fsspec library knows '{scheme}:'") from None
    except OSError as problem:
        if "libhdfs" in str(problem) or "libjvm" in str(problem):  # it lists some 80 places where they are not
            raise OSError(_NO_LIBHDFS) from None
        raise
    if not rest.startswith("//"):  # for fsspec, this would be a local path
        raise ValueError(f"'//' is missing behind '{scheme}:'")
    files, path = url_to_fs(uri, use_listings_cache=False)  # another driver may write, too
    return pafs.PyFileSystem(_FsspecFiles(files)), path


def _set_class_path() -> None:
    """Tell libhdfs where the classes of Hadoop are, if the environment does not."""
    home = os.environ.get("HADOOP_HOME")
    command = shutil.which("hadoop") or (home and shutil.which("hadoop", path=os.path.join(home, "bin")))
    if os.environ.get("CLASSPATH") or not command:
        return
    with suppress(OSError, subprocess.SubprocessError):  # then Arrow says what it misses
        done = subprocess.run(
            [command, "classpath", "--glob"],  # libhdfs of Hadoop 2 does not expand `*`
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
            timeout=_HADOOP_TIMEOUT,
        )
        os.environ["CLASSPATH"] = done.stdout.strip()


def without_secrets(location: str) -> str:
    """Return a URI without name and password, and without a store's settings."""
    return _SECRETS.sub(lambda match: match["scheme"] or "", location)
