# SPDX-License-Identifier: Apache-2.0
"""Tests of what the site changes in tables, so that they can be read on a phone."""

from __future__ import annotations

import re

import pytest

site_hooks = pytest.importorskip("scripts.site_hooks", reason="`make site` installs mkdocs")

LONG = "a sentence that is much longer than a figure, a name or a number"


def made(*rows: tuple[str, ...]) -> str:
    """Return the table as the site shows it; the first row has the heads."""
    kinds = ["th", *["td"] * (len(rows) - 1)]
    lines = ["".join(f"<{kind}>{cell}</{kind}>" for cell in row) for kind, row in zip(kinds, rows, strict=True)]
    table: str = site_hooks.fit_table("<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")
    return table


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tubemq.producer.maxInFlightBytes", ["tubemq.", "producer.", "maxInFlightBytes"]),
        ("brokerId:partitionId", ["brokerId:", "partitionId"]),
        ("startingOffsetsByTimestampStrategy", ["startingOffsetsByTimestampStrategy"]),
        ("INTERNAL_SERVER_ERROR_MSGSET_NULL", ["INTERNAL_", "SERVER_", "ERROR_", "MSGSET_", "NULL"]),
        (
            "{&quot;topic&quot;:{&quot;brokerId:partitionId&quot;:time}}",
            ["{&quot;topic&quot;:", "{&quot;brokerId:", "partitionId&quot;:", "time}}"],
        ),
        ("2026-01-31T12:00:00+01:00", ["2026-01-31T12:00:00+01:00"]),
    ],
)
def test_names_break_behind_separators_only(name: str, parts: list[str]) -> None:
    assert re.findall(r"<code>(.*)</code>", made(("a",), (f"<code>{name}</code>",))) == ["<wbr>".join(parts)]


def test_addresses_of_links_stay() -> None:
    link = '<a href="a/long/address/of.html#a-part">text</a>'
    assert link in made(("a",), (link,))


def test_cells_of_a_table_of_texts_have_labels() -> None:
    shown = made(("option", "default", "meaning"), ("x", "1", LONG))
    assert shown.startswith("<table data-texts>")
    assert re.findall(r'data-label="([^"]*)"', shown) == ["option", "default", "meaning"]


def test_a_table_of_figures_stays_a_table() -> None:
    assert "data-" not in made(("a", "b", "c"), ("1", "2", "3"))


def test_two_columns_need_no_labels() -> None:
    assert "data-label" not in made(("a", "b"), ("1", LONG))
