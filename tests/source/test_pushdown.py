# SPDX-License-Identifier: Apache-2.0
"""Conditions of a batch query that let it read less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.pushdown import PushedFilters

ORDERS, CLICKS = Partition(1, "orders", 0), Partition(2, "clicks", 10_001)


def narrowed(*filters: Filter) -> tuple[PushedFilters, list[Filter]]:
    """Return what is left to read, and the filters that Spark must check."""
    found = PushedFilters()
    return found, list(found.add(filters))


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        (EqualTo(("topic",), "orders"), [ORDERS]),
        (EqualNullSafe(("topic",), "orders"), [ORDERS]),
        (In(("topic",), ("orders", "others")), [ORDERS]),
        (In(("topic",), ()), []),
        (StringStartsWith(("topic",), "cl"), [CLICKS]),
        (StringEndsWith(("topic",), "ers"), [ORDERS]),
        (StringContains(("topic",), "c"), [CLICKS]),
        (Not(EqualTo(("topic",), "orders")), [CLICKS]),
        (Not(In(("topic",), ("orders", "clicks"))), []),
        (In(("topic",), ("orders", None)), [ORDERS]),
        (Not(In(("topic",), ("orders", None))), []),
        (Not(In(("topic",), (None,))), []),
        (GreaterThan(("broker_id",), 1), [CLICKS]),
        (GreaterThanOrEqual(("broker_id",), 1), [ORDERS, CLICKS]),
        (LessThan(("partition",), 10_001), [ORDERS]),
        (LessThanOrEqual(("partition",), 10_001), [ORDERS, CLICKS]),
        (IsNotNull(("topic",)), [ORDERS, CLICKS]),
        (IsNull(("broker_id",)), []),
        (Not(IsNull(("partition",))), [ORDERS, CLICKS]),
    ],
)
def test_conditions_on_partitions_are_decided_here(condition: Filter, chosen: Sequence[Partition]) -> None:
    found, left = narrowed(condition)
    assert left == []
    assert [partition for partition in (ORDERS, CLICKS) if found.includes(partition)] == chosen


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("topic", "inner"), "x"),
        EqualNullSafe(("topic",), None),
        Not(EqualNullSafe(("broker_id",), None)),
        IsNotNull(("msg_type",)),
        Not(EqualTo(("msg_type",), "a")),
        StringStartsWith(("msg_type",), "a"),
        IsNull(("offset",)),
        Not(EqualTo(("offset",), 28)),
        IsNotNull(("msg_time",)),
    ],
)
def test_other_conditions_are_left_to_spark(condition: Filter) -> None:
    assert narrowed(condition) == (PushedFilters(), [condition])


@pytest.mark.parametrize(
    ("filters", "types"),
    [
        ([EqualTo(("msg_type",), "a")], {"a"}),
        ([In(("msg_type",), ("a", "b", None))], {"a", "b"}),
        ([In(("msg_type",), ("a", "b")), EqualNullSafe(("msg_type",), "b")], {"b"}),
        ([EqualTo(("msg_type",), "a"), EqualTo(("msg_type",), "b")], set()),
    ],
)
def test_broker_filters_message_types_and_spark_checks_them(filters: list[Filter], types: set[str]) -> None:
    found, left = narrowed(*filters)
    assert found.msg_types == frozenset(types)
    assert left == filters


_TESTS: dict[type[Filter], Callable[[int, int], bool]] = {
    EqualTo: lambda offset, value: offset == value,
    GreaterThan: lambda offset, value: offset > value,
    GreaterThanOrEqual: lambda offset, value: offset >= value,
    LessThan: lambda offset, value: offset < value,
    LessThanOrEqual: lambda offset, value: offset <= value,
}


@given(st.lists(st.tuples(st.sampled_from(list(_TESTS)), st.integers(-60, 400)), min_size=1, max_size=3))
def test_offset_conditions_lose_no_wanted_row(conditions: list[tuple[Any, int]]) -> None:
    """At most one unwanted row is read at each side."""
    filters = [kind(("offset",), value) for kind, value in conditions]
    found, left = narrowed(*filters)
    assert left == filters
    assert found.bounds_offset
    start, end = found.cut(28, 280)
    wanted = [p for p in range(28, 280, 28) if all(_TESTS[kind](p, value) for kind, value in conditions)]
    assert list(range(start, end, 28)) == wanted


def test_list_of_offsets_bounds_the_range() -> None:
    found, _ = narrowed(In(("offset",), (84, 140)))
    assert found.cut(0, 280) == (84, 168)
    assert narrowed(In(("offset",), (84, None)))[0] == PushedFilters()
