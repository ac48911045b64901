# SPDX-License-Identifier: Apache-2.0
"""Bounds and log ends become ranges, and ranges become tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.option_parsers import EARLIEST, LATEST
from tubemq_spark.source.range_planner import (
    ending_positions,
    lost_tails,
    ranges,
    starting_positions,
    tasks,
)

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)
# A has [28, 140), and the group is at 84; B is empty, and the group is new there; in C the group is at the end.
GROUP_POSITIONS = {A: GroupPosition(84, 140), B: GroupPosition(0, 0), C: GroupPosition(280, 280)}
EARLIEST_OF = {A: 28, B: 0, C: 56}


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", {A: 28, B: 0, C: 56}),
        ("latest", {A: 140, B: 0, C: 280}),
        ("group", {A: 84, B: 0, C: 280}),
        ({A: 28, B: 0, C: 56}, {A: 28, B: 0, C: 56}),
        ({A: 140, B: 0, C: 280}, {A: 140, B: 0, C: 280}),
        ({A: 112, B: EARLIEST, C: LATEST}, {A: 112, B: 0, C: 280}),
        ({A: LATEST, B: LATEST, C: EARLIEST}, {A: 140, B: 0, C: 56}),
    ],
)
def test_starting_positions(starting: Any, expected: dict[Partition, int]) -> None:
    assert starting_positions(starting, GROUP_POSITIONS, EARLIEST_OF) == expected


def test_group_beyond_the_end_begins_at_the_end() -> None:
    """A broker that lost its tail still reports the group's old position."""
    assert starting_positions("group", {A: GroupPosition(168, 140)}, {}) == {A: 140}


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("latest", {A: 140, B: 0, C: 280}),
        ({A: LATEST, B: LATEST, C: LATEST}, {A: 140, B: 0, C: 280}),
        ({A: 84, B: 0, C: 56}, {A: 84, B: 0, C: 56}),
        ({A: 28, B: 0, C: 280}, {A: 28, B: 0, C: 280}),
    ],
)
def test_ending_positions(ending: Any, expected: dict[Partition, int]) -> None:
    assert ending_positions(ending, EARLIEST_OF, GROUP_POSITIONS) == expected


@pytest.mark.parametrize(
    ("starting", "problem"),
    [
        ({}, "must name all partitions of the subscribed topics, 1:t:0, 1:t:1, 2:u:0 "),
        ({A: 28, C: 56}, "must name all partitions of the subscribed topics, 1:t:1 "),
        ({A: 28, B: 0, C: 56, Partition(9, "t", 0): 28}, "names 9:t:0 (brokerId:topic:partitionId)"),
        ({A: 168, B: 0, C: 56}, "has 168 for 1:t:0, which lies beyond the end of the store: 140; use -1"),
        ({A: 28, B: 28, C: 56}, "has 28 for 1:t:1, which lies beyond the end of the store: 0; use -1"),
    ],
)
def test_bad_starting_positions_are_refused(starting: dict[Partition, int], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        starting_positions(starting, GROUP_POSITIONS, EARLIEST_OF)
    assert str(caught.value).startswith("option 'startingOffsets' ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ({A: 84}, "must name all partitions"),
        ({A: 84, B: 0, C: 56, Partition(1, "t", 7): 0}, "names 1:t:7"),
        ({A: 168, B: 0, C: 56}, "has 168 for 1:t:0, which lies beyond the end of the store: 140"),
        ({A: 0, B: 0, C: 56}, "has 0 for 1:t:0, which lies before the start 28"),
    ],
)
def test_bad_ending_positions_are_refused(ending: dict[Partition, int], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ending_positions(ending, EARLIEST_OF, GROUP_POSITIONS)
    assert str(caught.value).startswith("option 'endingOffsets' ")
    assert problem in str(caught.value)


def test_store_that_ends_before_the_read_position_lost_its_tail() -> None:
    (loss,) = lost_tails({A: 140, B: 0}, {A: 84, B: 0}, {A: 84, B: 0}).values()
    assert (loss.topic, loss.broker_id, loss.partition, loss.asked, loss.offered) == ("t", 1, 0, 140, 84)
    text = str(loss)
    assert text.startswith("1:t:0: the store ends at 84, but the query has read up to 140")
    assert "[84, 140)" in text


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
