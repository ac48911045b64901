# SPDX-License-Identifier: Apache-2.0
"""Each sentence of the page on delivery guarantees names what proves it: invariants of tests/simulation, and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

_ITEM = re.compile(r"^(\d+)\. (.+(?:\n   .+)*)", re.MULTILINE)
_INVARIANTS = re.compile(r"invariants? (\w+(?:,\s+\w+)*)")
_BREACH = re.compile(r'(?:BrokenError|_check_limit)\(\s*"(\w+)"')
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


class Claim(NamedTuple):
    """A sentence, and the invariants and tests (file, function) that prove it."""

    sentence: str
    invariants: set[str]
    tests: list[tuple[str, str]]


def claims_of(text: str) -> Iterator[Claim]:
    """Yield a claim for each numbered sentence. Each section has folded proofs with the numbers of its sentences."""
    for section in re.split(r"^##", text, flags=re.MULTILINE):
        sentences, _, proofs_of_all = section.partition("<details")
        proofs_of = dict(_ITEM.findall(proofs_of_all))
        for number, sentence in _ITEM.findall(sentences):
            proofs = proofs_of.pop(number)
            names = {name for names in _INVARIANTS.findall(proofs) for name in re.split(r",\s+", names)}
            yield Claim(" ".join(sentence.split()), names, _TEST.findall(proofs))
        assert not proofs_of


def runs(file: str, name: str, *, thorough: bool) -> bool:
    """Return True if `make test` has a test of that name; with `thorough` one that only `make test-all` runs counts."""
    module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = [mark for test in tests for mark in test.decorator_list]
    marks += [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    left_out = r"mark\.(skip\b|xfail\b|skipif\((True|1)\b" + ("" if thorough else r"|thorough\b") + ")"
    texts = [ast.unparse(mark) for mark in marks]
    return len(tests) == 1 and not any(re.search(left_out, text) for text in texts if "parametrize(" not in text)


CLAIMS = list(claims_of((ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")))
INVARIANTS = {
    name
    for file in (ROOT / "tests" / "simulation").glob("*.py")
    for name in _BREACH.findall(file.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.sentence[:60])
def test_each_sentence_has_proofs_of_which_make_test_runs_one(claim: Claim) -> None:
    assert claim.tests or claim.invariants
    assert claim.invariants <= INVARIANTS
    assert [test for test in claim.tests if not runs(*test, thorough=True)] == []
    assert claim.invariants or any(runs(*test, thorough=False) for test in claim.tests)


def test_all_sentences_are_found() -> None:
    text = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
    assert 2 * len(CLAIMS) == len(re.findall(r"^\d+\. ", text, re.MULTILINE)) > 100
    assert sum(len(claim.tests) for claim in CLAIMS) == text.count("::")
