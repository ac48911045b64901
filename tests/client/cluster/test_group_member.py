# SPDX-License-Identifier: Apache-2.0
"""The new addresses of brokers that have moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import messages
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.peers import refused_address
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.group_member import GroupMembership, current_broker
from tubemq_spark.protocol.metadata import Broker

MEMBER = GroupMembership("g", ("demo",))
MOVED = Broker(1, refused_address())


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(topics={"demo": TopicSpec(partitions=1)}, brokers=1) as running:
        yield running
        forget_servers()


def test_the_master_is_asked_for_the_new_address_every_10_s(cluster: EmbeddedCluster) -> None:
    clock = SkippingClock()
    client = settings(cluster, clock=clock)
    asked, left = counted(cluster, "consumer_register_v2"), counted(cluster, "consumer_close")
    for seconds, times in [(0.0, 1), (9.0, 1), (2.0, 2)]:
        clock.advance(seconds)
        assert current_broker(client, MEMBER, MOVED) == messages.broker(cluster, 1)
        assert asked.fired == left.fired == times


def test_a_broker_that_the_master_does_not_list_keeps_its_address(cluster: EmbeddedCluster) -> None:
    unknown = Broker(7, refused_address())
    assert current_broker(settings(cluster), MEMBER, unknown) == unknown


def test_without_a_master_a_broker_keeps_its_address(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.stop_master()
    assert current_broker(settings(cluster), MEMBER, MOVED) == MOVED
