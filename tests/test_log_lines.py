# SPDX-License-Identifier: Apache-2.0
"""Tests that each warning and error has an id of its own, which is documented and never used for something else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PAGE = (ROOT / "docs" / "log-lines.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"^\| `\[([a-z-]+)\]` \| \S.* \| \S.* \|$", _PAGE, re.MULTILINE)
RETIRED = set(re.findall(r"`\[([a-z-]+)\]`", _PAGE.partition("Earlier ids")[2]))
EVER_USED = (ROOT / "tests" / "golden" / "log_ids.txt").read_text(encoding="utf-8").split()
_LEVELS = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}  # and the place of the text
_ID = re.compile(r"\[([a-z]+(?:-[a-z]+)*)\] \S")


def texts(source: str) -> Iterator[str]:
    """Yield the texts of all warnings and errors in `source`; the code of what is not text."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "log"), attr=level), args=args):
                if level in _LEVELS:
                    text = args[_LEVELS[level]]
                    yield text.value if isinstance(text, ast.Constant) else ast.unparse(text)  # type: ignore[misc]


def logged() -> list[tuple[str, str]]:
    """Return file and text of each warning and error of the package."""
    files = sorted((ROOT / "tubemq_spark").rglob("*.py"))
    return [(file.name, text) for file in files for text in texts(file.read_text(encoding="utf-8"))]


def test_each_line_begins_with_an_id() -> None:
    assert [(file, text) for file, text in logged() if not _ID.match(text)] == []


def test_each_id_stands_in_one_place_and_is_documented() -> None:
    used = Counter(found[1] for _, text in logged() if (found := _ID.match(text)))
    assert [name for name, count in used.items() if count > 1] == []
    assert sorted(used) == DOCUMENTED


def test_no_id_is_used_again() -> None:
    """An id that is removed moves to the end of the page; a new one is added to tests/golden/log_ids.txt."""
    assert len(EVER_USED) == len(set(EVER_USED))
    assert not RETIRED & set(DOCUMENTED)
    assert set(EVER_USED) == RETIRED | set(DOCUMENTED)
