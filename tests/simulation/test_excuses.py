# SPDX-License-Identifier: Apache-2.0
"""Each case that the simulated world excuses is granted by a sentence of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import families  # noqa: F401, imports all modules that excuse something
from tests.simulation.promises import GRANTS, Grant

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("grant", GRANTS, ids=lambda grant: f"{grant.excuse} by {grant.page}")
def test_the_page_has_the_sentence(grant: Grant) -> None:
    text = " ".join((DOCS / grant.page).read_text(encoding="utf-8").split())
    assert grant.sentence in text, f"docs/{grant.page} does not grant {grant.excuse} any more"


def test_excuses_of_reading_and_writing_are_found() -> None:
    modules = {grant.excuse.partition(".")[0] for grant in GRANTS}
    assert {"Reading", "Group", "Fencing", "StoredOnce", "Receipts", "is_late"} <= modules
