# SPDX-License-Identifier: Apache-2.0
"""The workflows and `.ci/run` call targets that the Makefile has. Benchmarks and notebooks run in environments that
users have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / ".github" / "workflows").iterdir())
CALLERS = [".ci/run", *WORKFLOWS]


def targets_of(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def called_in(script: str) -> set[str]:
    """Return the targets of `make` calls: `make check`, or those of a job for each item of `target:`."""
    called = set(re.findall(r"^\s*(?:- run: |run: )?make ([a-z-]+)", script, re.MULTILINE))
    for items in re.findall(r"^ +target:\n((?: +- [a-z-]+\n)+)", script, re.MULTILINE):
        called |= set(re.findall(r"- ([a-z-]+)", items))
    return called


@pytest.mark.parametrize("caller", CALLERS)
def test_called_targets_exist(caller: str) -> None:
    called = called_in((ROOT / caller).read_text(encoding="utf-8"))
    assert called
    assert called <= targets_of((ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_actions_are_pinned_by_commit(workflow: str) -> None:
    uses = re.findall(r"uses: (.+)", (ROOT / workflow).read_text(encoding="utf-8"))
    assert uses
    assert [one for one in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[\d.]+", one)] == []


def test_a_release_needs_the_tests_of_its_commit() -> None:
    release = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", release, re.MULTILINE))
    assert called_in(jobs["test"]) == {"test"}
    assert "needs: [build, speedups, test]" in jobs["publish"]
    assert "branches" not in release


# The one switch: the commit that releases 0.1.0 sets it, and then the pages must name the package of PyPI.
IS_RELEASED = False
PAGES = ["README.md", *(str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs").rglob("*.md")))]

NOTEBOOKS = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "notebooks").glob("*.[im]*"))]


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS])
def test_pages_install_from_pypi_only_what_is_there(page: str) -> None:
    commands = re.findall(r"pip install [^`\n]*?'(tubemq-spark|\.)\[", (ROOT / page).read_text(encoding="utf-8"))
    assert set(commands) <= {"tubemq-spark" if IS_RELEASED else "."}


@pytest.mark.parametrize(
    ("target", "readme"), [("bench", "README.md"), ("notebooks", "notebooks/README.md")], ids=["bench", "notebooks"]
)
def test_environments_of_users_are_made_by_the_commands_of_the_readmes(target: str, readme: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}: .*?(\.venv-\w+)/\.\w+.*\n\t.*\1/bin/python", makefile, re.MULTILINE)
    assert found is not None
    extras = re.search(rf"^{re.escape(found[1])}/\.made: EXTRAS := (.+)$", makefile, re.MULTILINE)
    command = re.search(r"pip install '(?:tubemq-spark|\.)\[(.+?)\]'", (ROOT / readme).read_text(encoding="utf-8"))
    assert extras is not None
    assert command is not None
    assert extras[1] == command[1]
