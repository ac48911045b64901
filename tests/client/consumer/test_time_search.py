# SPDX-License-Identifier: Apache-2.0
"""Time searches at a broker that fails at chosen moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.consumer import visitor as visits
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import ServerError, TransportError
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


def find(
    visitor: Visitor, moment: int, zone: tzinfo = timezone.utc, extents: Mapping[Partition, Extent] | None = None
) -> int:
    extents = extents or Prober(visitor).extents([PARTITION])
    return find_positions(visitor, {PARTITION: moment}, extents, zone)[PARTITION]


@pytest.fixture
def visitor(cluster: EmbeddedCluster) -> Iterator[Visitor]:
    with closing(reading.visitor(cluster, GROUP, settings(cluster))) as visitor:
        yield visitor
    cluster.tubemq.clear_faults()


FAULTS: dict[str, Callable[[Calls], Fault]] = {
    "closed": Calls.close_connection,
    "reply lost": Calls.close_mid_frame,
    "503": lambda calls: calls.fail(503),
    "411": lambda calls: calls.fail(411),
    "412": lambda calls: calls.fail(412),
    "452": lambda calls: calls.fail(452),
    "not flushed": lambda calls: calls.fail(404, "exceed max file offset"),
    "passed": lambda calls: calls.fail(404, "Can't found Message by index!"),
}


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fetch_that_fails_is_repeated(cluster: EmbeddedCluster, visitor: Visitor, nth: int, fault: str) -> None:
    fired = FAULTS[fault](cluster.tubemq.on("get_message", nth=nth, times=1))
    assert find(visitor, moment(31)) == expected(31)
    assert fired.fired == 1


@pytest.mark.parametrize("nth", [2, 3, 4, 5], ids=["there", "again", "there", "again"])
@pytest.mark.parametrize("fault", ["closed", "reply lost", "503"])
def test_a_seek_that_fails_is_repeated(cluster: EmbeddedCluster, visitor: Visitor, nth: int, fault: str) -> None:
    """The first seek reads where the store begins and ends."""
    fired = FAULTS[fault](cluster.tubemq.on("partition_register", nth=nth, times=1))
    assert find(visitor, moment(31)) == expected(31)
    assert fired.fired == 1


@pytest.mark.parametrize("method", ["get_message", "partition_register"])
def test_a_permanent_refusal_ends_the_search(cluster: EmbeddedCluster, visitor: Visitor, method: str) -> None:
    extents = Prober(visitor).extents([PARTITION])
    refusal = cluster.tubemq.on(method).fail(400)
    with pytest.raises(ServerError, match=f"{PARTITION}.* at broker 1 .* failed with 400"):
        find(visitor, moment(31), extents=extents)
    assert refusal.fired <= 2


def test_a_search_gives_up_a_broker_that_keeps_refusing(cluster: EmbeddedCluster) -> None:
    with (
        closing(reading.visitor(cluster, GROUP, settings(cluster, retry_for=0.5))) as visitor,
        cluster.tubemq.on("get_message").fail(503, "closed for reading"),
        pytest.raises(TransportError, match=r"503 closed for reading; gave up after 0\.5 s, looking for a time"),
    ):
        find(visitor, moment(31))


@pytest.mark.parametrize(("limit_ms", "wait"), [(300, 0.3), (0, 0.2), (2**31 - 1, 300.0)])
def test_a_rate_limited_group_waits_as_long_as_the_limit_lasts(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit_ms: int, wait: float
) -> None:
    extents = Prober(visitor).extents([PARTITION])
    limit = broker_pb.GetMessageResponseB2C(success=False, errCode=452, errMsg="limited", minLimitTime=limit_ms)
    clock = SkippingClock()

    def limiting(*args: Any) -> list[Any]:
        outcomes = send_requests(*args)
        if sum(clock.pauses) < 3 * visitor.settings.retry_for:
            outcomes[1] = Response(Method.GET_MESSAGE, limit.SerializeToString())
        return outcomes

    visitor.settings = replace(visitor.settings, retry_for=max(wait, visitor.settings.retry_for), clock=clock)
    monkeypatch.setattr(visits, "send_requests", limiting)
    assert find(visitor, moment(31), extents=extents) == expected(31)
    assert clock.pauses == pytest.approx([wait] * len(clock.pauses))
    assert [record.levelname for record in caplog.records if "limited" in record.message].count("WARNING") == 1
