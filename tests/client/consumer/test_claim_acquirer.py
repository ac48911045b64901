# SPDX-License-Identifier: Apache-2.0
"""Tasks, planners and drivers that want the same partition: siblings take turns, and predecessors are fenced."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT, Row
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.errors import FencedError, PartitionOccupiedError, PositionMovedError
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

SIBLINGS = {
    "another action": replace(TASK, stage=6, attempt=9),
    "an earlier action": replace(TASK, stage=4, attempt=1),
    "the other side of a union": replace(TASK, task=9, attempt=9),
    "a plan": replace(TASK, task=PLANNER, stage=-1),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_scans_of_the_same_data_take_turns(scene: Scene, waits: list[Callable[[], object]], name: str) -> None:
    first = scene.reader(SIBLINGS[name])
    begun = reading.rows_of(islice(first, 1))
    others: list[Row] = []
    waits += [nothing] * 5 + [lambda: others.extend(reading.rows_of(first))]
    assert reading.rows_of(scene.reader(group_position=0)) == scene.rows
    assert begun + others == scene.rows
    assert waits == []


def test_a_task_that_reads_a_range_twice_at_once_fails_with_advice(scene: Scene) -> None:
    first = scene.reader()
    begun = reading.rows_of(islice(first, 1))
    with pytest.raises(PartitionOccupiedError, match=r"this very task reads the partition already.*call cache\(\)"):
        next(scene.reader(replace(TASK, reader="6")))
    assert begun + reading.rows_of(first) == scene.rows


def test_a_task_fences_earlier_batches_and_not_later_ones(scene: Scene, waits: list[Callable[[], object]]) -> None:
    scene.hold(replace(TASK, batch=4, stage=4, attempt=9))
    assert reading.rows_of(scene.reader()) == scene.rows
    scene.hold(replace(TASK, batch=6, stage=4, attempt=1))
    with pytest.raises(FencedError, match="is too late, the newer attempt spark_query_r5_b6_s4_p5_a1_n5 holds"):
        next(scene.reader())


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


@pytest.mark.parametrize("side", ["driver", "reader"])
def test_the_wait_ends_if_a_broker_goes_on_naming_predecessors(
    scene: Scene, side: str, waits: list[Callable[[], object]]
) -> None:
    waits += [nothing] * 100
    named = f"[Duplicated Register] Partition x has been registered by {replace(TASK, batch=3)}"
    scene.cluster.tubemq.on("partition_register").fail(410, named)
    driver = scene.driver(TASK, 45.0, retry_for=0.3)
    wanted = reading.wanted(scene.cluster, HERE, scene.start, scene.end)
    batches = PartitionReader(
        settings(scene.cluster, retry_for=0.3), GROUP, TASK, wanted, reading.snapshot(scene.cluster, HERE)
    ).batches()
    with pytest.raises(PartitionOccupiedError, match=r"the broker was told \d+ times in 0\.3 s to end such claims"):
        driver.take({HERE: None}) if side == "driver" else next(batches)


# Where the group is left


@pytest.mark.parametrize("stands", [0, 30 * UNIT, 50 * UNIT, COUNT * UNIT], ids=str)
def test_the_group_is_left_where_it_was_found(scene: Scene, stands: int) -> None:
    """The planned position does not matter, because a DataFrame may be used again much later."""
    scene.move_group(stands)
    for claim in (TASK, replace(TASK, stage=6)):
        assert reading.rows_of(scene.reader(claim, group_position=40 * UNIT)) == scene.rows
        assert scene.group_position == stands


@pytest.mark.parametrize("expired", [False, True], ids=["fenced", "expired"])
@pytest.mark.parametrize("late", [0, 60], ids=["at the start", "within"])
def test_the_group_is_not_left_where_a_killed_attempt_moved_it(scene: Scene, expired: bool, late: int) -> None:
    killed = replace(TASK, attempt=1)
    scene.hold(killed)
    reading.register(scene.cluster, GROUP, HERE, str(killed), scene.start + late * UNIT)
    if expired:
        scene.cluster.tubemq.clock.advance(36.0)
    assert reading.rows_of(scene.reader(group_position=10 * UNIT, is_first=not expired)) == scene.rows
    assert scene.group_position == 10 * UNIT


def test_a_later_attempt_keeps_a_position_outside_the_range(scene: Scene) -> None:
    scene.move_group(COUNT * UNIT)
    assert reading.rows_of(scene.reader(group_position=10 * UNIT, is_first=False)) == scene.rows
    assert scene.group_position == COUNT * UNIT


def test_a_reader_without_a_claim_moves_no_group(scene: Scene) -> None:
    scene.move_group(50 * UNIT)
    scene.hold("somebody")
    with pytest.raises(PartitionOccupiedError):
        next(scene.reader(group_position=10 * UNIT))
    scene.free("somebody")
    assert scene.group_position == 50 * UNIT


# Fetches that end late


def exactly_or_not_at_all(scene: Scene, batches: Iterator[FetchedBatch]) -> bool:
    """Return True if the reader detected that its group was moved; else its rows are exact."""
    try:
        assert reading.rows_of(batches) == scene.rows
    except PositionMovedError:
        return True
    return False


@pytest.mark.parametrize("way", ["to the next attempt", "to the driver and on", "to the next run's driver and on"])
def test_a_fetch_of_a_killed_task_that_ends_late_loses_nothing(scene: Scene, way: str) -> None:
    killed = replace(TASK, attempt=1)
    noticed = 0
    for after in range(1, 30):
        scene.hold(killed)
        reading.register(scene.cluster, GROUP, HERE, str(killed), scene.start + 60 * UNIT)
        with scene.cluster.tubemq.on("get_message", client=str(killed)).end_late(after) as late:
            fetch_of(scene, killed)
        assert late.fired == 1
        if way == "to the next attempt":
            batches = scene.reader()
            noticed += exactly_or_not_at_all(scene, batches)
            continue
        run = TASK.run + 1 if way.startswith("to the next run") else TASK.run
        driver = scene.driver(ClaimId(TASK.query, run=run, batch=TASK.batch + 1))
        driver.take({HERE: scene.start})
        assert driver.is_doubtful(HERE)
        lender = driver.client_id(HERE)
        driver.lend([HERE])
        task = replace(driver.next_batch(), task=1, stage=8, attempt=9)
        noticed += exactly_or_not_at_all(
            scene, scene.reader(task, is_doubtful=driver.is_doubtful(HERE), previous=lender)
        )
        driver.take({HERE: None})
        assert not driver.is_doubtful(HERE)
        driver.release()
    assert noticed > 0


def fetch_of(scene: Scene, claim: ClaimId) -> None:
    call = reading.calls(scene.cluster, GROUP).fetch(messages.broker(scene.cluster, 1), HERE, str(claim))
    send_requests(settings(scene.cluster), [call])
