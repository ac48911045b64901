# SPDX-License-Identifier: Apache-2.0
"""Scans of partitions whose beginning retention removes. A real server takes minutes to expire messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import LAYOUTS, Layout
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT
from tests.scanning import FilledTopic, NewScanner, scanners
from tubemq_spark.errors import DataLossError


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
def test_retention_behind_the_bookmark_fails_a_scan(
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
