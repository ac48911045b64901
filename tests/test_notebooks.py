# SPDX-License-Identifier: Apache-2.0
"""The outputs in the notebooks belong to their code and show nothing of the machine. `make notebooks` runs them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
HOW_TO = "run `make notebooks NOTEBOOKS='--write {}'`"

pytestmark = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def cells_of(file: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return cells


def source_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def outputs_of(file: Path) -> list[dict[str, Any]]:
    return [output for cell in cells_of(file) for output in cell.get("outputs", ())]


def test_outputs_belong_to_the_code(file: Path) -> None:
    told = json.loads(file.read_text(encoding="utf-8"))["metadata"].get("cells_sha256")
    cells = [f"{cell['cell_type']}\n{source_of(cell)}" for cell in cells_of(file)]
    assert told == hashlib.sha256("\0".join(cells).encode()).hexdigest(), HOW_TO.format(file.stem)


def test_all_cells_ran_once_from_top_to_bottom(file: Path) -> None:
    counts = [cell["execution_count"] for cell in cells_of(file) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), HOW_TO.format(file.stem)
    assert {output["output_type"] for output in outputs_of(file)} <= {"display_data", "execute_result", "stream"}
    assert {output.get("name") for output in outputs_of(file)} <= {None, "stdout"}


def test_outputs_show_no_machine(file: Path) -> None:
    texts = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in outputs_of(file)]
    told = "\n".join("".join(text) for text in texts)
    assert re.findall(r"/(?:home|root|tmp|usr|Users|opt|work)/\S*|127\.0\.0\.1:\d+|0x[0-9a-f]{6,}", told) == []
