# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine that need no cluster: Java, and whether Spark's look-up finds the data source."""

from __future__ import annotations

import importlib
import os
import pkgutil
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

from tubemq_spark.checks import FAILED, CheckResult
from tubemq_spark.checks.result import failed, ok, warning
from tubemq_spark.checks.versions import SPARK
from tubemq_spark.errors import TubeMQError

INSTALL_SPARK = f"pip install '{SPARK.requirement}'"  # without its extra `sql`, because nothing here needs pandas
_MIN_JAVA = 17  # for Spark 4
_TRIED_JAVA = (17, 21)  # Spark 4's own documentation names these
_PREFIX = "pyspark_"  # Spark imports all packages with such names, see pyspark.sql.worker.lookup_data_sources
_OWN = "pyspark_tubemq"


class MissingError(TubeMQError):
    """A requirement is not installed."""

    cause = "The command needs a package or a program that is not installed."
    remedy = "Run the command in the text."


def require_spark() -> None:
    """Raise `MissingError` without pyspark, or without a Java that it supports."""
    if find_spec("pyspark") is None:
        raise MissingError(f"pyspark is not installed. Run: {INSTALL_SPARK}")
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # as for an arbitrary user id of a container
        raise MissingError(
            f"Spark does not start for user id {os.geteuid()}, which no entry of /etc/passwd has. Add one: "
            f"echo 'spark:x:{os.geteuid()}:0::/tmp:/bin/false' >> /etc/passwd"
        ) from None
    java = _java()
    if java.state == FAILED:
        raise MissingError(f"Spark does not start with {java.subject}: {java.detail}; {java.remedy}")


def local_checks() -> Iterator[CheckResult]:
    yield _java()
    yield from _discovery()


def _java() -> CheckResult:
    """Check the `java` that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    version = None if program is None else _java_version(program)
    subject = program or "java"
    install = (
        f"install Java {_MIN_JAVA} or later (on Debian: sudo apt-get install openjdk-{_MIN_JAVA}-jre-headless) and put "
        "it on the PATH or in JAVA_HOME"
    )
    if version is None:
        problem = "none was found in JAVA_HOME or on the PATH that prints its version"
        return failed("java", subject, problem, f"{install}; Spark Connect needs none")
    if version < _MIN_JAVA:
        return failed("java", subject, f"it is Java {version}; Spark 4 needs {_MIN_JAVA}", install)
    if version not in _TRIED_JAVA:
        remedy = f"use Java {' or '.join(map(str, _TRIED_JAVA))} if Spark does not start"
        return warning("java", subject, f"Spark 4 was not released for Java {version}", remedy)
    return ok("java", subject, f"Java {version}")


def _java_version(program: str) -> int | None:
    """Return the major version; None when `program` prints none, as Apple's placeholder for Java."""
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return None if match is None else int(match[1])


def _discovery() -> Iterator[CheckResult]:
    """Import what Spark's look-up imports. A package that fails there hides all data sources."""
    if find_spec("pyspark") is None:
        yield failed("discovery", 'format("tubemq")', "pyspark is not installed", INSTALL_SPARK)
        return
    names = [module.name for module in pkgutil.iter_modules() if module.name.startswith(_PREFIX)]
    broken = False
    for name in names:
        try:
            source = importlib.import_module(name).DefaultSource
            assert source is not None
        except Exception as error:  # any error ends Spark's look-up
            broken = True
            yield failed(
                "discovery", name, f"its import fails in Spark's look-up of data sources: {error!r}",
                f"repair or uninstall {name}; or call tubemq_spark.register(spark)",
            )  # fmt: skip
    if _OWN not in names:
        yield failed(
            "discovery", _OWN, "the package is not on the path of this Python",
            "install tubemq-spark again in the environment of this Python",
        )  # fmt: skip
    elif not broken:
        yield ok("discovery", 'format("tubemq")', "Spark's look-up finds it")
