# SPDX-License-Identifier: Apache-2.0
"""Each story that is kept breaks the open defect that it shows, and nothing else; that of a mended defect breaks
nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.simulation.known import KNOWN, known
from tests.simulation.stories import Story, kept

ROOT = Path(__file__).parents[2]
STORIES = {story.name: story for story in kept()}

Broken = Mapping[str, list[list[str]]]
"""The invariants and texts that each story breaks, by its name."""


@pytest.fixture(scope="module")
def broken() -> Broken:
    """Play all stories in a process of their own: a world takes the place of this process's clock and threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.stories"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Broken = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("story", STORIES.values(), ids=lambda story: story.name)
def test_a_story_breaks_only_its_open_defect(story: Story, broken: Broken) -> None:
    texts = broken[story.name]
    assert story.breaks is None or story.breaks in {invariant for invariant, _ in texts}, (
        f"the defect seems to be mended: set `breaks` of {story.name}.json to null, and remove it from known.py"
    )
    new = [text for invariant, text in texts if known(invariant, text) is None]
    assert not new


def test_each_open_defect_has_a_story(broken: Broken) -> None:
    shown = {known(invariant, text) for texts in broken.values() for invariant, text in texts}
    assert {one.defect for one in KNOWN} == {one.defect for one in shown if one is not None}
