# SPDX-License-Identifier: Apache-2.0
"""Imports the modules that the driver has sent, from memory, in place of those that are installed.

A worker gets the source of this module, and runs it before it has the package. So it imports nothing of the package at
the top. No file is written, so nobody else can change the code, and no temporary folder is needed.
"""

from __future__ import annotations

import logging
import lzma
import marshal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "tubemq_spark"
_COMPILED = "tubemq_spark_speedups"


class ShippedModules(MetaPathFinder, Loader):
    """Finds and loads the modules of parts: by their names, whether each is a package, and its code."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._modules: dict[str, tuple[bool, bytes]] = {}

    def add(self, part: bytes) -> None:
        self._modules.update(marshal.loads(lzma.decompress(part)))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._modules:
            is_package, _ = self._modules[fullname]
            return spec_from_loader(fullname, self, origin="the driver", is_package=is_package)
        if fullname == _COMPILED:
            return PathFinder.find_spec(fullname) or self._sent(f"{fullname}.abi3.so")
        return self._installed(fullname) if fullname.startswith(f"{_PACKAGE}.") else None

    def _installed(self, fullname: str) -> ModuleSpec | None:
        """Find a module in the package that is installed: another session of Spark, which does not ship, shares this
        process. Raise `ImportError` if the installed package is of another version."""
        package = PathFinder.find_spec(_PACKAGE)
        if package is None:
            return None
        version = import_module(f"{_PACKAGE}.arrival").installed_version(package)
        if version != self._version:
            raise ImportError(
                f"this Python process of Spark has got tubemq-spark {self._version} from a driver, and another session "
                f"uses the installed {version or 'one of an unknown version'}: install {self._version}, or let that "
                "session call register(spark, ship=True)",
                name=fullname,
            )
        folders = [Path(location, *fullname.split(".")[1:-1]) for location in package.submodule_search_locations or ()]
        return PathFinder.find_spec(fullname, [str(folder) for folder in folders])

    def _sent(self, file: str) -> ModuleSpec | None:
        """Find the library that the driver gave to Spark as a file, see `registration`."""
        from pyspark import SparkFiles

        try:
            path = Path(SparkFiles.getRootDirectory(), file)
        except AssertionError:  # this process is none of Spark's
            return None
        return spec_from_file_location(_COMPILED, path) if path.is_file() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _PACKAGE:
            vars(module)["__version__"] = self._version
        _, code = self._modules[module.__name__]
        exec(marshal.loads(code), vars(module))


def install(identity: str, version: str, parts: Mapping[str, bytes], told: list[str]) -> None:
    """Let this process import the modules of `parts`, and forget those of another package that it has imported. Raise
    `ConfigError` if it lacks a package that they need."""
    shipped: set[str] = getattr(sys.modules.get(_PACKAGE), "__shipped__", set())
    if identity not in shipped:
        shipped = {identity}
        _forget()
        sys.meta_path.insert(0, ShippedModules(version))
    finder: Any = next(one for one in sys.meta_path if type(one).__name__ == ShippedModules.__name__)
    for name in parts.keys() - shipped:
        finder.add(parts[name])
    if len(shipped) == 1:
        import_module(f"{_PACKAGE}.arrival").check_packages(told)
    vars(sys.modules[_PACKAGE])["__shipped__"] = {*shipped, *parts}


def _forget() -> None:
    """By names, because what an earlier package has left is of classes that this module does not have."""
    if client := sys.modules.get(f"{_PACKAGE}.client"):
        client.forget_servers()
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != ShippedModules.__name__]
    logger = logging.getLogger(_PACKAGE)
    logger.handlers[:] = [one for one in logger.handlers if not type(one).__module__.startswith(f"{_PACKAGE}.")]
