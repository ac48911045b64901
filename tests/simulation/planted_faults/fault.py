# SPDX-License-Identifier: Apache-2.0
"""A planted fault, and the import system that plants it.

A fault takes one node of the syntax tree of one function, so the layout, the comments and the place of the code do not
matter. The product's files stay as they are: the tree is changed on the way from the file to the compiler.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[3]
PACKAGE = "tubemq_spark"


@dataclass(frozen=True)
class Fault:
    """A change of a function of the product: `new` takes the place of `old`, which the function has exactly once.

    `module` is below the package, and `function` is the qualified name. Either both `old` and `new` are expressions, or
    `old` is one statement and `new` any number of them.

    `promise` is the sentence that it breaks, in short; each of the `invariants` may show that in schedules of `family`.
    """

    name: str
    promise: str
    module: str
    function: str
    old: str
    new: str
    invariants: tuple[str, ...]
    family: str = ""

    @property
    def path(self) -> Path:
        return ROOT.joinpath(PACKAGE, *self.module.split(".")).with_suffix(".py")

    def tree(self) -> ast.Module:
        """Return the syntax tree of the module with the fault. Raise `ValueError` if the product has changed, so the
        fault must too."""
        module = ast.parse(self.path.read_bytes()) if self.path.exists() else ast.Module([], [])
        function = self._function(module)
        change = _Change(self.old, self.new)
        change.visit(function)
        if change.count != 1:
            raise self._changed(
                f"{self.function} of {self.module} has this node {change.count} times, instead of once:\n{self.old}\n"
                "Write `old` as the function has it now, with enough of the code around it to be there once"
            )
        return ast.fix_missing_locations(module)

    def _function(self, module: ast.Module) -> ast.AST:
        found: ast.AST = module
        for name in self.function.split("."):
            inner = (one for one in ast.walk(found) if isinstance(one, (ast.ClassDef, ast.FunctionDef)))
            try:
                found = next(one for one in inner if one.name == name and one is not found)
            except StopIteration:
                raise self._changed(
                    f"there is no {self.function} in {self.module}, which had this node:\n{self.old}\n"
                    "Name the module and the function that have it now"
                ) from None
        return found

    def _changed(self, problem: str) -> ValueError:
        return ValueError(
            f"planted fault {self.name}: {problem}. If the product does without it, plant another fault that breaks "
            f"the promise: {self.promise}"
        )


class _Change(ast.NodeTransformer):
    """Replaces the nodes that are equal to `old`, and counts them."""

    def __init__(self, old: str, new: str) -> None:
        (before,), after = ast.parse(old).body, ast.parse(new).body
        self._old = ast.dump(before)
        self._new: ast.expr | list[ast.stmt] = after
        if isinstance(before, ast.Expr) and isinstance(after[0], ast.Expr) and len(after) == 1:
            self._old, self._new = ast.dump(before.value), after[0].value
        self.count = 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) != self._old:
            return self.generic_visit(node)
        self.count += 1
        return self._new


class _Importer(SourceFileLoader):
    """Finds and loads the module of a fault, with the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{PACKAGE}.{fault.module}", str(fault.path))
        self._fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._fault.tree(), self.path, "exec", dont_inherit=True)  # no stored bytecode


def plant(fault: Fault) -> None:
    """Let this process import the product with the fault."""
    if PACKAGE in sys.modules:
        raise RuntimeError(f"{PACKAGE} is imported already: plant in a new process")
    fault.tree()
    sys.meta_path.insert(0, _Importer(fault))
