"""What to read: bounds and stores' ends as positions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.client.claims import Standing
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.options import EARLIEST, LATEST
from tubemq_spark.source.plan import ending_positions, needs_earliest, next_end, ranges, starting_positions

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)
# A keeps [28, 140) and the group stands at 84; B is empty and new to the group; C's group is at its end.
STANDINGS = {A: Standing(84, 140), B: Standing(0, 0), C: Standing(280, 280)}
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
    assert starting_positions(starting, STANDINGS, EARLIEST_OF if needs_earliest(starting) else {}) == expected


def test_a_group_beyond_the_end_begins_at_the_end() -> None:
    """A broker that lost its tail still tells the group's old position."""
    assert starting_positions("group", {A: Standing(168, 140)}, {}) == {A: 140}


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
    assert ending_positions(ending, EARLIEST_OF, STANDINGS) == expected


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
def test_starting_positions_that_cannot_be(starting: dict[Partition, int], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        starting_positions(starting, STANDINGS, EARLIEST_OF)
    assert str(caught.value).startswith("option 'startingOffsets' ")
    assert problem in str(caught.value)


def test_a_starting_position_that_is_not_kept_any_more() -> None:
    with pytest.raises(DataLossError, match=r"^1:t:0: .*'startingOffsets' asks for 0, .*before 28 .* -2 ") as caught:
        starting_positions({A: 0, B: 0, C: 56}, STANDINGS, EARLIEST_OF)
    error = caught.value
    assert (error.topic, error.broker_id, error.partition, error.asked, error.offered) == ("t", 1, 0, 0, 28)


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ({A: 84}, "must name all partitions"),
        ({A: 84, B: 0, C: 56, Partition(1, "t", 7): 0}, "names 1:t:7"),
        ({A: 168, B: 0, C: 56}, "has 168 for 1:t:0, which lies beyond the end of the store: 140"),
        ({A: 0, B: 0, C: 56}, "has 0 for 1:t:0, which lies before the start 28"),
    ],
)
def test_ending_positions_that_cannot_be(ending: dict[Partition, int], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ending_positions(ending, EARLIEST_OF, STANDINGS)
    assert str(caught.value).startswith("option 'endingOffsets' ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("start", "ends", "added", "expected"),
    [
        ({A: 28}, {A: 28}, {}, {A: 28}),
        ({A: 28, B: 0}, {A: 140, B: 0}, {}, {A: 140, B: 0}),
        ({A: 28}, {A: 56}, {C: 280}, {A: 56, C: 280}),
        ({A: 28}, {A: 28, C: 300}, {C: 280}, {A: 28, C: 280}),  # a new partition's first messages are the next batch's
    ],
)
def test_next_end(start: Any, ends: Any, added: Any, expected: dict[Partition, int]) -> None:
    assert next_end(start, ends, added) == expected


def test_a_store_that_ends_before_what_was_read_has_lost_its_tail() -> None:
    with pytest.raises(DataLossError, match=r"^1:t:0: .*ends at 84, .* read up to 140: .*\[84, 140\)") as caught:
        next_end({A: 140, B: 0}, {A: 84, B: 0}, {})
    error = caught.value
    assert (error.topic, error.broker_id, error.partition, error.asked, error.offered) == ("t", 1, 0, 140, 84)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ({}, {}, {}),
        ({A: 28, B: 0}, {A: 28, B: 0}, {}),
        ({A: 28, B: 0}, {A: 140, B: 0}, {A: (28, 140)}),
        ({A: 28}, {A: 28, C: 280}, {}),  # new in `end`: it enters there, and is read from the next batch on
        ({A: 28, C: 0}, {A: 28}, {}),
    ],
)
def test_ranges(start: Any, end: Any, expected: dict[Partition, tuple[int, int]]) -> None:
    assert ranges(start, end) == expected


def test_a_checkpoint_that_goes_backwards() -> None:
    with pytest.raises(ConfigError, match="backwards for 1:t:0, from 56 to 28"):
        ranges({A: 56}, {A: 28})


@st.composite
def stores(draw: st.DrawFn) -> tuple[dict[Partition, Standing], dict[Partition, int]]:
    """Standings and earliest positions of some partitions; a group may stand outside of what is kept."""
    standings, earliest = {}, {}
    for number in range(draw(st.integers(1, 4))):
        partition = Partition(draw(st.integers(1, 3)), draw(st.sampled_from("ab")), number)
        first, end = sorted((draw(st.integers(0, 50)), draw(st.integers(0, 50))))
        standings[partition] = Standing(28 * draw(st.integers(0, 60)), 28 * end)
        earliest[partition] = 28 * first
    return standings, earliest


@given(stores(), st.data())
def test_explicit_bounds_within_what_is_kept_are_what_is_read(
    found: tuple[dict[Partition, Standing], dict[Partition, int]], data: st.DataObject
) -> None:
    standings, earliest = found

    def between(low: int, high: int) -> int:
        return 28 * data.draw(st.integers(low // 28, high // 28))

    starting = {partition: between(earliest[partition], standing.end) for partition, standing in standings.items()}
    ending = {partition: between(starting[partition], standing.end) for partition, standing in standings.items()}
    starts = starting_positions(starting, standings, earliest)
    ends = ending_positions(ending, starts, standings)
    assert (starts, ends) == (starting, ending)
    to_read = ranges(starts, ends)
    assert to_read == {p: (starting[p], ending[p]) for p in standings if starting[p] < ending[p]}


@given(stores(), st.sampled_from(["earliest", "latest", "group", EARLIEST, LATEST]))
def test_no_start_lies_beyond_the_end(
    found: tuple[dict[Partition, Standing], dict[Partition, int]], starting: Any
) -> None:
    standings, earliest = found
    bound = starting if isinstance(starting, str) else dict.fromkeys(standings, starting)
    starts = starting_positions(bound, standings, earliest)
    assert starts.keys() == standings.keys()
    assert all(starts[partition] <= standing.end for partition, standing in standings.items())
    ranges(starts, ending_positions("latest", starts, standings))


@given(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_batches_of_a_query_join_without_gap_or_overlap(growth: list[list[int]]) -> None:
    """However the stores grow, and although C appears later: every position is in one range at most, in order."""
    ends = {A: 0, B: 280, C: 56}
    position: dict[Partition, int] = {A: 0, B: 280}
    read: dict[Partition, int] = {}
    for turn, steps in enumerate(growth):
        ends = {partition: end + 28 * step for (partition, end), step in zip(ends.items(), steps, strict=True)}
        added = {C: 56} if turn and C not in position else {}
        end = next_end(position, {p: ends[p] for p in position}, added)
        for partition, (begin, until) in ranges(position, end).items():
            assert begin == read.get(partition, {A: 0, B: 280, C: 56}[partition])
            read[partition] = until
        position = end
    assert {p: until for p, until in position.items() if p in read} == read
