# SPDX-License-Identifier: Apache-2.0
"""Probes: what they find, also at a broker that fails, and that the group's position does not change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tubemq_spark.client.consumer.driver_claims import DriverClaims

from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.messages import partitions
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.probe import Prober, ProbeResult
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


def test_a_probe_at_the_end_finds_nothing(driver: Driver) -> None:
    assert driver.probe(SOLE, 30 * UNIT) == {30 * UNIT: ProbeResult(30 * UNIT, ())}


def test_a_probe_behind_the_end_returns_the_end(driver: Driver) -> None:
    (result,) = driver.probe(SOLE, 99 * UNIT).values()
    assert result == ProbeResult(30 * UNIT, ())
    assert result.first_id is None


def test_a_probe_before_the_beginning_returns_the_beginning(driver: Driver) -> None:
    assert driver.probe(SOLE, 3 * UNIT)[3 * UNIT] == ProbeResult(10 * UNIT, tuple(driver.ids(SOLE)[:2]))
