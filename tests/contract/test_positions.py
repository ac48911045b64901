# SPDX-License-Identifier: Apache-2.0
"""The positions of a group, and the beginnings and ends of stores, as the driver's claims read and move them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from tests import messages, reading
from tests.clusters import Cluster
from tests.clusters.servers import EACH_FRAMING
from tests.reading import UNIT
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.errors import FencedError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE, ReadStatus
from tubemq_spark.protocol.metadata import Partition

pytestmark = pytest.mark.parametrize("cluster", EACH_FRAMING, indirect=True)

STRANGER = "some_java_consumer"


@dataclass(frozen=True)
class Scene:
    """A topic with messages, and a group of its own."""

    cluster: Cluster
    group: str
    partitions: list[Partition]
    ends: dict[Partition, int]

    def driver(self, claim: ClaimId | None = None) -> AbstractContextManager[GroupClaims]:
        """The claims of a driver, `claim` of a new query if none is given."""
        return reading.holding(messages.settings(self.cluster), self.group, self.partitions[0].topic, claim=claim)

    def positions(self) -> dict[Partition, int]:
        """Where the group stands; all partitions must be free."""
        return {partition: self.group_position(partition).group for partition in self.partitions}

    def group_position(self, partition: Partition) -> GroupPosition:
        return reading.group_position(self.cluster, self.group, partition)

    def all_at(self, position: int) -> dict[Partition, int | None]:
        return dict.fromkeys(self.partitions, position)

    def anywhere(self) -> dict[Partition, int | None]:
        return dict.fromkeys(self.partitions)


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    return cluster.new_topic("stores")


@pytest.fixture
def scene(cluster: Cluster, topic: str, group: str) -> Scene:
    partitions = messages.partitions(cluster, topic)
    sent = messages.send(cluster, messages.numbered(partitions, 40 * len(partitions)))
    store_ends: dict[tuple[int, int], int] = {}
    for (broker_id, _, number), stored in sent.items():
        store = broker_id, number // STORE_PARTITION_BASE
        store_ends[store] = max(store_ends.get(store, 0), reading.end_of(stored))
    ends = {partition: store_ends[partition.broker_id, partition.store_id] for partition in partitions}
    return Scene(cluster, group, partitions, ends)


@pytest.mark.parametrize("status", [ReadStatus.NORMAL, ReadStatus.FROM_MAX], ids=lambda status: status.name)
def test_a_new_group_starts_where_the_read_status_says(scene: Scene, status: ReadStatus) -> None:
    begins = dict.fromkeys(scene.partitions, 0) if status is ReadStatus.NORMAL else scene.ends
    with scene.driver() as claims:
        claims.take(scene.anywhere(), status)
        assert {partition: claims.position(partition).group for partition in scene.partitions} == begins
        assert {partition: claims.position(partition).end for partition in scene.partitions} == scene.ends
    assert scene.positions() == begins


@pytest.mark.parametrize("status", [ReadStatus.NORMAL, ReadStatus.FROM_MAX], ids=lambda status: status.name)
def test_a_known_group_moves_only_to_an_explicit_position(scene: Scene, status: ReadStatus) -> None:
    with scene.driver() as claims:
        claims.take(scene.all_at(20 * UNIT))
    with scene.driver() as claims:
        claims.take(scene.anywhere(), status)
        claims.refresh(time.monotonic())
        assert {claims.position(partition).group for partition in scene.partitions} == {20 * UNIT}
    assert scene.positions() == scene.all_at(20 * UNIT)
    with scene.driver() as claims:
        claims.take(scene.all_at(7 * UNIT), status)
    assert scene.positions() == scene.all_at(7 * UNIT)


def test_a_refresh_updates_the_ends_and_moves_no_group(scene: Scene) -> None:
    with scene.driver() as claims:
        claims.take(scene.all_at(5 * UNIT))
        messages.send(scene.cluster, messages.numbered(scene.partitions, len(scene.partitions)))
        claims.refresh(time.monotonic())
        for partition in scene.partitions:  # two of them share a store
            assert claims.position(partition) == (5 * UNIT, scene.ends[partition] + 2 * UNIT)
    assert scene.positions() == scene.all_at(5 * UNIT)


def test_a_look_tells_positions_and_leaves_the_partitions_free(scene: Scene) -> None:
    with scene.driver() as claims:
        claims.take(scene.all_at(9 * UNIT))
    with scene.driver() as claims:
        assert claims.look(scene.partitions) == {one: (9 * UNIT, end) for one, end in scene.ends.items()}
        assert scene.positions() == scene.all_at(9 * UNIT)


@pytest.mark.parametrize("position", [0, 30 * UNIT])
def test_the_driver_moves_a_group_back_that_another_client_moved(
    scene: Scene, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    moved = scene.partitions[0]
    with scene.driver() as claims:
        claims.take(scene.all_at(20 * UNIT))
        scene.cluster.move_group(scene.group, moved, position)
        for _ in scene.partitions:  # which have one store at each broker, so that they are asked in turn
            claims.refresh(time.monotonic())
        assert claims.position(moved).group == 20 * UNIT
        assert f"{moved}: another client moved group {scene.group} to {position}" in caplog.text
    assert scene.positions() == scene.all_at(20 * UNIT)


def test_a_claim_that_the_broker_forgot_is_acquired_again(scene: Scene) -> None:
    with scene.driver() as claims:
        claims.take(scene.all_at(20 * UNIT))
        for partition in scene.partitions:
            forgotten = reading.unregister(scene.cluster, scene.group, partition, str(claims.claim))
            assert forgotten.errCode == 200
        scene.cluster.move_group(scene.group, scene.partitions[0], 0)
        claims.refresh(time.monotonic())
        assert reading.register(scene.cluster, scene.group, scene.partitions[0], STRANGER).errCode == 410
    assert scene.positions() == scene.all_at(20 * UNIT)


def test_a_newer_run_takes_over_and_the_older_run_fails(scene: Scene) -> None:
    older = ClaimId(reading.new_query(), run=1, batch=9)
    newer = ClaimId(older.query, run=2, batch=1)
    with scene.driver(older) as first, scene.driver(newer) as second:
        first.take(scene.all_at(0))
        second.take(scene.all_at(10 * UNIT))

        with pytest.raises(FencedError, match=f"newer run of this query, {newer}") as raised:
            first.refresh(time.monotonic())
        assert raised.value.holder == str(newer)
        with pytest.raises(FencedError):
            first.take(scene.all_at(0))
        first.release()

        second.refresh(time.monotonic())
        assert all(second.holds(partition) for partition in scene.partitions)
    assert scene.positions() == scene.all_at(10 * UNIT)
