# SPDX-License-Identifier: Apache-2.0
"""README.md is short, leads readers on, and names what exists. `test_examples.py` runs its code."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.documentation.pages import ROOT
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS

README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURES = sorted((ROOT / "docs/images").glob("*.svg"))


def targets(text: str) -> list[str]:
    """Return where the links and pictures of a page lead, without those to other sites."""
    return [target for target in re.findall(r"\]\(([^)\s#]+)", text) if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("page", ["README.md", "docs/deprecation.md", "docs/zh/README.md", "CHANGELOG.md"])
def test_pages_name_the_versions_of_tubemq_that_were_tried(page: str) -> None:
    """No release is called 2.5: what was tried is a snapshot."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "1.2.0" in text
    assert "2.1.0" in text
    assert re.search(r"2\.5\.0[^.|]{0,4}(snapshot|快照)|snapshot of 2\.5\.0", text)


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def test_the_comparison_with_kafka_is_on_the_first_screen() -> None:
    assert "docs/kafka.md" in targets("\n".join(README.splitlines()[:25]))


def test_the_links_of_the_readme_lead_to_files() -> None:
    assert [target for target in targets(README) if not (ROOT / target).is_file()] == []


def test_the_options_of_the_readme_exist() -> None:
    table = README.split("\n## The most used options\n")[1].split("\n## ")[0]
    names = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)}
    assert len(names) > 5
    assert names <= {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_small_and_says_what_it_shows(picture: Path) -> None:
    """For readers who do not see it. Text stays text, so that it can be searched and read aloud."""
    root = ElementTree.parse(picture).getroot()
    found = {element.tag.rpartition("}")[2]: element for element in root.iter()}
    assert picture.stat().st_size < 300_000
    assert (found["title"].text or "").strip()
    assert (found["desc"].text or "").strip()
    assert {"text"} <= found.keys()
    assert not {"image", "script", "foreignObject"} & found.keys()


def test_pages_show_all_pictures() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {(page.parent / target).resolve() for page in pages for target in targets(page.read_text(encoding="utf-8"))}
    assert set(PICTURES) <= shown
