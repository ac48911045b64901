# SPDX-License-Identifier: Apache-2.0
"""The command `doctor` finds each planted fault (tests.checks.planted), and prints what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.checks.planted import FAULTS, Ground, Options, open_ground, reading
from tests.cli.conftest import Run

SOON = {"unknown_option", "broker_down", "wrong_authority", "group_not_allowed", "package_missing_on_executors"}
IMPOSSIBLE = {"bad_option_value", "options_that_exclude_each_other"}  # the command has no such options of a query
CASES = [
    pytest.param(name, marks=[] if name in SOON else [pytest.mark.thorough])
    for name, fault in FAULTS.items()
    if "doctor" in fault.seen_by and name not in IMPOSSIBLE
]

_PROBLEM = re.compile(r"(failed|warning) +(\S+) +(.+)\n(?: +what to do: (.+)\n)?")
_SUMMARY = re.compile(r"(\d+) ok, (\d+) warning, (\d+) failed\n")


class Problem(NamedTuple):
    state: str
    check: str
    text: str
    remedy: str


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    with open_ground(request, tmp_path, monkeypatch) as opened:
        yield opened


def arguments_for(options: Options) -> list[str]:
    """Return the command line that names the same things as the options of a query."""
    names = {"tubemq.master": "--master", "tubemq.group": "--group", "subscribe": "--topic", "topic": "--write"}
    told = ["doctor", "--quiet"]
    for name, value in options.items():
        told += [names[name], value] if name in names else ["-X", f"{name.removeprefix('tubemq.')}={value}"]
    return told


def problems_in(report: str) -> list[Problem]:
    """Return the problems of a report that has no other lines."""
    found = [Problem(*(text or "" for text in match.groups())) for match in _PROBLEM.finditer(report)]
    summary = _SUMMARY.fullmatch(_PROBLEM.sub("", report))
    assert summary is not None, report
    states = [problem.state for problem in found]
    assert (states.count("warning"), states.count("failed")) == (int(summary[2]), int(summary[3]))
    return found


def test_at_least_twenty_faults_are_planted() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_the_command_finds_a_planted_fault(ground: Ground, run: Run, name: str) -> None:
    fault = FAULTS[name]
    done = run(*arguments_for(fault.plant(ground)))
    problems = problems_in(done.stdout)
    assert {problem.check for problem in problems} == fault.finds, done.stdout
    assert any(fault.words in f"{problem.text} {problem.remedy}" for problem in problems), done.stdout
    assert all(problem.remedy for problem in problems), done.stdout
    assert done.returncode == int(any(problem.state == "failed" for problem in problems))


def test_the_command_finds_nothing_in_a_healthy_installation(ground: Ground, run: Run) -> None:
    done = run(*arguments_for(reading(ground.cluster())))
    assert (done.returncode, problems_in(done.stdout)) == (0, [])
