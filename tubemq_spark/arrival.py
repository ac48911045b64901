# SPDX-License-Identifier: Apache-2.0
"""What a Python process of Spark looks at when it has got the package from the driver: the packages that it has."""

from __future__ import annotations

import logging
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

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
        found = _installed(one.shown)
        if found is None and not _is_importable(one.package):
            bad[one.requirement] = f"no {one.shown}"
        elif found is not None and numbers_of(found) < one.least:
            bad[one.requirement] = f"{one.shown} {found}, which is too old"
    if bad:
        required = " ".join(f"'{name}'" for name in bad)
        raise ConfigError(
            f"a Python that Spark runs, {here}, has {' and '.join(bad.values())}: install {required} there"
        )
    if here in told or PathFinder.find_spec("tubemq_spark") is None:
        return
    other, ours = _installed("tubemq-spark") or "an unknown version", tubemq_spark.__version__
    if other != ours:
        TOLD.append(here)
        _log.warning(
            "[other-version] %s has tubemq-spark %s installed; it runs the driver's %s instead", here, other, ours
        )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_importable(package: str) -> bool:
    """Some installations have no metadata."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even the package above
        return False
