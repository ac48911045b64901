# SPDX-License-Identifier: Apache-2.0
"""Tasks, planners and drivers that want the same partition: siblings take turns, and predecessors are fenced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice

import pytest
from tubemq_spark.client.consumer.driver_claims import DriverClaims

from tests import messages, reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT, Row
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.errors import FencedError, PartitionOccupiedError
from tubemq_spark.protocol.claim_id import PLANNER, ClaimId
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.config import ServerConfig

GROUP = "g"
PARTITIONS = [Partition(1, "demo", number) for number in range(3)]
HERE = PARTITIONS[1]
TASK = ClaimId("query", run=5, batch=5, task=5, attempt=5, stage=5, reader="5")
COUNT = 400


@dataclass
class Scene:
    """A store with three partitions; one of them is read."""

    cluster: EmbeddedCluster
    rows: list[Row]
    ends: ExitStack
    clock: SkippingClock
    start: int = 30 * UNIT
    end: int = (COUNT - 30) * UNIT

    def reader(
        self,
        claim: ClaimId = TASK,
        *,
        group_position: int | None = None,
        is_first: bool = True,
        is_doubtful: bool = False,
        previous: str | None = None,
    ) -> Generator[FetchedBatch, None, None]:
        """One that waits for nobody but siblings."""
        wanted = reading.wanted(self.cluster, HERE, self.start, self.end)
        snapshot = reading.snapshot(self.cluster, HERE, previous)
        snapshot = replace(snapshot, group_position=group_position, is_doubtful=is_doubtful)
        return PartitionReader(
            settings(self.cluster, clock=self.clock),
            GROUP,
            claim,
            wanted,
            snapshot,
            claim_timeout=0.0,
            is_first=is_first,
        ).batches()

    def driver(self, claim: ClaimId, claim_timeout: float = 0.0, retry_for: float = 30.0) -> DriverClaims:
        session = ConsumerSession(settings(self.cluster, retry_for=retry_for, clock=self.clock), GROUP, ["demo"])
        session.register()
        self.ends.callback(session.close)
        return DriverClaims(session, claim, claim_timeout)

    def hold(self, claim: ClaimId | str, partition: Partition = HERE) -> None:
        assert reading.register(self.cluster, GROUP, partition, str(claim)).errCode == 200

    def free(self, claim: ClaimId | str, partition: Partition = HERE) -> None:
        assert reading.unregister(self.cluster, GROUP, partition, str(claim)).errCode == 200

    def move_group(self, position: int) -> None:
        self.cluster.move_group(GROUP, HERE, position)

    @property
    def group_position(self) -> int | None:
        return self.cluster.group_offset(GROUP, HERE.topic, HERE.broker_id, HERE.partition_id)


@pytest.fixture
def waits() -> list[Callable[[], object]]:
    """Actions that replace the pauses of a client that waits for a partition, in this order."""
    return []


@pytest.fixture
def scene(waits: list[Callable[[], object]]) -> Iterator[Scene]:
    def act(seconds: float) -> None:
        assert waits, "somebody waits"
        waits.pop(0)()

    config = ServerConfig(transfer_size=512)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}, brokers=1, config=config) as cluster:
        sent = messages.send(cluster, messages.numbered(PARTITIONS, COUNT))[HERE]
        with ExitStack() as ends:
            yield Scene(cluster, reading.expected(sent, Scene.start, Scene.end, sole=False), ends, SkippingClock(act))


def nothing() -> None:
    pass


# Turns


def test_a_task_that_reads_a_range_twice_at_once_fails_with_advice(scene: Scene) -> None:
    first = scene.reader()
    begun = reading.rows_of(islice(first, 1))
    with pytest.raises(PartitionOccupiedError, match=r"this very task reads the partition already.*call cache\(\)"):
        next(scene.reader(replace(TASK, reader="6")))
    assert begun + reading.rows_of(first) == scene.rows


def test_a_run_waits_for_the_claims_of_a_run_whose_clock_was_ahead(
    scene: Scene, waits: list[Callable[[], object]]
) -> None:
    dead = ClaimId(TASK.query, run=TASK.run + 60_000, batch=7)
    for partition in PARTITIONS:
        scene.hold(dead, partition)
    with pytest.raises(FencedError, match=r"a run of this query that began later.*does not run twice"):
        scene.driver(TASK).take({HERE: None})
    with pytest.raises(FencedError, match=r"a run of this query that began later.*does not run twice"):
        next(scene.reader())

    driver = scene.driver(replace(TASK, task=-1, stage=-1), claim_timeout=45.0)
    waits += [nothing, lambda: scene.cluster.tubemq.clock.advance(36.0), *[nothing] * 3]
    driver.take(dict.fromkeys(PARTITIONS))
    assert all(driver.holds(partition) for partition in PARTITIONS)
    driver.release()


def test_a_planner_waits_for_siblings_only_while_it_holds_nothing(
    scene: Scene, waits: list[Callable[[], object]]
) -> None:
    planner = replace(TASK, task=PLANNER, stage=-1)
    one, other = scene.driver(planner), scene.driver(replace(planner, reader="6"))
    scene.hold(replace(TASK, stage=7), HERE)
    wait = one.new_acquirer()
    assert one.take_some(PARTITIONS, wait) == set(PARTITIONS) - {HERE}
    waits += [nothing, lambda: scene.free(replace(TASK, stage=7)), one.release]
    assert other.take_some({HERE}, other.new_acquirer()) == {HERE}
    assert other.take_some({PARTITIONS[0]}, other.new_acquirer()) == {PARTITIONS[0]}
    assert waits == []
    waits += [nothing, other.release]
    assert one.take_some({HERE}, wait) == {HERE}
    one.release()


# Fetches that end late
