# SPDX-License-Identifier: Apache-2.0
"""Time searches at a broker that fails at chosen moments, and the group's position afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tubemq_spark.client.consumer.driver_claims import DriverClaims

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer import probe
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.message import format_msg_time
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.testing import Calls, Fault

GROUP = "g"
FIRST_MINUTE = datetime(2026, 3, 1, tzinfo=timezone.utc)
PARTITION = Partition(1, "sole", 0)
MESSAGES, A_MINUTE, EXPIRED = 6000, 100, 50
HERE = 400 * UNIT  # the group's position


def minute(number: int) -> datetime:
    return FIRST_MINUTE + timedelta(minutes=number)


def moment(number: int) -> int:
    return int(minute(number).timestamp()) * 1_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One partition with `A_MINUTE` messages each minute. Every third has no time, and the oldest have expired."""
    with embedded_cluster(topics={"sole": TopicSpec(partitions=1)}, brokers=1) as running:
        for number in range(MESSAGES):
            text = format_msg_time(minute(number // A_MINUTE)) if number % 3 else None
            running.tubemq.send("sole", b"%d" % number, msg_time=text)
        running.tubemq.expire("sole", keep=MESSAGES - EXPIRED)
        yield running


def expected(number: int) -> int:
    first = max(number * A_MINUTE, EXPIRED)
    return min(first + (first % 3 == 0), MESSAGES) * UNIT


@dataclass
class Driver:
    cluster: EmbeddedCluster
    session: ConsumerSession
    claims: DriverClaims

    def find(self, moments: Mapping[Partition, int], zone: tzinfo = timezone.utc) -> dict[Partition, int]:
        return find_positions(Prober(self.session, self.claims), moments, self.claims.earliest(moments), zone)

    def find_minute(self, number: int) -> int:
        return self.find({PARTITION: moment(number)})[PARTITION]

    def group_position(self) -> int | None:
        return self.cluster.group_offset(GROUP, PARTITION.topic, 1, 0)


@pytest.fixture
def driver(cluster: EmbeddedCluster) -> Iterator[Driver]:
    with driving(cluster, [PARTITION]) as driver:
        yield driver
    cluster.tubemq.clear_faults()


class driving:  # noqa: N801
    """A driver that holds these partitions; its group is at `HERE`."""

    def __init__(self, cluster: EmbeddedCluster, held: list[Partition], retry_for: float = 30.0) -> None:
        topics = sorted({partition.topic for partition in held})
        session = ConsumerSession(settings(cluster, retry_for=retry_for), GROUP, topics)
        self.driver = Driver(cluster, session, DriverClaims(session, ClaimId(reading.new_query(), 1, 1), 0.0))
        self.held = held

    def __enter__(self) -> Driver:
        self.driver.session.register()
        self.driver.claims.take(dict.fromkeys(self.held, HERE))
        return self.driver

    def __exit__(self, *error: object) -> None:
        self.driver.claims.release()
        self.driver.session.close()


def test_a_moment_is_rounded_down_to_its_minute(driver: Driver) -> None:
    assert driver.find({PARTITION: moment(17) + 59_999_999}) == {PARTITION: expected(17)}


def test_times_are_in_the_given_zone(driver: Driver) -> None:
    """In a zone whose clock is ahead, the same text means an earlier moment."""
    zone = ZoneInfo("Asia/Kolkata")
    ahead = FIRST_MINUTE - timedelta(hours=5, minutes=30)
    wanted = int((ahead + timedelta(minutes=17)).timestamp()) * 1_000_000
    assert driver.find({PARTITION: wanted}, zone) == {PARTITION: expected(17)}


FAULTS: dict[str, Callable[[Calls], Fault]] = {
    "closed": Calls.close_connection,
    "reply lost": Calls.close_mid_frame,
    "503": lambda calls: calls.fail(503),
    "452": lambda calls: calls.fail(452),
    "not flushed": lambda calls: calls.fail(404, "exceed max file offset"),
    "passed": lambda calls: calls.fail(404, "Can't found Message by index!"),
}


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fetch_that_fails_is_repeated(cluster: EmbeddedCluster, driver: Driver, nth: int, fault: str) -> None:
    fired = FAULTS[fault](cluster.tubemq.on("get_message", nth=nth, times=1))
    assert driver.find_minute(31) == expected(31)
    assert fired.fired == 1
    assert driver.group_position() == HERE


@pytest.mark.parametrize("nth", [3, 4, 5, 6], ids=["there", "back", "there again", "back again"])
@pytest.mark.parametrize("fault", ["closed", "reply lost", "503"])
def test_a_seek_that_fails_is_repeated(cluster: EmbeddedCluster, driver: Driver, nth: int, fault: str) -> None:
    """The first two seeks read the earliest position."""
    fired = FAULTS[fault](cluster.tubemq.on("partition_register", nth=nth, times=1))
    assert driver.find_minute(31) == expected(31)
    assert fired.fired == 1
    assert driver.group_position() == HERE


@pytest.mark.parametrize("code", [411, 412])
def test_a_lost_claim_ends_the_search(cluster: EmbeddedCluster, driver: Driver, code: int) -> None:
    lost = cluster.tubemq.on("get_message", nth=2).fail(code, "the broker's text")
    with pytest.raises(
        TransportError, match=rf"reading {PARTITION} at broker 1.* claim was lost \({code} the broker's"
    ):
        driver.find_minute(31)
    assert lost.fired <= 2, "only those of one write"
    assert driver.group_position() == HERE


def test_a_search_does_not_move_the_group_of_another_consumer_that_took_the_partition(
    cluster: EmbeddedCluster, driver: Driver
) -> None:
    earliest = driver.claims.earliest([PARTITION])
    cluster.tubemq.clock.advance(36)
    assert reading.register(cluster, GROUP, PARTITION, "stranger", 7 * 100 * UNIT).errCode == 200
    with pytest.raises(TransportError, match=r"claim was lost \(410"):
        find_positions(Prober(driver.session, driver.claims), {PARTITION: moment(31)}, earliest, timezone.utc)
    assert driver.group_position() == 7 * 100 * UNIT
    assert reading.unregister(cluster, GROUP, PARTITION, "stranger").errCode == 200


@pytest.mark.parametrize("method", ["get_message", "partition_register"])
def test_a_permanent_refusal_ends_the_search(cluster: EmbeddedCluster, driver: Driver, method: str) -> None:
    earliest = driver.claims.earliest([PARTITION])
    refusal = cluster.tubemq.on(method).fail(400)
    with pytest.raises(ServerError, match=f"{PARTITION}.* at broker 1 .* failed with 400"):
        find_positions(Prober(driver.session, driver.claims), {PARTITION: moment(31)}, earliest, timezone.utc)
    assert refusal.fired <= 2


def test_a_search_gives_up_a_broker_that_keeps_refusing(cluster: EmbeddedCluster) -> None:
    with (
        driving(cluster, [PARTITION], retry_for=0.5) as driver,
        cluster.tubemq.on("get_message").fail(503, "closed for reading"),
    ):
        with pytest.raises(TransportError, match=r"503 closed for reading; gave up looking for a time after 0\.5 s"):
            driver.find_minute(31)
        assert driver.group_position() == HERE


@pytest.mark.parametrize(("limit_ms", "wait"), [(300, 0.3), (0, 0.2), (2**31 - 1, 300.0)])
def test_a_rate_limited_group_waits_as_long_as_the_limit_lasts(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit_ms: int, wait: float
) -> None:
    earliest = driver.claims.earliest([PARTITION])
    limit = broker_pb.GetMessageResponseB2C(success=False, errCode=452, errMsg="limited", minLimitTime=limit_ms)
    clock = SkippingClock()

    def limiting(*args: Any) -> list[Any]:
        outcomes = send_requests(*args)
        if sum(clock.pauses) < 3 * driver.session.settings.retry_for:
            outcomes[1] = Response(Method.GET_MESSAGE, limit.SerializeToString())
        return outcomes

    retry_for = max(wait, driver.session.settings.retry_for)
    driver.session.settings = replace(driver.session.settings, retry_for=retry_for, clock=clock)
    monkeypatch.setattr(probe, "send_requests", limiting)
    found = find_positions(Prober(driver.session, driver.claims), {PARTITION: moment(31)}, earliest, timezone.utc)
    assert found == {PARTITION: expected(31)}
    assert clock.pauses == pytest.approx([wait] * len(clock.pauses))
    assert [record.levelname for record in caplog.records if "limited" in record.message].count("WARNING") == 1
