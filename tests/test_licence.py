# SPDX-License-Identifier: Apache-2.0
"""Sources that are not Python name their licence; ruff's rule CPY001 checks the others."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LINE = "SPDX-License-Identifier: Apache-2.0"
FILES = [
    *(ROOT / "tests").rglob("*.java"),
    *(ROOT / "benchmarks").rglob("*.java"),
    ROOT / "scripts/need",
    ROOT / ".ci/run",
]


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_a_source_names_its_licence(file: Path) -> None:
    head = file.read_text(encoding="utf-8").split("\n")[:2]
    assert any(LINE in line for line in head), f"add as the first comment: {LINE}"
