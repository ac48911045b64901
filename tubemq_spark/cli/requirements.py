"""What a command needs and pip or the system must bring: each is looked for, and asked for in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec

from tubemq_spark.errors import TubeMQError

INSTALL_SPARK = "pip install 'pyspark>=4.0,<4.4'"  # without its extra `sql`: nothing here needs pandas
LEAST_JAVA = 17  # that Spark 4 runs on


class MissingError(TubeMQError):
    """Something that has to be installed first is not there."""


def need_rich() -> None:
    """`MissingError` without the package `rich`."""
    if find_spec("rich") is None:
        raise MissingError("the package rich is not installed: pip install 'rich>=13.7'")


def need_spark() -> None:
    """`MissingError` without pyspark, or without a Java that it can run on."""
    if find_spec("pyspark") is None:
        raise MissingError(f"pyspark is not installed: {INSTALL_SPARK}")
    program = java_program()
    version = None if program is None else java_version(program)
    if version is None or version < LEAST_JAVA:
        found = "none was found" if version is None else f"{program} is {version}"
        raise MissingError(
            f"Spark needs Java {LEAST_JAVA} or later, and {found}: install one (on Debian: sudo apt-get install "
            f"openjdk-{LEAST_JAVA}-jre-headless) and have it on the PATH or in JAVA_HOME"
        )


def java_program() -> str | None:
    """The `java` that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def java_version(program: str) -> int | None:
    """The major version; None when `program` does not tell it, as Apple's placeholder for a Java does not."""
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return None if match is None else int(match[1])
