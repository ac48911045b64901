# SPDX-License-Identifier: Apache-2.0
"""Requirements of commands that pip or the system must install; an error says how to install a missing one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec

from tubemq_spark.checks.versions import SPARK
from tubemq_spark.errors import TubeMQError

INSTALL_SPARK = f"pip install '{SPARK.requirement}'"  # without its extra `sql`, because nothing here needs pandas
MIN_JAVA = 17  # for Spark 4


class MissingError(TubeMQError):
    """A requirement is not installed."""

    cause = "The command needs a package or a program that is not installed."
    remedy = "Run the command in the text."


def require_spark() -> None:
    """Raise `MissingError` without pyspark, or without a Java that it supports."""
    if find_spec("pyspark") is None:
        raise MissingError(f"pyspark is not installed. Run: {INSTALL_SPARK}")
    program = java_program()
    version = None if program is None else java_version(program)
    if version is None or version < MIN_JAVA:
        found = "none was found" if version is None else f"{program} is {version}"
        raise MissingError(
            f"Spark needs Java {MIN_JAVA} or later, but {found}. Install it (on Debian: sudo apt-get install "
            f"openjdk-{MIN_JAVA}-jre-headless) and put it on the PATH or in JAVA_HOME"
        )


def java_program() -> str | None:
    """Return the path of the `java` that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def java_version(program: str) -> int | None:
    """Return the major version; None when `program` prints none, as Apple's placeholder for Java."""
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return None if match is None else int(match[1])
