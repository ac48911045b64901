# SPDX-License-Identifier: Apache-2.0
"""The driver's claims at a broker that fails at chosen moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import unregister
from tests.real.topics import TopicSpec
from tests.sending import counted, settings
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault

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


def holder(cluster: EmbeddedCluster) -> str | None:
    return cluster.tubemq.claims().get((GROUP, "demo", 1, 0))


def position(cluster: EmbeddedCluster) -> int | None:
    return cluster.group_offset(GROUP, "demo", 1, 0)


FAULTS: dict[str, Callable[[Calls], Fault]] = {
    "closed": Calls.close_connection,
    "reply lost": Calls.close_mid_frame,
    "503": lambda calls: calls.fail(503),
}
faults = pytest.mark.parametrize("fault", FAULTS)


@faults
def test_acquiring_retries_after_a_failure(cluster: EmbeddedCluster, driver: DriverClaims, fault: str) -> None:
    fired = FAULTS[fault](cluster.tubemq.on("partition_register", times=1))
    driver.take({PARTITION: HERE})
    assert fired.fired == 1
    assert driver.holds(PARTITION)
    assert driver.position(PARTITION) == GroupPosition(HERE, END)


def test_a_broker_that_stays_away(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    cluster.kill_broker(1)
    with pytest.raises(TransportError, match=r"cannot connect.*gave up after 0\.5 s. Check that the broker runs"):
        driver.take({PARTITION: HERE}, retry_for=0.5)
    assert not driver.holds(PARTITION)


def test_a_permanent_refusal_is_not_retried(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    refusal = cluster.tubemq.on("partition_register").fail(400)
    with pytest.raises(ServerError, match=f"claiming {PARTITION} for group g at broker 1 .* failed with 400"):
        driver.take({PARTITION: HERE})
    assert refusal.fired == 1


@faults
@pytest.mark.parametrize("nth", [1, 2], ids=["before", "after"])
def test_a_request_for_the_earliest_position_is_retried(
    cluster: EmbeddedCluster, driver: DriverClaims, nth: int, fault: str
) -> None:
    driver.take({PARTITION: HERE})
    fired = FAULTS[fault](cluster.tubemq.on("partition_register", nth=nth, times=1))
    assert driver.earliest([PARTITION]) == {PARTITION: MIN}
    assert fired.fired == 1
    assert position(cluster) == HERE


@pytest.mark.parametrize("fault", ["nothing", *FAULTS, "forgotten claim", "moved group"])
def test_a_refresh_restores_the_claim_and_the_groups_position(
    cluster: EmbeddedCluster, driver: DriverClaims, fault: str
) -> None:
    driver.take({PARTITION: HERE})
    cluster.tubemq.send("demo", b"new")
    if fault in FAULTS:
        FAULTS[fault](cluster.tubemq.on("commit_offset", times=1))
    elif fault == "forgotten claim":
        cluster.tubemq.clock.advance(36)
        assert holder(cluster) is None
        cluster.move_group(GROUP, PARTITION, MIN)
    elif fault == "moved group":
        cluster.move_group(GROUP, PARTITION, 60 * UNIT)
    driver.refresh(math.inf)
    assert holder(cluster) == str(CLAIM)
    assert driver.position(PARTITION) == GroupPosition(HERE, END + UNIT)
    assert position(cluster) == HERE


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


def test_a_claim_that_a_heartbeat_misses_is_acquired_again(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    driver.take(dict.fromkeys(WIDE, 0))
    assert unregister(cluster, GROUP, WIDE[7], str(driver.claim)).errCode == 200
    driver._send_heartbeats()
    driver.refresh(math.inf)
    assert cluster.tubemq.claims().get((GROUP, "wide", 1, 7)) == str(driver.claim)


def test_all_claims_of_a_broker_are_checked_if_it_forgot_one(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    driver.take(dict.fromkeys(WIDE, 0))
    for partition in WIDE:
        assert unregister(cluster, GROUP, partition, str(driver.claim)).errCode == 200
    driver.refresh(math.inf)
    assert set(cluster.tubemq.claims().values()) == {str(driver.claim)}


def test_claims_are_repeated_once_an_hour(cluster: EmbeddedCluster, driver: DriverClaims, clock: SkippingClock) -> None:
    registers = counted(cluster, "partition_register")
    driver.take({PARTITION: HERE})
    for hours, times in [(0.9, 1), (0.2, 2), (0.8, 2), (0.3, 3)]:
        clock.advance(hours * 3600)
        driver.refresh(clock.monotonic())
        assert registers.fired == times


def test_heartbeats_keep_claims_while_they_are_held(cluster: EmbeddedCluster) -> None:
    with claiming(replace(settings(cluster), timings=Timings(heartbeat_period=0.01))) as driver:

        def outlive_the_timeout() -> None:
            """In steps, for a heartbeat after each."""
            cluster.wait_for_expiry(iter([False] * 6 + [True]).__next__, beating=[str(driver.claim)])
            assert holder(cluster) == str(driver.claim)

        driver.take({PARTITION: HERE})
        outlive_the_timeout()
        driver.lend([PARTITION])
        driver.take({PARTITION: None})
        outlive_the_timeout()
        driver.release()
        assert holder(cluster) is None


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


def test_release_raises_nothing_while_the_broker_is_down(cluster: EmbeddedCluster, driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    cluster.kill_broker(1)
    driver.release()
    driver.release()
    assert not driver.holds(PARTITION)


def test_repr_counts_the_claims_by_state(driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    assert repr(driver) == f"<DriverClaims {CLAIM} of group g: {{'HELD': 1}}>"
    assert driver.client_id(PARTITION) == str(CLAIM)
    assert driver.client_id(Partition(1, "demo", 8)) is None
    assert driver.next_batch() == CLAIM
    assert driver.claim.batch == CLAIM.batch + 1
