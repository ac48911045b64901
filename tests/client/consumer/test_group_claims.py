# SPDX-License-Identifier: Apache-2.0
"""The driver's claims at a broker that fails at chosen moments."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

GROUP = "g"
PARTITION = Partition(1, "demo", 0)
WIDE = [Partition(1, "wide", number) for number in range(10)]  # of one store
CLAIM = ClaimId("query", run=1, batch=1)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    topics = {"demo": TopicSpec(partitions=1), "wide": TopicSpec(partitions=len(WIDE))}
    with embedded_cluster(topics=topics, brokers=1) as running:
        yield running


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def claims(cluster: EmbeddedCluster, clock: SkippingClock) -> Iterator[GroupClaims]:
    with reading.holding(settings(cluster, clock=clock), GROUP, "demo", "wide", claim=CLAIM) as claims:
        yield claims


def test_a_refresh_asks_one_partition_of_each_store(cluster: EmbeddedCluster, claims: GroupClaims) -> None:
    claims.take(dict.fromkeys(WIDE, 0))
    asked = counted(cluster, "commit_offset")
    for number in range(1, 4):
        cluster.tubemq.send("wide", b"new", 3)
        claims.refresh(math.inf)
        assert {claims.position(partition) for partition in WIDE} == {GroupPosition(0, number * UNIT)}
    assert asked.fired == 3


def test_a_group_that_is_moved_in_one_partition_is_detected_within_a_minute(
    cluster: EmbeddedCluster, claims: GroupClaims, clock: SkippingClock
) -> None:
    cluster.tubemq.send("wide", b"new", 3)
    claims.take(dict.fromkeys(WIDE, 0))
    cluster.move_group(GROUP, WIDE[7], UNIT)
    claims.refresh(math.inf)
    assert cluster.group_offset(GROUP, "wide", 1, 7) == UNIT
    clock.advance(61.0)
    claims.refresh(clock.monotonic())
    assert cluster.group_offset(GROUP, "wide", 1, 7) == 0


def test_claims_are_repeated_once_an_hour(cluster: EmbeddedCluster, claims: GroupClaims, clock: SkippingClock) -> None:
    registers = counted(cluster, "partition_register")
    claims.take({PARTITION: 0})
    for hours, times in [(0.9, 1), (0.2, 2), (0.8, 2), (0.3, 3)]:
        clock.advance(hours * 3600)
        claims.refresh(clock.monotonic())
        assert registers.fired == times


def test_a_heartbeat_claims_again_what_a_restarted_broker_forgot(cluster: EmbeddedCluster, claims: GroupClaims) -> None:
    """Also between micro-batches, no other client may get the partition, or leave the group elsewhere."""
    cluster.tubemq.send("demo", b"one")
    cluster.tubemq.send("demo", b"two")
    claims.take({PARTITION: UNIT})
    cluster.stop_broker(1)
    cluster.start_broker(1)
    cluster.move_group(GROUP, PARTITION, 2 * UNIT)
    claims._beat()
    assert reading.register(cluster, GROUP, PARTITION, "stranger").errCode == 410
    assert cluster.group_offset(GROUP, "demo", 1, 0) == UNIT
