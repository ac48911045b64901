# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of checks: the ground to plant faults in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.planted import Ground, open_ground


@pytest.fixture
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    with open_ground(request, tmp_path, monkeypatch) as opened:
        yield opened
