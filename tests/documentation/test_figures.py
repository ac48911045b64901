# SPDX-License-Identifier: Apache-2.0
"""Tests that each measured figure of a page comes from a stored result, or has beside it how to measure it again.

A figure is a number with the sign of a unit, such as 5 ms. Settings are written out: 20 seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The tables between such markers are written from stored results, and other tests compare them.
_GENERATED = re.compile(r"<!-- (\w+): (?:begin|coverage) -->.*?<!-- \1: end -->", re.DOTALL)
_MEASURED = re.compile(r"\d[\d.,]* ?(?:ms|µs|s|MB|kB|MiB|%|messages/s)(?![\w/])")
_SOURCE = re.compile(r"(?:make|python -m|pytest) \w+|`tests/")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph, list or table outside the generated parts, and the text from its heading to the next."""
    text = _GENERATED.sub("", (DOCS / page).read_text(encoding="utf-8"))
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        for block in re.split(r"\n\s*\n", section):
            yield block, section


@pytest.mark.parametrize("page", ["performance.md", "scaling.md", "reliability.md"])
def test_figures_have_a_result_or_a_command(page: str) -> None:
    without = [
        block
        for block, section in blocks(page)
        if _MEASURED.search(re.sub(r"`[^`]*`", "", block)) and not _SOURCE.search(section)
    ]
    assert without == []
