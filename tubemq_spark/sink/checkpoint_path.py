"""One spelling for each checkpoint folder.

A query is known at the brokers by its checkpoint folder, and users may spell a folder in several ways. Hadoop's `Path`
and file systems take all of them for the same folder.
"""

from __future__ import annotations

import posixpath
import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")  # one letter is a drive of Windows
_SAME = {"s3a": "s3", "s3n": "s3", "wasbs": "wasb", "abfss": "abfs", "swebhdfs": "webhdfs"}
_DEFAULT_PORTS = {"hdfs": ":8020", "webhdfs": ":9870"}


def normal_path(text: str) -> str:
    """The spelling that all spellings of a folder have in common.

    - `s3a` and `s3n` are `s3`; schemes that only add encryption on the way are those without it.
    - Host and bucket are in lower case and have no default port.
    - Repeated and trailing slashes, `.` and `..` are gone.
    - A folder without a host has no scheme: `/x`, `file:/x`, `file:///x`, `dbfs:/x` and `hdfs:///x` are all `/x`,
      because `/x` is any of them, as the cluster's default file system says.
    """
    text = text.strip()
    scheme, separator, rest = text.partition(":")
    if not separator or not _SCHEME.fullmatch(scheme):
        return _clean(text)
    scheme = scheme.lower()
    scheme = _SAME.get(scheme, scheme)
    host = ""
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        host = host.lower().removesuffix(_DEFAULT_PORTS.get(scheme, "\0"))
    path = _clean(rest)
    if not host or (scheme == "file" and host == "localhost"):
        return path
    return f"{scheme}://{host}{path.rstrip('/')}"


def _clean(path: str) -> str:
    if not path:
        return ""
    return re.sub("^//+", "/", posixpath.normpath(path))
