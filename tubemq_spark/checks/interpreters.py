# SPDX-License-Identifier: Apache-2.0
"""Check `interpreter`: the Python that Spark starts for workers, without Spark.

Workers use PYSPARK_PYTHON, else `python3` on the PATH. Spark looks for data sources with PYSPARK_DRIVER_PYTHON if that
is set, and plans and runs what it found with that program, too. If it is not a Python, such as `jupyter`, the look-up
fails. What `register` registered runs with PYSPARK_PYTHON (tried on Spark 4.3 in client mode).
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
from collections.abc import Iterator

from tubemq_spark.checks import worker_probe
from tubemq_spark.checks.result import OK, CheckResult, failed, ok, warning
from tubemq_spark.checks.versions import Interpreter, check_same, check_versions

_SECONDS = 60.0  # an interpreter that imports pyarrow and pandas from a cold disk takes long


def this_interpreter() -> Interpreter:
    return Interpreter(**worker_probe.describe())


def check_variables() -> CheckResult:
    """Return the result for PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON, which may name different interpreters."""
    workers = _workers_python()
    discovered = os.environ.get("PYSPARK_DRIVER_PYTHON") or workers
    if _path(discovered) == _path(workers):
        return ok("interpreter", "variables", f"workers run {workers}")
    return warning(
        "interpreter",
        "PYSPARK_DRIVER_PYTHON",
        f"it is {discovered}, but PYSPARK_PYTHON is {workers}: the source that Spark finds runs with the first",
        "call tubemq_spark.register(spark), whose tasks run with PYSPARK_PYTHON, or set both to one Python",
    )


def _workers_python() -> str:
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def _path(command: str) -> str:
    return os.path.realpath(shutil.which(command) or command) if os.path.sep not in command else command


def check_workers(driver: Interpreter) -> Iterator[CheckResult]:
    """Start the interpreter that workers of this environment would run, and yield the results for it. `driver` is that
    of this process."""
    command = _workers_python()
    subject = f"workers' {command}"
    path = shutil.which(command)
    remedy = "set PYSPARK_PYTHON to the absolute path of the Python that has tubemq-spark, the same on all nodes"
    if path is None:
        yield failed("interpreter", subject, "there is no such program", remedy)
        return
    try:
        found = describe(path)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        yield failed("interpreter", subject, f"it does not run as a Python interpreter: {error}", remedy)
        return
    results = [*check_versions(found), *check_same(found, driver)]
    # Spark itself gives its workers pyspark, which another process may not see.
    bad = [one for one in results if one.state != OK and (one.check != "pyspark" or found.version("pyspark"))]
    for result in bad:
        advice = result.remedy if "PYSPARK_PYTHON" in os.environ else f"{remedy}; or {result.remedy}"
        yield result._replace(subject=f"{subject}: {result.subject}", remedy=advice)
    if not bad:
        yield ok("interpreter", subject, f"Python {found.python} with the same tubemq-spark")


def describe(python: str) -> Interpreter:
    """Return what the program `python` has installed. Raise `OSError`, `SubprocessError`, `ValueError` or `TypeError`
    if it is not a Python interpreter that answers."""
    source = inspect.getsource(worker_probe)
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, timeout=_SECONDS, check=True)
    return Interpreter(**json.loads((done.stdout.strip().splitlines() or [""])[-1]))
