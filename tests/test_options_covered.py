# SPDX-License-Identifier: Apache-2.0
"""Tests that each option and each column of the sink has a test of its effect, one of wrong use, and documentation.

Source and sink share the client's options. Tests with the source count for both, because both read the same values
(`test_both_make_the_same_of_the_clients_options`) for the same connections.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.sink import test_options as of_the_sink
from tests.sink_options.test_columns import WRONG_TYPES
from tests.sink_options.test_failed_rows import BAD_ROWS
from tests.source import test_options as of_the_source
from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.sink.schema import Cells
from tubemq_spark.source.options import SOURCE_OPTIONS

ROOT = Path(__file__).parents[1]
SHARED = {option.name for option in CLIENT_OPTIONS}
SOURCE = {option.name for option in SOURCE_OPTIONS}
SINK = {option.name for option in SINK_OPTIONS}
COLUMNS = set(Cells._fields)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def marked(file: Path, mark: str, fixture: str | None = None) -> Iterator[str]:
    """Yield the arguments of a marker in `file`: the options or columns whose effect the tests prove. With `fixture`,
    count only tests that use it.
    """
    for statement in parsed(file).body:
        marks: list[ast.expr] = []
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            if fixture is None or fixture in (argument.arg for argument in statement.args.args):
                marks = statement.decorator_list
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            marks = [statement.value]
        for expression in marks:
            if isinstance(expression, ast.Call) and ast.unparse(expression.func) == f"pytest.mark.{mark}":
                yield from (ast.literal_eval(name) for name in expression.args)


def effects(mark: str, fixture: str | None = None) -> set[str]:
    return {name for file in (ROOT / "tests").rglob("test_*.py") for name in marked(file, mark, fixture)}


def test_each_option_of_the_source_has_a_test_of_its_effect() -> None:
    assert SOURCE - effects("option") == set()


def test_each_option_of_the_sink_has_a_test_of_its_effect_on_both_servers() -> None:
    """The fixture `cluster` is an embedded and a real one."""
    assert SINK - SHARED - effects("sink_option", "cluster") == set()


def test_each_column_of_the_sink_has_a_test_of_its_effect_on_both_servers() -> None:
    assert COLUMNS - effects("column", "cluster") == set()


def test_no_test_is_marked_for_an_unknown_name() -> None:
    """So no name of the public contract disappears: each has a test of its effect."""
    assert effects("option") - SOURCE == set()
    assert effects("sink_option") - SINK == set()
    assert effects("column") - COLUMNS == set()


@pytest.mark.parametrize(("tables", "names"), [(of_the_source, SOURCE), (of_the_sink, SINK)], ids=["source", "sink"])
def test_each_option_has_a_test_of_a_wrong_value(tables: object, names: set[str]) -> None:
    tested = {name for table in ("BAD_VALUES", "MISFITS") for name, _, _ in getattr(tables, table)}
    assert names - tested == set()


def test_each_column_has_a_test_of_a_wrong_type() -> None:
    assert {name for name, _, _ in WRONG_TYPES} == COLUMNS


def test_each_column_has_a_test_of_a_wrong_cell() -> None:
    """Except for columns that accept each value of their type."""
    assert {bad.column for bad in BAD_ROWS.values()} == COLUMNS - {"key", "inlong_time"}


# The documentation


def test_the_documentation_is_up_to_date() -> None:
    command = [sys.executable, "scripts/generate_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
