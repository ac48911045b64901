# SPDX-License-Identifier: Apache-2.0
"""Offsets become ranges, and ranges become tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.range_planner import ranges, tasks

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({}, {}, {}),
        ({A: 28, B: 0}, {A: 28, B: 0}, {}),
        ({A: 28, B: 0}, {A: 140, B: 0}, {A: (28, 140)}),
        ({A: 28}, {A: 28, C: 280}, {}),  # C enters with this batch, and is read from the next batch on
        ({A: 28, C: 0}, {A: 28}, {}),
        ({A: 56, B: 0}, {A: 28, B: 28}, {B: (0, 28)}),  # A's store lost its tail, and the loss was accepted
    ],
)
def test_ranges(start: Any, end: Any, expected: dict[Partition, tuple[int, int]]) -> None:
    assert ranges(start, end) == expected


@pytest.mark.parametrize(
    ("sizes", "per_task", "counts"),
    [
        ([10, 10, 10], None, [1, 1, 1]),
        ([10] * 64, None, [1] * 64),
        ([1] * 1000, None, [16] * 55 + [15] * 8),
        ([100_000] * 100, None, [1] * 100),
        ([10] * 10, 1, [1] * 10),
        ([10] * 10, 4, [4, 3, 3]),
        ([100_000, 10, 10, 100_000, 10], 8, [1, 1, 3]),
        ([], 4, []),
    ],
)
def test_partitions_with_little_to_read_share_tasks(sizes: list[int], per_task: int | None, counts: list[int]) -> None:
    wanted = list(range(len(sizes)))
    dealt = tasks(wanted, sizes, per_task)
    assert [len(group) for group in dealt] == counts
    assert sorted(one for group in dealt for one in group) == wanted
