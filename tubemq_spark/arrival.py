# SPDX-License-Identifier: Apache-2.0
"""What a Python process of Spark looks at when it has got the package from the driver: the packages that it has."""

from __future__ import annotations

import logging
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

import tubemq_spark
from tubemq_spark.client import system
from tubemq_spark.errors import ConfigError
from tubemq_spark.requirements import NEEDED, numbers_of

_log = logging.getLogger(__name__)

TOLD: list[str] = []  # the interpreters of which this process has logged that they have another version


def check_packages(told: list[str]) -> None:
    """Raise `ConfigError` if a package is missing or too old here. Log if this interpreter has another version of this
    one, which it does not use, unless an earlier process has `told` so."""
    here = f"{sys.executable} on {system.host_name()}"
    bad = {}
    for one in NEEDED:
        found = _installed(one.shown, _importable(one.package))
        if found is None:
            bad[one.requirement] = f"no {one.shown}"
        elif found and numbers_of(found) < one.least:
            bad[one.requirement] = f"{one.shown} {found}, which is too old"
    if bad:
        required = " ".join(f"'{name}'" for name in bad)
        raise ConfigError(
            f"a Python that Spark runs, {here}, has {' and '.join(bad.values())}: install {required} there"
        )
    if here in told:
        return
    other, ours = installed_version(PathFinder.find_spec("tubemq_spark")), tubemq_spark.__version__
    if other is not None and other != ours:
        TOLD.append(here)
        _log.warning(
            "[other-version] %s has tubemq-spark %s installed; it runs the driver's %s instead",
            here,
            other or "of an unknown version",
            ours,
        )


def installed_version(package: ModuleSpec | None) -> str | None:
    """Return the version of the installed package of this project, as `_installed`."""
    return _installed("tubemq-spark", package)


def _importable(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package)
    except ModuleNotFoundError:  # not even the package above
        return None


def _installed(name: str, spec: ModuleSpec | None) -> str | None:
    """Return the version of an installed package, "" if that is not noted, None if it is missing."""
    if spec is None:
        return None
    # It stands beside the package. The library for this takes a twentieth of a worker's start to import.
    depth, noted = spec.name.count(".") + 1, re.compile(rf"{name.replace('-', '_')}-(\d[^-]*)\.(?:dist|egg)-info")
    for location in spec.submodule_search_locations or ():
        folder = Path(location).parents[depth - 1]
        for found in filter(None, map(noted.fullmatch, os.listdir(folder) if folder.is_dir() else ())):
            return found[1]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""
