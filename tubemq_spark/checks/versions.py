# SPDX-License-Identifier: Apache-2.0
"""Checks `python`, `pyspark`, `protobuf`, `pyarrow`, `numpy`, `tubemq-spark`, `pairs`: versions of an interpreter, and
versions that are known not to work together.

The numbers are those of pyproject.toml, of Spark's own requirements, and of the table in noxfile.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tubemq_spark.checks.result import CheckResult, failed, ok, warning

Version = tuple[int, ...]


def numbers_of(text: str) -> Version:
    """Return the leading numbers of a version, such as (4, 1, 2) of `4.1.2.dev0`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


class Interpreter(NamedTuple):
    """What `worker_probe.describe` reports of one Python process. A package that is missing has the version None.
    `time` is in seconds since the epoch."""

    host: str
    executable: str
    python: str
    packages: Mapping[str, str | None]
    time: float = 0.0

    def text(self, package: str) -> str | None:
        return self.python if package == "python" else self.packages.get(package)

    def version(self, package: str) -> Version | None:
        """Return the version as numbers; None if the package is missing or its import fails."""
        text = self.text(package)
        return None if text is None or text.startswith("import fails") else numbers_of(text)


class _Range(NamedTuple):
    """The versions of a package from `least` on, before `below`."""

    package: str
    least: Version = ()
    below: Version | None = None

    @property
    def shown(self) -> str:
        """The name of the package in results."""
        return self.package.removeprefix("google.")

    @property
    def requirement(self) -> str:
        least, below = (".".join(map(str, version)) for version in (self.least, self.below or ()))
        return f"{self.shown}>={least}" + (f",<{below}" if below else "")

    def has(self, version: Version | None) -> bool:
        if not version:
            return False
        return version >= self.least and (self.below is None or version < self.below)


SPARK = _Range("pyspark", (4, 0), (4, 4))
_RANGES = (
    SPARK,
    _Range("google.protobuf", (4, 24, 1), (8,)),
    _Range("pyarrow", (14, 0, 1)),
    _Range("numpy", (1, 21, 3), (3,)),
)
_LEAST_PYTHON = (3, 10)
_NO_METADATA = "0.0.0"  # `tubemq_spark.__version__` of a package that pip did not install

# Versions that do not work together, and what to do.
_PAIRS = (
    *(
        (
            _Range("pyspark", (4, minor), (4, minor + 1)),
            _Range("pyarrow", below=(least,)),
            f"pip install 'pyarrow>={least}': Spark 4.{minor} needs pyarrow {least} or later",
        )
        for minor, least in enumerate((11, 15, 18, 18))
    ),
    (
        _Range("pyspark", (4, 3)),
        _Range("python", below=(3, 11)),
        "use Python 3.11 or later, or Spark 4.2: Spark 4.3 needs Python 3.11 or later",
    ),
    (
        _Range("pyarrow", below=(16,)),
        _Range("numpy", (2,)),
        "pip install 'numpy<2', or a newer pyarrow: pyarrow before 16 cannot use numpy 2",
    ),
    (
        _Range("pyspark", below=(4, 4)),
        _Range("pandas", (3,)),
        "pip install 'pandas<3': Spark up to 4.3 warns of pandas 3 and is not tested with it",
    ),
)


def check_versions(found: Interpreter) -> list[CheckResult]:
    """Return the results for one interpreter by itself."""
    is_old = (found.version("python") or ()) < _LEAST_PYTHON
    judge, remedy = (failed, "use Python 3.10 or later") if is_old else (ok, "")
    results = [judge("python", found.executable, f"Python {found.python}", remedy)]
    results += [_package(one, found) for one in _RANGES]
    for one, other, remedy in _PAIRS:
        if one.has(found.version(one.package)) and other.has(found.version(other.package)):
            versions = " with ".join(f"{name} {found.text(name)}" for name in (one.package, other.package))
            results.append(warning("pairs", f"{one.package} and {other.package}", versions, remedy))
    return results


def check_same(found: Interpreter, driver: Interpreter) -> Iterator[CheckResult]:
    """Yield the results for an interpreter of tasks, compared with the driver's: Python, and this package."""
    if numbers_of(found.python)[:2] != numbers_of(driver.python)[:2]:
        yield failed(
            "python",
            found.executable,
            f"Python {found.python}, the driver runs {driver.python}: Spark refuses tasks of another minor release",
            "set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to the same release of Python on all nodes",
        )
    theirs, ours = found.packages.get("tubemq_spark"), driver.packages.get("tubemq_spark")
    if theirs is None:
        problem = f"{found.executable} on {found.host} does not have the package"
        remedy = f"install tubemq-spark {ours} in that environment on each node; --py-files is not enough for streams"
    elif theirs.startswith("import fails"):
        problem, remedy = theirs, f"install tubemq-spark {ours} and its requirements there again"
    elif theirs == _NO_METADATA != ours:
        problem = f"on {found.host} it is imported from an archive or a folder, so its version is unknown"
        remedy = f"make sure that it is {ours}, or install that version in the environment on each node"
    elif theirs != ours:
        problem = f"{theirs} on {found.host}, but the driver has {ours}"
        remedy = f"install tubemq-spark {ours} in each environment, and restart the executors"
    else:
        problem, remedy = f"{theirs}, as on the driver", ""
    judge = ok if not remedy else warning if theirs == _NO_METADATA else failed
    yield judge("tubemq-spark", "tubemq-spark", problem, remedy)


def _package(one: _Range, found: Interpreter) -> CheckResult:
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
