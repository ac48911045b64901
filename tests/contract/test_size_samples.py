# SPDX-License-Identifier: Apache-2.0
"""What a broker tells about the sizes of messages, on both servers: in memory, in files, in a store that partitions
share. Limits in bytes rest on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from tests import reading
from tests.clusters import Cluster, Layout
from tests.messages import partitions, send
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.size_sample import SizeSample, sample_sizes
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition


@pytest.fixture(params=["one", "three"])
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    return cluster.new_topic(cast(Layout, request.param))


@pytest.fixture
def visitor(cluster: Cluster, group: str) -> Iterator[Visitor]:
    with closing(reading.visitor(cluster, group)) as visitor:
        yield visitor


def on_first_broker(cluster: Cluster, topic: str) -> list[Partition]:
    return [partition for partition in partitions(cluster, topic) if partition.broker_id == cluster.broker_ids[0]]


def sample(visitor: Visitor, partition: Partition, entry: int) -> SizeSample:
    return sample_sizes(Prober(visitor), {partition: entry * UNIT})[partition]


@pytest.mark.parametrize("flushed", [False, True], ids=["memory", "files"])
def test_a_sample_tells_the_mean_of_even_sizes(cluster: Cluster, topic: str, visitor: Visitor, flushed: bool) -> None:
    """Of more messages than one fetch returns, from the first and from a later position on."""
    mine = on_first_broker(cluster, topic)
    send(cluster, [(mine[number % len(mine)], b"x" * 2000) for number in range(1500)])
    if flushed:
        cluster.wait_flushed(topic)
    for entry in (0, 600):
        first = sample(visitor, mine[0], entry)
        assert first.messages
        assert first.payload == first.messages * 2000
        assert first.lag > 0
        assert first.entries == 1500 - entry
        assert first.mean is not None
        assert 2000 <= first.mean < 2200 * len(mine)


def test_the_last_message_is_a_sample(cluster: Cluster, topic: str, visitor: Visitor) -> None:
    mine = on_first_broker(cluster, topic)
    send(cluster, [(mine[0], b"x" * size) for size in (10, 20, 3000)])
    last = sample(visitor, mine[0], 2)
    assert last == SizeSample(1, 3000, 0, 1)
    assert last.mean == 3000


def test_long_messages_behind_short_ones_are_seen(cluster: Cluster, topic: str, visitor: Visitor) -> None:
    mine = on_first_broker(cluster, topic)
    send(cluster, [(mine[0], b"x" * 1000)] * 400 + [(mine[0], b"x" * 9000)] * 400)
    mean = sample(visitor, mine[0], 0).mean
    assert mean is not None
    assert mean > 4000
