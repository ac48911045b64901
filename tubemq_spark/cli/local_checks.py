# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine that need no cluster: Java, and whether Spark's look-up finds the data source."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec

from tubemq_spark.checks import CheckResult
from tubemq_spark.checks.result import failed, ok, warning
from tubemq_spark.cli.requirements import INSTALL_SPARK, MIN_JAVA, java_program, java_version

_TRIED_JAVA = (17, 21)  # Spark 4's own documentation names these
_PREFIX = "pyspark_"  # Spark imports all packages with such names, see pyspark.sql.worker.lookup_data_sources
_OWN = "pyspark_tubemq"


def local_checks() -> Iterator[CheckResult]:
    yield _java()
    yield from _discovery()


def _java() -> CheckResult:
    program = java_program()
    install = f"install Java {MIN_JAVA} (on Debian: sudo apt-get install openjdk-{MIN_JAVA}-jre-headless)"
    if program is None:
        return failed("java", "java", "none was found in JAVA_HOME or on the PATH", f"{install}; Connect needs none")
    version = java_version(program)
    if version is None:
        return failed("java", program, "it does not print a version", install)
    if version < MIN_JAVA:
        return failed("java", program, f"it is Java {version}; Spark 4 needs {MIN_JAVA}", install)
    if version not in _TRIED_JAVA:
        remedy = f"use Java {' or '.join(map(str, _TRIED_JAVA))} if Spark does not start"
        return warning("java", program, f"Spark 4 was not released for Java {version}", remedy)
    return ok("java", program, f"Java {version}")


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
