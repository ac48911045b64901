# SPDX-License-Identifier: Apache-2.0
"""Scans of partitions whose beginning retention removes, for which a real server takes minutes, and scans that wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clocks import SkippingClock
from tests.clusters import LAYOUTS, Layout
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT
from tests.scanning import FilledTopic, NewScanner, scanners
from tubemq_spark.errors import DataLossError, PartitionOccupiedError


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def new_scanner(group: str) -> Iterator[NewScanner]:
    with scanners(group) as new:
        yield new


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("until", [None, 300 * UNIT])
def test_retention_behind_the_begin_fails_a_scan(
    own: EmbeddedCluster, layout: Layout, until: int | None, new_scanner: NewScanner
) -> None:
    filled = FilledTopic(own, own.new_topic(layout))
    filled.send(1200)
    own.tubemq.expire(filled.topic, keep=100)
    scanner = new_scanner(filled)
    for partition in filled.partitions:
        low = filled.end(partition) - 100 * UNIT
        for since in (0, 200 * UNIT, min(low, until or low) - UNIT):
            with pytest.raises(
                DataLossError, match=rf"^{partition}: .* removed messages in \[{since}, {low}\)$"
            ) as raised:
                list(scanner.scan_partition(partition, since, until))
            assert (raised.value.asked, raised.value.offered) == (since, low)


@pytest.mark.parametrize("retry_for", [0.0, 4.0, 60.0])
def test_a_scan_waits_for_all_groups_together_as_long_as_it_may(
    own: EmbeddedCluster, retry_for: float, new_scanner: NewScanner
) -> None:
    filled = FilledTopic(own, own.new_topic("one"))
    partition = filled.partitions[0]
    filled.send(1)
    clock = SkippingClock()
    scanner = new_scanner(filled, retry_for, clock=clock)
    for group in range(len(scanner.groups)):
        assert scanner.claim("stranger", partition, group) == 200
    with pytest.raises(PartitionOccupiedError, match=f"for longer than {retry_for:g} s"):
        next(scanner.scan_partition(partition, until=UNIT))
    assert retry_for - 1 <= sum(clock.pauses) <= retry_for + 1
