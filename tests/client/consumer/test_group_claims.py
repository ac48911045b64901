# SPDX-License-Identifier: Apache-2.0
"""The driver's claims at a broker that fails at chosen moments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

GROUP = "g"
PARTITION = Partition(1, "demo", 0)
WIDE = [Partition(1, "wide", number) for number in range(10)]  # of one store
CLAIM = ClaimId("query", run=1, batch=1)
MIN, HERE, END = 3 * UNIT, 40 * UNIT, 100 * UNIT


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """One broker, and one partition with messages; the oldest have expired."""
    topics = {"demo": TopicSpec(partitions=1), "wide": TopicSpec(partitions=len(WIDE))}
    with embedded_cluster(topics=topics, brokers=1) as running:
        for number in range(END // UNIT):
            running.tubemq.send("demo", b"%d" % number)
        running.tubemq.expire("demo", keep=(END - MIN) // UNIT)
        yield running


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def driver(cluster: EmbeddedCluster, clock: SkippingClock) -> Iterator[DriverClaims]:
    with claiming(settings(cluster, clock=clock)) as driver:
        yield driver


@contextmanager
def claiming(settings: ClientSettings) -> Iterator[DriverClaims]:
    session = ConsumerSession(settings, GROUP, ["demo", "wide"])
    session.register()
    driver = DriverClaims(session, CLAIM, claim_timeout=0.0)
    yield driver
    driver.release()
    session.close()


def position(cluster: EmbeddedCluster) -> int | None:
    return cluster.group_offset(GROUP, "demo", 1, 0)


def test_a_refresh_asks_one_partition_of_each_store(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    driver.take(dict.fromkeys(WIDE, 0))
    asked = counted(cluster, "commit_offset")
    for number in range(1, 4):
        cluster.tubemq.send("wide", b"new", 3)
        driver.refresh(math.inf)
        assert {driver.position(partition) for partition in WIDE} == {GroupPosition(0, number * UNIT)}
    assert asked.fired == 3


def test_the_earliest_position_of_a_store_takes_two_requests(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    driver.take(dict.fromkeys([*WIDE, PARTITION], HERE))
    registers = counted(cluster, "partition_register")
    assert driver.earliest([*WIDE, PARTITION]) == dict.fromkeys(WIDE, 0) | {PARTITION: MIN}
    assert registers.fired == 2 * 2


def test_a_group_that_is_moved_in_one_partition_is_detected_within_a_minute(
    cluster: EmbeddedCluster, driver: DriverClaims, clock: SkippingClock
) -> None:
    cluster.tubemq.send("wide", b"new", 3)
    driver.take(dict.fromkeys(WIDE, 0))
    cluster.move_group(GROUP, WIDE[7], UNIT)
    driver.refresh(math.inf)
    assert cluster.group_offset(GROUP, "wide", 1, 7) == UNIT
    clock.advance(61.0)
    driver.refresh(clock.monotonic())
    assert cluster.group_offset(GROUP, "wide", 1, 7) == 0


def test_claims_are_repeated_once_an_hour(cluster: EmbeddedCluster, driver: DriverClaims, clock: SkippingClock) -> None:
    registers = counted(cluster, "partition_register")
    driver.take({PARTITION: HERE})
    for hours, times in [(0.9, 1), (0.2, 2), (0.8, 2), (0.3, 3)]:
        clock.advance(hours * 3600)
        driver.refresh(clock.monotonic())
        assert registers.fired == times


def test_lent_claims_get_heartbeats_and_are_not_released(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    """A task may start long after it was planned. When the driver stops, lent claims belong to the tasks."""
    beats, leaves = counted(cluster, "partition_heartbeat"), counted(cluster, "partition_unregister")
    driver.take({PARTITION: HERE})
    driver._send_heartbeats()
    driver.lend([PARTITION])
    driver._send_heartbeats()
    assert beats.fired == 2
    driver.release()
    assert leaves.fired == 0


def test_repr_counts_the_claims_by_state(driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    assert repr(driver) == f"<DriverClaims {CLAIM} of group g: {{'HELD': 1}}>"
    assert driver.client_id(PARTITION) == str(CLAIM)
    assert driver.client_id(Partition(1, "demo", 8)) is None
    assert driver.next_batch() == CLAIM
    assert driver.claim.batch == CLAIM.batch + 1
