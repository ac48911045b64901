# SPDX-License-Identifier: Apache-2.0
"""What a Python process has installed: run as a program in another interpreter, or by its source in a task.

It must work where this package is missing or old, so it imports nothing but the standard library at the top.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import socket
import sys
import time
from typing import Any

# An import shows more than what pip noted.
IMPORTED = ("tubemq_spark", "pyspark", "google.protobuf", "pyarrow", "numpy")


def describe() -> dict[str, Any]:
    """Return host, interpreter, time (seconds since the epoch), what decodes replies, and the version of each package;
    None if it is missing, the error if its import fails."""
    found = {name: _imported(name) for name in IMPORTED}
    if hasattr(sys.modules.get("tubemq_spark"), "__shipped__"):  # the driver's, from an earlier task
        found["tubemq_spark"] = _noted("tubemq-spark")
    found["pandas"] = _noted("pandas")  # importing it takes long
    return {
        "host": platform.node(),
        "executable": sys.executable,
        "python": platform.python_version(),
        "time": time.time(),
        "packages": found,
        "decoders": _decoders(),
    }


def _decoders() -> str | None:
    """Return what decodes replies, None if this package is missing or old."""
    try:
        return str(importlib.import_module("tubemq_spark.protocol.speedups").state)
    except Exception:
        return None


def _noted(name: str) -> str | None:
    """Return the version that pip has noted."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _imported(name: str) -> str | None:
    try:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        return f"import fails: {error}"
    except Exception as error:
        return f"import fails: {type(error).__name__}: {error}"


def try_connect(host: str, port: int, seconds: float) -> str | None:
    """Return why a TCP connection cannot be made, None if it can."""
    try:
        socket.create_connection((host, port), seconds).close()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return None


if __name__ == "__main__":
    print(json.dumps(describe()))
