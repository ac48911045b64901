# SPDX-License-Identifier: Apache-2.0
"""Probes: what they find, also at a broker that fails, and that the group's position does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.messages import partitions
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import Prober, ProbeResult
from tubemq_spark.client.timings import Timings
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition

GROUP = "g"
SOLE, FULL, THIN = Partition(1, "sole", 0), Partition(1, "pair", 0), Partition(1, "pair", 1)
HERE = 4 * UNIT  # the group's position
OTHERS = 9000  # messages of FULL between two of THIN: one fetch does not pass that many


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with embedded_cluster(
        topics={"sole": TopicSpec(partitions=1), "pair": TopicSpec(partitions=2), "empty": TopicSpec(partitions=1)},
        brokers=1,
    ) as running:
        for number in range(30):
            running.tubemq.send("sole", b"%d" % number)
        running.tubemq.expire("sole", keep=20)
        running.tubemq.send("pair", b"thin", 1)
        for number in range(OTHERS):
            running.tubemq.send("pair", b"%d" % number, 0)
        running.tubemq.send("pair", b"thin again", 1)
        yield running


@dataclass
class Driver:
    cluster: EmbeddedCluster
    session: ConsumerSession
    claims: DriverClaims

    def probe(self, partition: Partition, *positions: int) -> dict[int, ProbeResult]:
        results = Prober(self.session, self.claims).probe((partition, position) for position in positions)
        for each in partitions(self.cluster, partition.topic):
            group_position = self.cluster.group_offset(GROUP, each.topic, each.broker_id, each.partition_id)
            assert group_position == self.claims.position(each).group
        return {position: result for (_, position), result in results.items()}

    def ids(self, partition: Partition) -> list[int]:
        messages = self.cluster.tubemq.messages(partition.topic)
        return [message.message_id for message in messages if message.partition == partition.partition_id]


@pytest.fixture
def driver(cluster: EmbeddedCluster) -> Iterator[Driver]:
    session = ConsumerSession(settings(cluster), GROUP, ["sole", "pair", "empty"])
    session.register()
    claims = DriverClaims(session, ClaimId("q", run=1, batch=1), claim_timeout=1.0)
    claims.take({SOLE: 14 * UNIT, FULL: HERE, THIN: HERE, Partition(1, "empty", 0): None})
    yield Driver(cluster, session, claims)
    cluster.tubemq.clear_faults()
    claims.release()
    session.close()
    forget_servers()


def test_a_probe_returns_the_first_two_messages_from_its_position(driver: Driver) -> None:
    ids = driver.ids(SOLE)  # the first one is at entry 10
    results = driver.probe(SOLE, 12 * UNIT, 29 * UNIT)
    assert results == {
        12 * UNIT: ProbeResult(12 * UNIT, tuple(ids[2:4])),
        29 * UNIT: ProbeResult(29 * UNIT, (ids[19],)),
    }
    assert results[12 * UNIT].first_id == ids[2]


def test_a_probe_at_the_end_finds_nothing(driver: Driver) -> None:
    assert driver.probe(SOLE, 30 * UNIT) == {30 * UNIT: ProbeResult(30 * UNIT, ())}


def test_a_probe_behind_the_end_returns_the_end(driver: Driver) -> None:
    (result,) = driver.probe(SOLE, 99 * UNIT).values()
    assert result == ProbeResult(30 * UNIT, ())
    assert result.first_id is None


def test_a_probe_before_the_beginning_returns_the_beginning(driver: Driver) -> None:
    assert driver.probe(SOLE, 3 * UNIT)[3 * UNIT] == ProbeResult(10 * UNIT, tuple(driver.ids(SOLE)[:2]))


def test_a_probe_of_an_empty_store_finds_nothing(driver: Driver) -> None:
    assert driver.probe(Partition(1, "empty", 0), 0) == {0: ProbeResult(0, ())}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_probe_passes_messages_of_other_partitions(driver: Driver, flushed: bool) -> None:
    if flushed:
        driver.cluster.tubemq.flush("pair")
    first, again = driver.ids(THIN)
    assert {position: found.first_id for position, found in driver.probe(THIN, 0, UNIT, 2 * UNIT).items()} == {
        0: first,
        UNIT: again,
        2 * UNIT: again,
    }


def restart(cluster: EmbeddedCluster) -> None:
    cluster.stop_broker(1)
    cluster.start_broker(1)


def lose_a_reply(driver: Driver) -> None:
    driver.session.settings = replace(driver.session.settings, rpc_timeout=0.2, timings=Timings(slow_peer_grace=0.1))
    driver.cluster.tubemq.on("get_message", times=1).drop_reply()


FAULTS: dict[str, Callable[[Driver], object]] = {
    "a broken connection": lambda d: d.cluster.tubemq.on("get_message", times=1).close_connection(),
    "a lost reply": lose_a_reply,
    "a broker that is busy": lambda d: d.cluster.tubemq.on("get_message", times=1).fail(503),
    "a limit": lambda d: d.cluster.tubemq.on("get_message", times=1).fail(452),
    "a claim that ended": lambda d: d.cluster.tubemq.clock.advance(60),
    "a broker that restarted": lambda d: restart(d.cluster),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_probe_that_fails_once_is_repeated(driver: Driver, fault: Callable[[Driver], object]) -> None:
    fault(driver)
    assert driver.probe(SOLE, 12 * UNIT)[12 * UNIT].first_id == driver.ids(SOLE)[2]


def test_a_position_without_a_clear_answer_is_left_out(driver: Driver) -> None:
    driver.session.settings = replace(driver.session.settings, clock=SkippingClock())
    with driver.cluster.tubemq.on("get_message").fail(503):
        assert driver.probe(SOLE, 12 * UNIT) == {}
