# SPDX-License-Identifier: Apache-2.0
"""Checks `python`, `pyspark`, `protobuf`, `pyarrow`, `numpy`, `decoders`, `tubemq-spark`, `pairs`: versions of an
interpreter, and versions that are known not to work together.

The numbers are those of pyproject.toml, of Spark's own requirements, and of the table in noxfile.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tubemq_spark.checks.result import CheckResult, failed, ok, warning
from tubemq_spark.requirements import NEEDED, Range, Version, numbers_of

_Judgement = tuple[Callable[[str, str, str, str], CheckResult], str, str]  # with detail and remedy


class Interpreter(NamedTuple):
    """What `worker_probe.describe` reports of one Python process. A package that is missing has the version None.
    `time` is in seconds since the epoch. `decoders` is the `state` of `protocol.speedups`."""

    host: str
    executable: str
    python: str
    packages: Mapping[str, str | None]
    time: float = 0.0
    decoders: str | None = None

    def text(self, package: str) -> str | None:
        return self.python if package == "python" else self.packages.get(package)

    def version(self, package: str) -> Version | None:
        """Return the version as numbers; None if the package is missing or its import fails."""
        text = self.text(package)
        return None if text is None or text.startswith("import fails") else numbers_of(text)


SPARK = Range("pyspark", (4, 0), (4, 4))
_RANGES = (SPARK, *NEEDED)
_LEAST_PYTHON = (3, 10)
_NO_METADATA = "0.0.0"  # `tubemq_spark.__version__` of a package that pip did not install

# Versions that do not work together, and what to do.
_PAIRS = (
    *(
        (
            Range("pyspark", (4, minor), (4, minor + 1)),
            Range("pyarrow", below=(least,)),
            f"pip install 'pyarrow>={least}': Spark 4.{minor} needs pyarrow {least} or later",
        )
        for minor, least in enumerate((11, 15, 18, 18))
    ),
    (
        Range("pyspark", (4, 3)),
        Range("python", below=(3, 11)),
        "use Python 3.11 or later, or Spark 4.2: Spark 4.3 needs Python 3.11 or later",
    ),
    (
        Range("pyarrow", below=(16,)),
        Range("numpy", (2,)),
        "pip install 'numpy<2', or a newer pyarrow: pyarrow before 16 cannot use numpy 2",
    ),
    (
        Range("pyspark", below=(4, 4)),
        Range("pandas", (3,)),
        "pip install 'pandas<3': Spark up to 4.3 warns of pandas 3 and is not tested with it",
    ),
)


def check_versions(found: Interpreter) -> list[CheckResult]:
    """Return the results for one interpreter by itself."""
    is_old = (found.version("python") or ()) < _LEAST_PYTHON
    judge, remedy = (failed, "use Python 3.10 or later") if is_old else (ok, "")
    results = [judge("python", found.executable, f"Python {found.python}", remedy)]
    results += [_package(one, found) for one in _RANGES]
    if found.decoders is not None:
        judge, remedy = ok, ""
        if "cannot be used" in found.decoders:
            judge, remedy = warning, "install tubemq-spark-speedups in the version of tubemq-spark, or remove it"
        results.append(judge("decoders", found.executable, f"replies are decoded {found.decoders}", remedy))
    for one, other, remedy in _PAIRS:
        if one.has(found.version(one.package)) and other.has(found.version(other.package)):
            versions = " with ".join(f"{name} {found.text(name)}" for name in (one.package, other.package))
            results.append(warning("pairs", f"{one.package} and {other.package}", versions, remedy))
    return results


def check_same(found: Interpreter, driver: Interpreter, *, shipped: bool = False) -> Iterator[CheckResult]:
    """Yield the results for an interpreter of tasks, compared with the driver's: Python, and this package, which may be
    `shipped` to it."""
    if numbers_of(found.python)[:2] != numbers_of(driver.python)[:2]:
        yield failed(
            "python",
            found.executable,
            f"Python {found.python}, the driver runs {driver.python}: Spark refuses tasks of another minor release",
            "set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to the same release of Python on all nodes",
        )
    judge, problem, remedy = (_shipped if shipped else _same)(found, driver)
    yield judge("tubemq-spark", "tubemq-spark", problem, remedy)


def _shipped(found: Interpreter, driver: Interpreter) -> _Judgement:
    theirs, ours = found.packages.get("tubemq_spark"), driver.packages.get("tubemq_spark")
    others = "" if theirs in {None, ours} else f"; {theirs}, which is installed on {found.host}, is not used"
    return ok, f"{ours} travels from the driver{others}", ""


def _same(found: Interpreter, driver: Interpreter) -> _Judgement:
    theirs, ours = found.packages.get("tubemq_spark"), driver.packages.get("tubemq_spark")
    if theirs is None:
        return (
            failed,
            f"{found.executable} on {found.host} does not have the package",
            f"call tubemq_spark.register(spark, ship=True), or install tubemq-spark {ours} there, on each node",
        )
    if theirs.startswith("import fails"):
        return failed, theirs, f"install tubemq-spark {ours} and its requirements there again"
    if theirs == _NO_METADATA != ours:
        return (
            warning,
            f"on {found.host} it is imported from an archive or a folder, so its version is unknown",
            f"make sure that it is {ours}, or install that version in the environment on each node",
        )
    if theirs != ours:
        return (
            failed,
            f"{theirs} on {found.host}, but the driver has {ours}",
            f"call tubemq_spark.register(spark, ship=True), or install tubemq-spark {ours} in each environment, and "
            "restart the executors",
        )
    return ok, f"{theirs} is installed, as on the driver", ""


def _package(one: Range, found: Interpreter) -> CheckResult:
    name, text, version = one.shown, found.text(one.package), found.version(one.package)
    remedy = f"pip install '{one.requirement}' in the environment of {found.executable}"
    if text is None:
        return failed(name, name, "it is not installed", remedy)
    if version is None:
        return failed(name, name, text, f"{remedy}, or repair the installation")
    if one is SPARK:
        remedy = f"use {one.requirement}" if version >= one.least else "use Spark 4.0 or later"
        if (3, 5) <= version < one.least:
            problem = f"{text} has Python data sources only on platforms that added them"
            return warning(name, name, problem, f"{remedy}, unless format('tubemq') is found here")
        if one.least <= version < (4, 2):
            return ok(name, name, f"{text}, without read limits: these came with Spark 4.2")
    if version < one.least:
        return failed(name, name, f"{text} is too old", remedy)
    if not one.has(version):
        return warning(name, name, f"{text} is newer than what was tested", remedy)
    return ok(name, name, text)
