# SPDX-License-Identifier: Apache-2.0
"""README.md names what exists. `test_examples.py` runs its code."""

from __future__ import annotations

import re

from tests.documentation.pages import ROOT
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

README = (ROOT / "README.md").read_text(encoding="utf-8")


def targets(text: str) -> list[str]:
    """Return where the links and pictures of a page lead, without those to other sites."""
    return [target for target in re.findall(r"\]\(([^)\s#]+)", text) if not re.match(r"[a-z]+:", target)]


def test_the_links_of_the_readme_lead_to_files() -> None:
    assert [target for target in targets(README) if not (ROOT / target).is_file()] == []


def test_the_options_of_the_readme_exist() -> None:
    table = README.split("\n## The most used options\n")[1].split("\n## ")[0]
    names = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    assert len(names) > 5
    assert names <= {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
