# SPDX-License-Identifier: Apache-2.0
"""Tasks and drivers that want the same partition: siblings take turns, and predecessors are fenced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT, Row
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.errors import FencedError, PartitionOccupiedError
from tubemq_spark.protocol.claim_id import ClaimId
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
    clock: SkippingClock
    start: int = 30 * UNIT
    end: int = (COUNT - 30) * UNIT

    def reader(self, claim: ClaimId = TASK) -> Generator[FetchedBatch, None, None]:
        """One that waits for nobody but siblings."""
        where = self.cluster, GROUP, HERE, self.start, self.end
        return reading.reader(*where, claim=claim, clock=self.clock).batches()

    def driver(self, claim: ClaimId, claim_timeout: float = 0.0) -> AbstractContextManager[GroupClaims]:
        made = settings(self.cluster, clock=self.clock)
        return reading.holding(made, GROUP, "demo", claim=claim, claim_timeout=claim_timeout)

    def hold(self, claim: ClaimId | str, partition: Partition = HERE) -> None:
        assert reading.register(self.cluster, GROUP, partition, str(claim)).errCode == 200


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
        yield Scene(cluster, reading.expected(sent, Scene.start, Scene.end, sole=False), SkippingClock(act))


def nothing() -> None:
    pass


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
    with (
        scene.driver(TASK) as driver,
        pytest.raises(FencedError, match=r"a run of this query that began later.*does not run twice"),
    ):
        driver.take({HERE: None})
    with pytest.raises(FencedError, match=r"a run of this query that began later.*does not run twice"):
        next(scene.reader())

    waits += [nothing, lambda: scene.cluster.tubemq.clock.advance(36.0), *[nothing] * 3]
    with scene.driver(replace(TASK, task=-1, stage=-1), claim_timeout=45.0) as driver:
        driver.take(dict.fromkeys(PARTITIONS))
        assert all(driver.holds(partition) for partition in PARTITIONS)
