# SPDX-License-Identifier: Apache-2.0
"""Checks `python`, `pyspark`, `protobuf`, `pyarrow`, `numpy`, `tubemq-spark`, `pairs`: versions of an interpreter, and
versions that are known not to work together.

The numbers are those of pyproject.toml, of Spark's own requirements, and of the table in scripts/matrix.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tubemq_spark.checks.result import CheckResult, failed, ok, warning

Version = tuple[int, ...]


def numbers_of(text: str) -> Version:
    """Return the leading numbers of a version, such as (4, 1, 2) of `4.1.2.dev0`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _text(version: Version) -> str:
    return ".".join(map(str, version))


@dataclass(frozen=True)
class Interpreter:
    """What `worker_probe.describe` tells of one Python process. A package that is missing has the version None.
    `time` is in seconds since the epoch."""

    host: str
    executable: str
    python: str
    packages: Mapping[str, str | None]
    time: float = 0.0

    @classmethod
    def from_report(cls, report: Mapping[str, object]) -> Interpreter:
        packages = report["packages"]
        assert isinstance(packages, Mapping)
        return cls(
            str(report["host"]),
            str(report["executable"]),
            str(report["python"]),
            dict(packages),
            float(str(report["time"])),
        )

    def version(self, package: str) -> Version | None:
        """Return the version as numbers; None if the package is missing or its import fails."""
        text = self.python if package == "python" else self.packages.get(package)
        return None if text is None or text.startswith("import fails") else numbers_of(text)


@dataclass(frozen=True)
class _Range:
    """The versions of a package that work: from `least` on, before `below`."""

    package: str
    shown: str  # its name in results
    least: Version
    below: Version | None = None

    @property
    def requirement(self) -> str:
        return f"{self.shown}>={_text(self.least)}" + (f",<{_text(self.below)}" if self.below else "")


SPARK = _Range("pyspark", "pyspark", (4, 0), (4, 4))
_RANGES = (
    SPARK,
    _Range("google.protobuf", "protobuf", (4, 24, 1), (8,)),
    _Range("pyarrow", "pyarrow", (14, 0, 1)),
    _Range("numpy", "numpy", (1, 21, 3), (3,)),
)
_LEAST_PYTHON = (3, 10)
_NO_METADATA = "0.0.0"  # `tubemq_spark.__version__` of a package that pip did not install


@dataclass(frozen=True)
class _BadPair:
    """Versions that do not work together: `clashes` gets those of both packages."""

    first: str
    second: str
    clashes: Callable[[Version, Version], bool]
    detail: str
    remedy: str


def _pairs() -> Iterator[_BadPair]:
    for spark, least in (((4, 0), (11,)), ((4, 1), (15,)), ((4, 2), (18,)), ((4, 3), (18,))):
        yield _BadPair(
            "pyspark",
            "pyarrow",
            lambda one, other, spark=spark, least=least: one[:2] == spark and other < least,  # type: ignore[misc]
            f"Spark {_text(spark)} needs pyarrow {_text(least)} or later",
            f"pip install 'pyarrow>={_text(least)}'",
        )
    yield _BadPair(
        "pyspark",
        "python",
        lambda spark, python: spark[:2] >= (4, 3) and python[:2] < (3, 11),
        "Spark 4.3 needs Python 3.11 or later",
        "use Python 3.11 or later, or Spark 4.2",
    )
    yield _BadPair(
        "pyarrow",
        "numpy",
        lambda pyarrow, numpy: pyarrow[0] < 16 and numpy[0] >= 2,
        "pyarrow before 16 cannot use numpy 2",
        "pip install 'numpy<2', or a newer pyarrow",
    )
    yield _BadPair(
        "pyspark",
        "pandas",
        lambda spark, pandas: spark[:2] <= (4, 3) and pandas[0] >= 3,
        "Spark up to 4.3 warns of pandas 3 and is not tested with it",
        "pip install 'pandas<3'",
    )


_PAIRS = tuple(_pairs())


def check_versions(found: Interpreter, place: str) -> list[CheckResult]:
    """Return the results for one interpreter by itself."""
    results = [_python(found, place)]
    for one in _RANGES:
        results.append(_package(one, found, place))
    pairs = [
        warning(
            "pairs", place, f"{pair.first} and {pair.second}", _versions(found, pair), f"{pair.remedy}: {pair.detail}"
        )
        for pair in _PAIRS
        if (first := found.version(pair.first))
        and (second := found.version(pair.second))
        and pair.clashes(first, second)
    ]
    return [*results, *pairs]


def check_same(found: Interpreter, driver: Interpreter, place: str) -> list[CheckResult]:
    """Return the results for an interpreter of tasks, compared with the driver's: Python, and this package."""
    results = []
    if numbers_of(found.python)[:2] != numbers_of(driver.python)[:2]:
        results.append(
            failed(
                "python",
                place,
                found.executable,
                f"Python {found.python}, the driver runs {driver.python}: Spark refuses tasks of another minor release",
                "set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to the same release of Python on all nodes",
            )
        )
    theirs, ours = found.packages.get("tubemq_spark"), driver.packages.get("tubemq_spark")
    results.append(_same_package(theirs, ours, found, place))
    return results


def _same_package(theirs: str | None, ours: str | None, found: Interpreter, place: str) -> CheckResult:
    subject = "tubemq-spark"
    if theirs is None:
        return failed(
            subject,
            place,
            subject,
            f"{found.executable} on {found.host} does not have the package",
            f"install tubemq-spark {ours} in that environment on each node; --py-files is not enough for streams",
        )
    if theirs.startswith("import fails"):
        return failed(subject, place, subject, theirs, f"install tubemq-spark {ours} and its requirements there again")
    if theirs == _NO_METADATA != ours:
        return warning(
            subject,
            place,
            subject,
            f"it is not installed on {found.host} but imported from an archive or a folder: its version is unknown",
            f"make sure that it is {ours}, or install that version in the environment on each node",
        )
    if theirs != ours:
        return failed(
            subject,
            place,
            subject,
            f"{theirs} on {found.host}, but the driver has {ours}",
            f"install tubemq-spark {ours} in each environment, and restart the executors",
        )
    return ok(subject, place, subject, f"{theirs}, as on the driver")


def _python(found: Interpreter, place: str) -> CheckResult:
    version = found.version("python") or ()
    if version < _LEAST_PYTHON:
        return failed("python", place, found.executable, f"Python {found.python}", "use Python 3.10 or later")
    return ok("python", place, found.executable, f"Python {found.python}")


def _package(one: _Range, found: Interpreter, place: str) -> CheckResult:
    text, version = found.packages.get(one.package), found.version(one.package)
    remedy = f"pip install '{one.requirement}' in the environment of {found.executable}"
    if text is None:
        return failed(one.shown, place, one.shown, "it is not installed", remedy)
    if version is None:
        return failed(one.shown, place, one.shown, text, f"{remedy}, or repair the installation")
    if one.package == "pyspark":
        # Some platforms call a release with all that is needed 3.5.
        return _pyspark(one, text, version, place)
    if version < one.least:
        return failed(one.shown, place, one.shown, f"{text} is too old", remedy)
    if one.below is not None and version >= one.below:
        return warning(one.shown, place, one.shown, f"{text} is newer than what was tested", remedy)
    return ok(one.shown, place, one.shown, text)


def _pyspark(one: _Range, text: str, version: Version, place: str) -> CheckResult:
    if version < (3, 5):
        return failed("pyspark", place, "pyspark", f"{text} is too old", "use Spark 4.0 or later")
    if version < one.least:
        return warning(
            "pyspark",
            place,
            "pyspark",
            f"{text} has Python data sources only on platforms that added them",
            "use Spark 4.0 or later, unless format('tubemq') is found here",
        )
    if one.below is not None and version >= one.below:
        return warning("pyspark", place, "pyspark", f"{text} is newer than what was tested", f"use {SPARK.requirement}")
    if version < (4, 2):
        return ok("pyspark", place, "pyspark", f"{text}, without read limits: these came with Spark 4.2")
    return ok("pyspark", place, "pyspark", text)


def _versions(found: Interpreter, pair: _BadPair) -> str:
    def shown(package: str) -> str:
        return f"{package} {found.python if package == 'python' else found.packages.get(package)}"

    return f"{shown(pair.first)} with {shown(pair.second)}"
