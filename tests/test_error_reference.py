# SPDX-License-Identifier: Apache-2.0
"""Tests that each error has cause and remedy for users, and that the reference finds what the code raises.

`tests/test_options_covered.py` fails if docs/errors.md is out of date.
"""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

from scripts import error_reference

ROOT = Path(__file__).parents[1]
CLASSES = error_reference.error_classes()
CAUGHT_INSIDE = {"ClaimRefusedError", "StoreChangedError", "UnflushedError", "UnreadLossError"}  # by their packages


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("part", ["cause", "remedy"])
def test_each_error_has_a_cause_and_a_remedy_of_its_own(kind: type[Exception], part: str) -> None:
    """In whole sentences: one inherited from the base class does not count."""
    text = vars(kind).get(part)
    assert isinstance(text, str)
    assert len(text.split()) >= 5
    assert text.endswith(".")


def test_each_exception_class_of_the_package_is_in_the_reference() -> None:
    """Except for private ones, which do not leave their module, and those of the embedded server, which are replies."""
    defined = set()
    for file in (ROOT / "tubemq_spark").rglob("*.py"):
        if ROOT / "tubemq_spark" / "testing" not in file.parents:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and any(_is_error(ast.unparse(base)) for base in node.bases):
                    defined.add(node.name)
    public = {name for name in defined if not name.startswith("_")}
    assert public - CAUGHT_INSIDE == {kind.__name__ for kind in CLASSES}


def _is_error(base: str) -> bool:
    built_in = getattr(builtins, base, object)
    return base.endswith("Error") or (isinstance(built_in, type) and issubclass(built_in, BaseException))
