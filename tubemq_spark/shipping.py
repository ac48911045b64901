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
import marshal
import pickle
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import tubemq_spark
from tubemq_spark import shipped_modules

if TYPE_CHECKING:
    from importlib.abc import Traversable

Arrive = Callable[[bytes], Any]

_STAYS = ("cli", "pytest_plugin", "testing")  # parts of no use for workers


class Ships:
    """An object that Spark pickles. If `arrive` is set, the package travels with it."""

    arrive: Arrive | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        if self.arrive is None:
            return reduced
        state = {name: value for name, value in reduced[2].items() if name != "arrive"}
        return self.arrive, (pickle.dumps((type(self), state)),)


class ShippedFunction(Ships):
    """A function of this package for tasks of Spark."""

    def __init__(self, function: Callable[..., Any], arrive: Arrive) -> None:
        self._function, self.arrive = function, arrive

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)


_is_used = False


def use(ship: bool) -> None:
    """Set whether the functions of this process that tasks call are shipped: what `register` was told last."""
    global _is_used
    _is_used = ship


def is_used() -> bool:
    return _is_used


def for_tasks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of this package as tasks get it."""
    return ShippedFunction(function, arrival()) if _is_used else function


@cache
def arrival() -> Arrive:
    """Return the function with which the pickles of shipped objects begin.

    It is local, so cloudpickle sends it by value, with the modules and the source that installs them. In a worker it
    imports the package, if another one than that of this driver is there.
    """
    package, source = tuple(packed()), inspect.getsource(shipped_modules)
    told: list[str] = []  # by earlier processes, so that those after them do not log the same again

    def arrive(pickled: bytes) -> Any:
        import pickle
        import sys

        if getattr(sys.modules.get("tubemq_spark"), "__shipped__", None) != package[0]:
            namespace: dict[str, Any] = {"__name__": "tubemq_spark_arrives"}
            exec(source, namespace)
            namespace["install"](*package, told)
        told[:] = {*told, *sys.modules["tubemq_spark.arrival"].TOLD}
        kind, state = pickle.loads(pickled)
        made = kind.__new__(kind)
        vars(made).update(state, arrive=arrive)
        return made

    return arrive


class Package(NamedTuple):
    """What `shipped_modules.install` takes. `identity` differs if the modules do."""

    identity: str
    version: str
    modules: bytes


def packed() -> Package:
    """Return the modules of this package that workers need. They are compiled, because that takes longer than to import
    them, and Spark's workers have the driver's release of Python."""
    modules = {}
    for name, is_package, source in _sources(resources.files("tubemq_spark"), ("tubemq_spark",)):
        # A name that no file has: a worker's traceback must not show lines of a version that is installed there.
        file = f"driver's tubemq-spark/{name.replace('.', '/')}.py"
        modules[name] = is_package, marshal.dumps(compile(_shortened(source), file, "exec", dont_inherit=True))
    content = zlib.compress(marshal.dumps(modules), 9)
    return Package(hashlib.sha256(content).hexdigest(), tubemq_spark.__version__, content)


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
    """Return a module without docstrings and columns, which are two fifths of its size when it is compiled."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.expr | ast.stmt):
            node.col_offset = node.end_col_offset = 0
            node.end_lineno = node.lineno
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str()) as docstring), *_]:
                    docstring.value = "-"  # without any, `dataclass` would make a long one
    return module
