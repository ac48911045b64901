# SPDX-License-Identifier: Apache-2.0
"""What the planner refuses, how often it asks, and what it plans; tests/simulation proves that the plans are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.without_spark.query import GROUP, options
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.testing import EmbeddedTubeMQ

A, B = Partition(1, "t", 0), Partition(1, "u", 0)
ENDS = {A: 280, B: 56}
NewPlanner = Callable[..., MicroBatchPlanner]


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics={"t": 1, "u": 1}) as cluster:
        for number in range(12):
            cluster.send("t" if number < 10 else "u", b"%d" % number)
        yield cluster
        cluster.clear_faults()
        forget_servers()


@pytest.fixture
def new_planner(tubemq: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> Iterator[NewPlanner]:
    """Create the planner of a run. By default it begins at the earliest and asks the brokers each time."""
    planners = []

    def create(**given: Any) -> MicroBatchPlanner:
        planners.append(MicroBatchPlanner(replace(options(tubemq, "t", "u", clock=skipping_clock), **given)))
        return planners[-1]

    yield create
    for planner in planners:
        planner.stop()  # also those that a test has stopped


def test_second_scan_of_a_batch_gets_the_first_plan(tubemq: EmbeddedTubeMQ, new_planner: NewPlanner) -> None:
    """Spark calls `plan` for each scan. Tasks of the first scan may be reading, so the second plan claims nothing."""
    planner = new_planner(commit_offsets=False)
    start = planner.initial()
    end = planner.latest(start)
    first, holders = planner.plan(start, end), tubemq.claims()
    with tubemq.on("partition_register").count() as claims:
        assert planner.plan(start, end) == first != []
    assert (claims.fired, tubemq.claims()) == (0, holders)
    tubemq.send("t", b"new")
    assert planner.plan(end, planner.latest(end)) != first


def test_offsets_of_two_queries_are_refused(new_planner: NewPlanner) -> None:
    with pytest.raises(ConfigError, match="mixes offsets of two queries"):
        new_planner().plan(StreamOffset("q1", {A: 28, B: 0}), StreamOffset("q2", {A: 56, B: 0}))


def test_checkpoint_with_an_unsubscribed_topic_is_refused(new_planner: NewPlanner) -> None:
    gone = StreamOffset("q", {A: 28, Partition(1, "gone", 0): 28})
    with pytest.raises(ConfigError, match="positions of partitions of gone that options 'subscribe'"):
        new_planner().latest(gone)
    with pytest.raises(ConfigError, match="positions of partitions of gone"):
        new_planner().plan(gone, gone)


def test_offset_emptied_by_losses_is_not_a_new_query(new_planner: NewPlanner) -> None:
    """Partitions that appear then are read from their earliest position."""
    planner = new_planner(starting="latest")
    entered = planner.latest(StreamOffset("q", {}))
    assert (entered.query, entered.positions, entered.initial) == ("q", {A: 0, B: 0}, None)
    assert planner.plan(StreamOffset("q", {}), entered) == []
    assert planner.latest(entered).positions == ENDS


@pytest.mark.parametrize("commits", [True, False])
def test_group_is_at_once_where_a_new_partition_begins(
    tubemq: EmbeddedTubeMQ, new_planner: NewPlanner, commits: bool
) -> None:
    """A consumer of earlier times may have left it further."""
    tubemq.move_group(GROUP, "u", 1, 0, 56)
    planner = new_planner(commit_offsets=commits)
    assert planner.latest(StreamOffset("q", {A: 280})).positions == {A: 280, B: 0}
    assert tubemq.group_offset(GROUP, "u", 1, 0) == (0 if commits else 56)
