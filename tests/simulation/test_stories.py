# SPDX-License-Identifier: Apache-2.0
"""No story that is kept breaks a promise again: the defect that each shows is mended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.simulation.stories import kept

ROOT = Path(__file__).parents[2]
STORIES = [story.name for story in kept()]

Broken = Mapping[str, list[str]]
"""What each story breaks, by its name."""


@pytest.fixture(scope="module")
def broken() -> Broken:
    """Play all stories in a process of their own: a world takes the place of this process's clock and threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.stories"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Broken = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("story", STORIES)
def test_a_story_breaks_nothing(story: str, broken: Broken) -> None:
    assert broken[story] == []
