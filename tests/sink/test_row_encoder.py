# SPDX-License-Identifier: Apache-2.0
"""Digests of rows: equal for equal rows, on any machine."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from tubemq_spark.sink.row_encoder import digest_of
from tubemq_spark.sink.schema import Cells

NONE = Cells(*[None] * len(Cells._fields))
# These never change: another attempt of a task, by another Python, must find the rows of the earlier one.
DIGESTS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"value": b"a"}, "e4de234b095e6432"),
    "text of an alphabet that not all Pythons print": (
        {"value": b"a", "msg_type": "\U00010d40 \u0897 é"},
        "fed14409dc970f07",
    ),
    "all": (
        {
            "value": b"\x00\xff",
            "topic": "demo",
            "attributes": {"b": "2", "a": "ü"},
            "msg_time": datetime(2026, 11, 21, 8, 30, tzinfo=timezone.utc),
            "key": b"k",
            "broker_id": 1,
            "partition": 0,
        },
        "f901bb8674772dc6",
    ),
}


@pytest.mark.parametrize(("cells", "digest"), DIGESTS.values(), ids=list(DIGESTS))
def test_digests_never_change(cells: dict[str, Any], digest: str) -> None:
    assert digest_of(NONE._replace(**cells)) == digest


def test_the_order_of_attributes_does_not_change_the_digest() -> None:
    one = NONE._replace(value=b"v", attributes={"a": "1", "b": "2"})
    for other in ({"b": "2", "a": "1"}, [("b", "2"), ("a", "1")]):
        assert digest_of(NONE._replace(value=b"v", attributes=other)) == digest_of(one)


@pytest.mark.parametrize("column", ["value", "topic", "msg_type", "key"])
def test_different_rows_have_different_digests(column: str) -> None:
    texts: Any = [None, b"", b"a"] if column in ("value", "key") else [None, "", "a"]
    found = {digest_of(NONE._replace(**{"value": b"v", column: text})) for text in texts}
    assert len(found) == (2 if column == "value" else 3)  # no row without a value is sent
