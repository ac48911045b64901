# SPDX-License-Identifier: Apache-2.0
"""Tasks and drivers that want the same partition: siblings take turns, and predecessors are fenced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import ManualClock, SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.reading import UNIT, Row
from tests.real.topics import TopicSpec
from tests.sending import settings
from tubemq_spark.client.consumer.claim_acquirer import ClaimConflict
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import FencedError, PartitionOccupiedError
from tubemq_spark.protocol.claim_id import PLANNER, ClaimId, label_of
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


# Which holder of a partition is fenced, which is waited for, and for how long


WAITING = ClaimId("q", run=5, batch=5, task=5, attempt=5, stage=5, reader="5")
SIBLING = str(replace(WAITING, stage=6, attempt=9, label=label_of("host-7", "app-1", "my report")))
NEWER_RUN = str(replace(WAITING, run=6))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def conflict(clock: ManualClock) -> ClaimConflict:
    return ClaimConflict(ClientSettings((), retry_for=60.0, clock=clock), "g", WAITING, claim_timeout=45.0)


def test_the_wait_for_a_sibling_has_no_limit_and_is_logged_once_a_minute(
    conflict: ClaimConflict, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    while clock.now < 1000 + 3600:
        verdict = conflict.judge("here", SIBLING)
        assert not verdict.fence
        assert 0.01 <= verdict.pause <= 0.5
        clock.sleep(verdict.pause)
    assert 58 <= len(caplog.records) <= 60
    text = caplog.records[0].getMessage()
    assert text.startswith("[claim-wait] here: another scan of the same data reads the partition, a task of app-1, my-")
    assert text.endswith(f"report on host-7 ({SIBLING}); this one has waited for it for 10 s")
    assert not conflict.is_doubtful("here")


@pytest.mark.parametrize(
    ("holder", "error", "words"),
    [
        ("java", PartitionOccupiedError, r"here: another consumer of group g holds .* for more than 45 s: java\. Stop"),
        (NEWER_RUN, FencedError, "a run of this query that began later, .* Check that the query does not run twice$"),
        (str(replace(WAITING, reader="6")), PartitionOccupiedError, r"waits for itself; call cache\(\) on one side$"),
    ],
)
def test_the_wait_for_other_holders_ends_after_the_claim_timeout(
    conflict: ClaimConflict, clock: ManualClock, holder: str, error: type[Exception], words: str
) -> None:
    for _ in range(20):  # the time that siblings take does not count
        assert not conflict.judge("here", SIBLING).fence
        clock.advance(60)
    begun = clock.now

    def go_on() -> None:
        while True:
            clock.sleep(conflict.judge("here", holder).pause)

    with pytest.raises(error, match=words):
        go_on()
    assert begun + 45 <= clock.now < begun + 46
    assert conflict.is_doubtful("here")


def test_a_newer_run_that_took_our_claim_over_ends_the_wait_at_once(conflict: ClaimConflict) -> None:
    with pytest.raises(FencedError, match=r"here: a newer run of this query, spark_q_r6_.*, has taken the partition"):
        conflict.judge("here", NEWER_RUN, was_ours=True)


def test_the_error_names_the_holders_host_and_application(conflict: ClaimConflict, clock: ManualClock) -> None:
    other = replace(WAITING, query="r", label=label_of("host_3", "application_17_0001", "Nightly: copy", "clicks"))
    assert not conflict.judge("here", str(other)).fence
    clock.advance(46)
    words = r"a task of application-17-0001, Nightly-copy, clicks on host-3 \(spark_r_.*\)\. Stop it"
    with pytest.raises(PartitionOccupiedError, match=words):
        conflict.judge("here", str(other))


APPLICATION = "app-0123456789abcdef"
DRIVER_CLAIM = ClaimId(
    "first", run=1_790_000_000_000, batch=3, label=label_of("host-7", f"{APPLICATION}-{os.getpid()}")
)
SECOND = {
    "query": replace(DRIVER_CLAIM, query="second"),
    "batch read": ClaimId(APPLICATION, run=0, batch=0, task=PLANNER, label="host-7"),
}


@pytest.mark.parametrize("kind", SECOND)
def test_another_query_of_the_application_is_not_waited_for(clock: ManualClock, kind: str) -> None:
    """It may be stopping, so it has a few seconds. The error names both."""
    conflict = ClaimConflict(ClientSettings((), clock=clock), "g", SECOND[kind], claim_timeout=45.0)
    assert not conflict.judge("here", str(DRIVER_CLAIM)).fence
    clock.advance(4.9)
    assert not conflict.judge("here", str(DRIVER_CLAIM)).fence
    clock.advance(0.2)
    words = (
        r"streaming query first on host-7, begun at 2026-09-21 14:13:20 UTC \(spark_first_.*\) of this Spark "
        rf"application reads group g already.* change that of {SECOND[kind].description}, or"
    )
    with pytest.raises(PartitionOccupiedError, match=words):
        conflict.judge("here", str(DRIVER_CLAIM))


@pytest.mark.parametrize("process", ["ended", "9" * 18], ids=["killed", "impossible"])
def test_a_query_of_the_application_whose_process_was_killed_is_waited_for(clock: ManualClock, process: str) -> None:
    """Its claims expire, and the application may have started it again before its first micro-batch."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    number = process.replace("ended", str(ended.pid))
    holder = str(replace(DRIVER_CLAIM, label=label_of("host-7", f"{APPLICATION}-{number}")))
    conflict = ClaimConflict(ClientSettings((), clock=clock), "g", SECOND["query"], claim_timeout=45.0)
    assert not conflict.judge("here", holder).fence
    clock.advance(44.9)
    assert not conflict.judge("here", holder).fence


@pytest.mark.parametrize(
    "other", ["host-7", label_of("host-7", f"app-fedcba9876543210-{os.getpid()}")], ids=["unknown", "another"]
)
def test_a_query_of_another_application_is_waited_for(clock: ManualClock, other: str) -> None:
    conflict = ClaimConflict(ClientSettings((), clock=clock), "g", SECOND["query"], claim_timeout=45.0)
    assert not conflict.judge("here", str(replace(DRIVER_CLAIM, label=other))).fence
    clock.advance(44.9)
    assert not conflict.judge("here", str(replace(DRIVER_CLAIM, label=other))).fence
