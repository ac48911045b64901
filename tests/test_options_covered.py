"""Each option of the source has a test of what it does and one of a wrong value, and the documentation has them all."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source.test_options import BAD_VALUES, MISFITS
from tubemq_spark.options import Option
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

ROOT = Path(__file__).parents[1]
NAMES = {option.name for option in SOURCE_OPTIONS}

# As the public contract has them: none may vanish.
CONTRACT = """
    tubemq.master tubemq.user tubemq.password tubemq.passwordFile tubemq.tls.enabled tubemq.tls.ca tubemq.tls.cert
    tubemq.tls.key tubemq.tls.keyPassword tubemq.tls.verifyHostname tubemq.rpc.timeoutMs tubemq.rpc.framing
    tubemq.retry.maxElapsedMs tubemq.connections.idleMs tubemq.connections.shared subscribe assign tubemq.group
    tubemq.claim.timeoutMs filters startingOffsets startingTimestamp endingOffsets endingTimestamp failOnDataLoss
    maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay maxPartitionsPerTask commitOffsets headsIntervalMs
    pushFilters corruptMessages msgTimeZone metadataIntervalMs messageFormat
"""


def marked(file: Path) -> Iterator[str]:
    """The options of which the file's tests show the effect: those named by `pytest.mark.option` before a test, or for
    all tests of the file."""
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        marks: list[ast.expr] = []
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
            marks = statement.decorator_list
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            marks = [statement.value]
        for mark in marks:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.option":
                yield from (ast.literal_eval(name) for name in mark.args)


def effects() -> set[str]:
    return {name for file in (ROOT / "tests").rglob("test_*.py") for name in marked(file)}


def test_the_contracts_options_are_there() -> None:
    assert set(CONTRACT.split()) <= NAMES


def test_each_option_has_a_test_of_its_effect() -> None:
    assert NAMES - effects() == set()


def test_no_test_is_of_an_option_that_is_not_there() -> None:
    assert effects() - NAMES == set()


def test_each_option_has_a_test_of_a_wrong_value() -> None:
    tested = {name for name, _, _ in BAD_VALUES} | {name for name, _, _ in MISFITS}
    assert NAMES - tested == set()


def test_tests_are_found_by_what_they_say(tmp_path: Path) -> None:
    """What finds them would find nothing if marks were written in another way."""
    file = tmp_path / "test_x.py"
    file.write_text(
        'pytestmark = pytest.mark.option("all")\n'
        '@pytest.mark.option("one", "two")\n@pytest.mark.timeout(1)\ndef test_x(): ...\n'
        '@pytest.mark.option("three")\ndef helper(): ...\n'
    )
    assert set(marked(file)) == {"all", "one", "two"}


# The documentation


@pytest.mark.parametrize("option", [*SOURCE_OPTIONS, *SINK_OPTIONS], ids=lambda option: str(option.name))
def test_each_option_says_what_it_is(option: Option[object]) -> None:
    assert option.meaning
    assert not option.meaning.endswith(".")
    if isinstance(option, Option):
        assert option.expects


def test_the_documentation_is_up_to_date() -> None:
    command = [sys.executable, "scripts/generate_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
