# SPDX-License-Identifier: Apache-2.0
"""Tests that each sentence of the page on delivery guarantees names what proves it.

The page consists of headings and bullets. A bullet is one sentence, and below it, in small print, names of invariants
of tests/simulation and of tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "delivery.md"
TITLE = "# Delivery guarantees"

_HEADING = re.compile(r"#{2,3} [A-Z][A-Za-z -]+")
_BULLET = re.compile(r"- (.+[^.])\.<br> <sub>(.+)</sub>")
_PROOFS = re.compile(r"(?:invariant (\w+)|invariants (\w+(?:, \w+)+))?(?:(?:; |^)(tests/.+))?")
_BREACH = re.compile(r'(?:BrokenError|_check_limit)\(\s*"(\w+)"')
_TEST = re.compile(r"(tests/[a-z0-9_/]*test_[a-z0-9_]+\.py)::(test_[a-z0-9_]+)")
_NEXT_SENTENCE = re.compile(r"[.!?] ")


class Claim(NamedTuple):
    """A sentence, without its full stop, and the invariants, files and functions that prove it."""

    sentence: str
    invariants: list[str]
    tests: list[tuple[str, str]]


class FormError(AssertionError):
    """The page has a part that is neither a heading nor a claim."""


def blocks(text: str) -> Iterator[str]:
    """Yield headings, bullets and paragraphs, each as one line."""
    for is_blank, lines in groupby(text.splitlines(), lambda line: not line.strip()):
        if not is_blank:
            yield from re.split(r"\n(?=- |#)", "\n".join(lines))


def claims_of(text: str) -> list[Claim]:
    """Return the claims of a page. Raise `FormError` for text outside of claims, and a heading without claims."""
    title, introduction, *rest = (" ".join(block.split()) for block in blocks(text))
    if title != TITLE or introduction.startswith(("#", "- ")):
        raise FormError(f"the page begins with {title!r}, {introduction!r}")
    claims: list[Claim] = []
    levels = [0]  # of headings; 9 for claims
    for block in rest:
        if _HEADING.fullmatch(block):
            levels.append(block.index(" "))
        else:
            claims.append(_claim(block))
            levels.append(9)
    for level, following in zip(levels[1:], [*levels[2:], 0], strict=True):
        if level != 9 and following <= level:
            raise FormError("a heading has nothing below it")
    return claims


def _claim(block: str) -> Claim:
    found = _BULLET.fullmatch(block)
    if found is None:
        raise FormError(f"no heading, and no sentence with tests: {block!r}")
    sentence, names = found.groups()
    if _NEXT_SENTENCE.search(sentence) or "<" in sentence:
        raise FormError(f"more than one sentence: {sentence!r}")
    proofs = _PROOFS.fullmatch(names)
    if proofs is None:
        raise FormError(f"{names!r} are no names of invariants and tests")
    invariants = (proofs[1] or proofs[2] or "").split(", ") if proofs[1] or proofs[2] else []
    tests = []
    for name in (proofs[3] or "").split(", ") if proofs[3] else []:
        test = _TEST.fullmatch(name)
        if test is None:
            raise FormError(f"{name!r} is no test's name")
        tests.append((test[1], test[2]))
    if len({*tests, *invariants}) < len(tests) + len(invariants):
        raise FormError(f"a proof is named twice: {sentence!r}")
    return Claim(sentence, invariants, tests)


def invariants_in(folder: Path) -> set[str]:
    """Return the invariants that the simulation may find broken."""
    return {name for file in folder.glob("*.py") for name in _BREACH.findall(file.read_text(encoding="utf-8"))}


def runs(source: str, name: str) -> bool:
    """Return True if a module has a test of that name that is not always skipped."""
    module = ast.parse(source)
    found = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.name == name]
    if len(found) != 1 or any(map(_skips, module.body)):
        return False
    return not any(map(_is_skip, _marks(module, found[0]))) and not any(map(_skips, found[0].body))


def is_thorough(source: str, name: str) -> bool:
    """Return True if `make test` leaves out a whole test. Single parameters may be thorough."""
    module = ast.parse(source)
    (found,) = (one for one in module.body if isinstance(one, ast.FunctionDef) and one.name == name)
    return any("pytest.mark.thorough" in ast.unparse(mark) for mark in _marks(module, found))


def _marks(module: ast.Module, test: ast.FunctionDef) -> list[ast.expr]:
    """Return the decorators of a test and the marks of its module; a mark's name is replaced by its value."""
    known = {
        target.id: one.value
        for one in module.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    given = known.get("pytestmark", ast.List(elts=[]))
    marks = [
        *(mark for mark in test.decorator_list if not ast.unparse(mark).startswith("pytest.mark.parametrize(")),
        *(given.elts if isinstance(given, ast.List | ast.Tuple) else [given]),
    ]
    return [known.get(mark.id, mark) if isinstance(mark, ast.Name) else mark for mark in marks]


def _is_skip(mark: ast.expr) -> bool:
    text = ast.unparse(mark)
    return re.match(r"pytest\.mark\.(skip\b|xfail\b|skipif\((True|1)\b)", text) is not None


def _skips(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and re.match(r"pytest\.(skip|xfail|importorskip)\(", ast.unparse(statement)) is not None
    )


CLAIMS = claims_of(PAGE.read_text(encoding="utf-8"))
INVARIANTS = invariants_in(ROOT / "tests" / "simulation")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.sentence[:60])
def test_each_sentence_has_proofs(claim: Claim) -> None:
    assert claim.tests or claim.invariants
    assert set(claim.invariants) <= INVARIANTS
    for file, name in claim.tests:
        assert (ROOT / file).is_file(), file
        assert runs((ROOT / file).read_text(encoding="utf-8"), name), f"{file}::{name}"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.sentence[:60])
def test_each_sentence_has_a_proof_in_make_test(claim: Claim) -> None:
    if claim.invariants:
        return  # a minute of the simulation is in `make test`
    sources = [((ROOT / file).read_text(encoding="utf-8"), name) for file, name in claim.tests]
    assert not all(is_thorough(source, name) for source, name in sources)


def test_no_sentence_is_there_twice() -> None:
    assert len({claim.sentence for claim in CLAIMS}) == len(CLAIMS) > 50


# The parser, which would find no claims if the page had another form

SMALL = (
    f"{TITLE}\n\nWhat is promised.\n\n## Source\n\n### Loss\n\n"
    "- Nothing\n  is lost.<br>\n  <sub>tests/a/test_b.py::test_c</sub>\n"
)


def test_reads_a_page() -> None:
    more = "- More.<br>\n  <sub>invariant rows_exact; tests/test_b.py::test_c, tests/test_b.py::test_d</sub>\n"
    more += "- All.<br>\n  <sub>invariants rows_exact, stored_once</sub>\n"
    assert claims_of(SMALL + more) == [
        Claim("Nothing is lost", [], [("tests/a/test_b.py", "test_c")]),
        Claim("More", ["rows_exact"], [("tests/test_b.py", "test_c"), ("tests/test_b.py", "test_d")]),
        Claim("All", ["rows_exact", "stored_once"], []),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What is promised.\n\n", ""),
        ("tests/a", "invariant; tests/a"),
        ("tests/a", "invariant rows_exact, stored_once; tests/a"),
        ("tests/a", "invariants lost, lost; tests/a"),
        ("tests/a/test_b.py::test_c", ""),
        ("## Source\n", "## Source\n\nIt reads.\n"),
        ("### Loss\n", "### Loss\n\n### Gain\n"),
        ("### Loss\n", "### Loss: none.\n"),
        ("- Nothing", "Nothing"),
        ("is lost.", "is lost. Nothing comes twice."),
        ("is lost.", "is lost"),
        ("<br>\n  <sub>tests/a/test_b.py::test_c</sub>", ""),
        ("::test_c", ""),
        ("::test_c", "::helper"),
        ("::test_c", "::test_c[id]"),
        ("::test_c", "::test_c, tests/a/test_b.py::test_c"),
        ("</sub>", "</sub> And more."),
        ("</sub>\n", "</sub>\n\nAnd more.\n"),
        ("</sub>\n", "</sub>\n\n## Sink\n"),
    ],
)
def test_refuses_a_claim_in_another_place(old: str, new: str) -> None:
    assert old in SMALL
    with pytest.raises(FormError):
        claims_of(SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("source", "there"),
    [
        ("def test_x(): ...", True),
        ("@pytest.mark.skipif(not HERE, reason='')\ndef test_x(): ...", True),
        ("m = pytest.mark.parametrize('a', [1])\n@m\ndef test_x(a):\n    if a:\n        pytest.skip('')", True),
        ("pytestmark = pytest.mark.timeout(1)\ndef test_x(): ...", True),
        ("def test_y(): ...", False),
        ("def outer():\n    def test_x(): ...", False),
        ("@pytest.mark.skip\ndef test_x(): ...", False),
        ("@pytest.mark.skip(reason='')\ndef test_x(): ...", False),
        ("@pytest.mark.skipif(True, reason='')\ndef test_x(): ...", False),
        ("m = pytest.mark.xfail(reason='')\n@m\ndef test_x(): ...", False),
        ("pytestmark = [pytest.mark.timeout(1), pytest.mark.skip]\ndef test_x(): ...", False),
        ("def test_x():\n    'why'\n    pytest.skip('')", False),
        ("pytest.skip('', allow_module_level=True)\ndef test_x(): ...", False),
    ],
)
def test_a_test_that_never_runs_does_not_count(source: str, there: bool) -> None:
    assert runs(source, "test_x") is there


@pytest.mark.parametrize(
    ("source", "thorough"),
    [
        ("def test_x(): ...", False),
        ("@pytest.mark.thorough\ndef test_x(): ...", True),
        ("pytestmark = [pytest.mark.real, pytest.mark.thorough]\ndef test_x(): ...", True),
        ("m = pytest.mark.thorough\n@m\ndef test_x(): ...", True),
        ("@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.thorough)])\ndef test_x(a): ...", False),
    ],
)
def test_a_thorough_test_is_recognised(source: str, thorough: bool) -> None:
    assert is_thorough(source, "test_x") is thorough
