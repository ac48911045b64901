# SPDX-License-Identifier: Apache-2.0
"""Ships the package from the driver to Spark's Python processes, inside of what Spark sends them anyway.

Spark pickles the class of the data source for the processes that plan, and readers and writers for tasks. Each of
these pickles begins with a function that Spark sends by value, `arrive`. It brings the modules of the package along,
makes them importable in a process that has not got them, and then unpickles the object. Input partitions, commit
messages and accumulators are plain: a process that gets one has such an object already.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import lzma
import marshal
import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import tubemq_spark
from tubemq_spark import shipped_modules

if TYPE_CHECKING:
    from importlib.abc import Traversable

# The function that a pickle begins with, and by their names the parts of the package, packed.
Shipment = tuple[Callable[[Mapping[str, bytes], bytes], Any], Mapping[str, bytes]]

# The parts that objects of a part need with them. Each pickle has only these, because Spark warns of a stage with more
# than 1000 KiB: the class, a reader and a writer. "" is all that has no part of its own.
_NEEDED = {
    "checks": ("", "source", "sink", "checks"),
    "datasource": ("", "source", "sink"),
    "inlong": ("", "source"),
    "sink": ("", "sink"),
    "source": ("", "source"),
}
_PARTS = ("checks", "sink", "source")
_STAYS = ("cli", "monitoring", "pytest_plugin", "registration", "spark_check", "testing")  # no worker imports these


class Ships:
    """An object that Spark pickles. If it has a shipment, the package travels with it: what `part` needs, by default
    the part of its class."""

    shipment: Shipment | None = None
    part = ""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.part = cls.__module__.split(".")[1]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        if self.shipment is None:
            return reduced
        arrive, parts = self.shipment
        state = {name: value for name, value in reduced[2].items() if name != "shipment"}
        return arrive, ({name: parts[name] for name in _NEEDED[self.part]}, pickle.dumps((type(self), state)))


class ShippedFunction(Ships):
    """A function for tasks of Spark, which a part of this package has."""

    def __init__(self, function: Callable[..., Any], part: str) -> None:
        self._function, self.part, self.shipment = function, part, shipment()

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)


_is_used = False


def use(ship: bool) -> None:
    """Set whether the functions of this process that tasks call are shipped: what `register` was told last."""
    global _is_used
    _is_used = ship


def is_used() -> bool:
    return _is_used


def for_tasks(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    """Return a function of a part of this package as tasks get it."""
    return ShippedFunction(function, part) if _is_used else function


@cache
def shipment() -> Shipment:
    """Return what travels with shipped objects.

    The function is local, so cloudpickle sends it by value, with the source of what installs the parts. In a worker it
    imports the package, if another one than that of this driver is there, or parts that are missing.
    """
    parts = packed()
    version, source = tubemq_spark.__version__, inspect.getsource(shipped_modules)
    identity = hashlib.sha256(b"".join(parts.values())).hexdigest()
    told: list[str] = []  # by earlier processes, so that those after them do not log the same again

    def arrive(parts: Mapping[str, bytes], pickled: bytes) -> Any:
        import pickle
        import sys

        if not {identity, *parts} <= getattr(sys.modules.get("tubemq_spark"), "__shipped__", set()):
            namespace: dict[str, Any] = {"__name__": "tubemq_spark_arrives"}
            exec(source, namespace)
            namespace["install"](identity, version, parts, told)
        told[:] = {*told, *sys.modules["tubemq_spark.arrival"].TOLD}
        kind, state = pickle.loads(pickled)
        made = kind.__new__(kind)
        vars(made).update(state, shipment=(arrive, parts))
        return made

    return arrive, parts


def packed() -> dict[str, bytes]:
    """Return the parts that workers need. Their modules are compiled, because that takes longer than to import them,
    and Spark's workers have the driver's release of Python."""
    parts: dict[str, dict[str, tuple[bool, bytes]]] = {name: {} for name in ("", *_PARTS)}
    for name, is_package, source in _sources(resources.files("tubemq_spark"), ("tubemq_spark",)):
        part = [*name.split("."), ""][1]
        # A name that no file has: a worker's traceback must not show lines of a version that is installed there.
        file = f"driver's tubemq-spark/{name.replace('.', '/')}.py"
        code = compile(_shortened(source), file, "exec", dont_inherit=True)
        parts[part if part in _PARTS else ""][name] = is_package, marshal.dumps(code)
    return {part: lzma.compress(marshal.dumps(modules), preset=9) for part, modules in parts.items()}


def _sources(folder: Traversable, names: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    """Yield name, whether it is a package, and source of each module in a folder and below it."""
    for one in folder.iterdir():
        name = one.name.removesuffix(".py")
        if len(names) == 1 and name in _STAYS:
            continue
        if one.is_dir():
            yield from _sources(one, (*names, name))
        elif name == "__init__":
            yield ".".join(names), True, one.read_bytes()
        elif name != one.name:
            yield ".".join((*names, name)), False, one.read_bytes()


def _shortened(source: bytes) -> ast.Module:
    """Return a module without what takes a third of its size when it is compiled, and no worker needs: the columns of
    lines, docstrings, and the types of functions."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias):
            node.col_offset = node.end_col_offset = 0
            node.end_lineno = node.lineno
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str()) as docstring), *_]:
                    docstring.value = "-"  # without any, `dataclass` would make a long one
    return module
