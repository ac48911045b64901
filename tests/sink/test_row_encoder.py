# SPDX-License-Identifier: Apache-2.0
"""Digests of rows: equal for equal rows, on any machine. Attributes: the same together and one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.sink.row_encoder import RowEncoder, digest_of
from tubemq_spark.sink.schema import Cells, cells_of_batch
from tubemq_spark.sink.value_format import ValueFormat

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


CLEAN = ("a", "b", "c d", "é", "\nx")
ODD = (b",", b"=", b"\n", b"", b"$msgTime$", b"spark_id", b"spark_compression", b"\xc3", b"\xa9", None)


def maps_of(keys: Sequence[Any], texts: Sequence[Any], **others: Any) -> st.SearchStrategy[Any]:
    pairs = st.tuples(st.sampled_from(keys), st.sampled_from(texts))
    return st.lists(st.none() | st.lists(pairs, max_size=3, **others), min_size=1)


def attributes_of(
    maps: Sequence[Any], kind: pa.DataType, *, stamped: bool
) -> tuple[list[bytes] | None, Callable[[], list[bytes]]]:
    """Return the attributes of a column that is a slice of another one, and what makes them one by one."""
    column = pa.array([[("before", "1")], *maps, [("behind", None)]], pa.map_(pa.binary(), pa.binary()))
    column = column.view(pa.map_(pa.string(), pa.string())).cast(pa.map_(kind, kind))[1:-1]
    batch = pa.record_batch({"value": pa.array([b""] * len(maps)), "attributes": column})
    encoder = RowEncoder("demo", ValueFormat(), stamped=stamped)
    plain = encoder.encode(Cells(b"", msg_time=0)).attributes
    rows = (encoder.encode(cells._replace(msg_time=0)).attributes for cells in cells_of_batch(batch))
    return encoder.own_attributes(column), lambda: [row.removeprefix(plain).removeprefix(b",") for row in rows]


@given(maps_of(CLEAN, CLEAN, unique_by=lambda pair: pair[0]), st.sampled_from([pa.string(), pa.large_string()]))
def test_usual_attributes_are_made_together(maps: Sequence[Any], kind: pa.DataType) -> None:
    together, one_by_one = attributes_of(maps, kind, stamped=True)
    assert together == one_by_one()


def test_stamps_of_other_messages_are_usual_if_rows_have_none() -> None:
    together, one_by_one = attributes_of([[("spark_id", "a"), ("spark_row", "1")]], pa.string(), stamped=False)
    assert together == one_by_one() == [b"spark_id=a,spark_row=1"]


@given(maps_of([*map(str.encode, CLEAN), *filter(None, ODD)], [*map(str.encode, CLEAN), *ODD]))
def test_attributes_that_are_made_together_are_the_same_one_by_one(maps: Sequence[Any]) -> None:
    for stamped in (True, False):
        together, one_by_one = attributes_of(maps, pa.string(), stamped=stamped)
        assert together is None or together == one_by_one()


@pytest.mark.parametrize("column", ["value", "topic", "msg_type", "key"])
def test_different_rows_have_different_digests(column: str) -> None:
    texts: Any = [None, b"", b"a"] if column in ("value", "key") else [None, "", "a"]
    found = {digest_of(NONE._replace(**{"value": b"v", column: text})) for text in texts}
    assert len(found) == (2 if column == "value" else 3)  # no row without a value is sent
