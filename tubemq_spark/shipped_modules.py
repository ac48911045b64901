# SPDX-License-Identifier: Apache-2.0
"""Imports the modules that the driver has sent, from memory, in place of those that are installed.

A worker gets the source of this module, and runs it before it has the package. So it imports nothing of the package at
the top. No file is written, so nobody else can change the code, and no temporary folder is needed.
"""

from __future__ import annotations

import logging
import marshal
import sys
import zlib
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_PACKAGE = "tubemq_spark"


class ShippedModules(MetaPathFinder, Loader):
    """Finds and loads the modules of `packed`: by their names, whether each is a package, and its code."""

    def __init__(self, version: str, packed: bytes) -> None:
        self._version = version
        self._modules: dict[str, tuple[bool, bytes]] = marshal.loads(zlib.decompress(packed))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        is_package, _ = self._modules[fullname]
        return spec_from_loader(fullname, self, origin="the driver", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _PACKAGE:
            vars(module)["__version__"] = self._version
        _, code = self._modules[module.__name__]
        exec(marshal.loads(code), vars(module))


def install(identity: str, version: str, packed: bytes, told: list[str]) -> None:
    """Let this process import the modules of `packed`, and forget others of the package that it has imported. Raise
    `ConfigError` if it lacks a package that they need."""
    if client := sys.modules.get(f"{_PACKAGE}.client"):
        client.forget_servers()
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    # By names, because earlier ones are of classes that are forgotten.
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != ShippedModules.__name__]
    logger = logging.getLogger(_PACKAGE)
    logger.handlers[:] = [one for one in logger.handlers if not type(one).__module__.startswith(f"{_PACKAGE}.")]
    sys.meta_path.insert(0, ShippedModules(version, packed))
    import_module(f"{_PACKAGE}.arrival").check_packages(told)
    vars(sys.modules[_PACKAGE])["__shipped__"] = identity
