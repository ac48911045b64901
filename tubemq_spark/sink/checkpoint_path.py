"""Normalizes the path of a checkpoint folder.

The brokers know a query by its checkpoint folder. Users may spell a folder in several ways, which Hadoop's `Path` and
file systems treat as the same folder.
"""

from __future__ import annotations

import posixpath
import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")  # a single letter is a drive of Windows
_SAME = {"s3a": "s3", "s3n": "s3", "wasbs": "wasb", "abfss": "abfs", "swebhdfs": "webhdfs"}
_DEFAULT_PORTS = {"hdfs": ":8020", "webhdfs": ":9870"}


def normal_path(text: str) -> str:
    """Return one spelling for all spellings of a folder.

    - `s3a` and `s3n` become `s3`; schemes that only add encryption become those without it.
    - Host and bucket become lower case and lose a default port.
    - Repeated and trailing slashes, `.` and `..` are removed.
    - A folder without a host loses its scheme: `/x`, `file:/x`, `file:///x`, `dbfs:/x` and `hdfs:///x` all become `/x`,
      because `/x` can mean any of them, depending on the cluster's default file system.
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
