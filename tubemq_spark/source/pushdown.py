# SPDX-License-Identifier: Apache-2.0
"""Filter pushdown: uses the conditions of a batch query to read less.

All rows of a partition have the same topic, broker and number. So conditions on these choose partitions, and Spark
need not check them again. The broker filters by message type, and bounds of `offset` cut the ranges. Their
results are not exact, so Spark checks these conditions again. Messages may be stored in any order of their times, so
conditions on `msg_time` cut nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import datasource as spark

from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.option_parsers import MAX_FILTERS

_OF_A_PARTITION: Mapping[str, Callable[[Partition], Any]] = {
    "topic": lambda partition: partition.topic,
    "broker_id": lambda partition: partition.broker_id,
    "partition": lambda partition: partition.partition_id,
}

# How a filter decides about a value that is not null.
_TESTS: Mapping[type[spark.Filter], Callable[[Any, Any], Any]] = {
    spark.EqualTo: operator.eq,
    spark.EqualNullSafe: operator.eq,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
    spark.In: lambda value, given: value in given,
    spark.StringStartsWith: str.startswith,
    spark.StringEndsWith: str.endswith,
    spark.StringContains: operator.contains,
    spark.IsNull: lambda value, given: False,
    spark.IsNotNull: lambda value, given: True,
}

_NO_BOUND = 1 << 62  # beyond each position, with room to add one in 64 bits


@dataclass
class PushedFilters:
    """What the conditions leave to read."""

    conditions: list[spark.Filter] = field(default_factory=list)  # on values that all rows of a partition share
    msg_types: frozenset[str] | None = None
    low: int = -_NO_BOUND  # index positions in [low, high)
    high: int = _NO_BOUND
    bounds_offset: bool = False  # then rows without an offset are not wanted

    def add(self, filters: Iterable[spark.Filter]) -> list[spark.Filter]:
        """Use the filters, and return those that Spark must check."""
        return [one for one in filters if not self._take(one)]

    def includes(self, partition: Partition) -> bool:
        return all(_holds(one, partition) for one in self.conditions)

    def cut(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of [start, end) within the bounds of `offset`."""
        low, high = max(start, -(-self.low // UNIT) * UNIT), min(end, -(-self.high // UNIT) * UNIT)
        return low, max(low, high)

    def _take(self, one: spark.Filter) -> bool:
        """Use the filter; return True if all rows that are read will satisfy it."""
        column = _column(one)
        if column in _OF_A_PARTITION and _is_decidable(one):
            self.conditions.append(one)
            return True
        if column == "msg_type" and (types := _texts(one)) is not None:
            self.msg_types = types if self.msg_types is None else self.msg_types & types
        elif column == "offset":
            self._bound_offset(one)
        return False

    def _bound_offset(self, one: spark.Filter) -> None:
        match one:
            case spark.EqualTo(value=int(value)):
                low, high = value, value + 1
            case spark.GreaterThan(value=int(value)):
                low, high = value + 1, _NO_BOUND
            case spark.GreaterThanOrEqual(value=int(value)):
                low, high = value, _NO_BOUND
            case spark.LessThan(value=int(value)):
                low, high = -_NO_BOUND, value
            case spark.LessThanOrEqual(value=int(value)):
                low, high = -_NO_BOUND, value + 1
            case spark.In(value=values) if values and all(isinstance(value, int) for value in values):
                low, high = min(values), max(values) + 1
            case _:
                return
        self.low, self.high, self.bounds_offset = max(self.low, low), min(self.high, high), True


def _column(one: spark.Filter) -> str | None:
    path: tuple[str, ...] = getattr(one.child if isinstance(one, spark.Not) else one, "attribute", ())
    return path[0] if len(path) == 1 else None


def _is_decidable(one: spark.Filter) -> bool:
    inner = one.child if isinstance(one, spark.Not) else one
    is_null_test = isinstance(inner, (spark.IsNull, spark.IsNotNull))
    return is_null_test or (type(inner) in _TESTS and getattr(inner, "value", None) is not None)


def _holds(one: spark.Filter, partition: Partition) -> bool | None:
    """Return what the condition is in SQL; None stands for NULL, which a negation leaves as it is."""
    if isinstance(one, spark.Not):
        child = _holds(one.child, partition)
        return None if child is None else not child
    value = _OF_A_PARTITION[_column(one) or ""](partition)
    found = bool(_TESTS[type(one)](value, getattr(one, "value", None)))
    return None if isinstance(one, spark.In) and not found and None in one.value else found


def _texts(one: spark.Filter) -> frozenset[str] | None:
    """Return the only values that the filter accepts, None if they are unknown or if the broker cannot filter by them:
    it drops blank ones, and accepts at most `MAX_FILTERS`."""
    match one:
        case spark.EqualTo(value=str(value)) | spark.EqualNullSafe(value=str(value)):
            texts = frozenset({value})
        case spark.In(value=values):
            texts = frozenset(value for value in values if isinstance(value, str))
        case _:
            return None
    return texts if len(texts) <= MAX_FILTERS and all(text.strip() for text in texts) else None
