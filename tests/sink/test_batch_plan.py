# SPDX-License-Identifier: Apache-2.0
"""Plans and commits of batches with `effectivelyOnce`, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster
from tests.sending import settings
from tests.without_spark.checkpoints import new_checkpoint, state_file
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.short_claims import read_ends
from tubemq_spark.errors import ConfigError, FencedError, TransportError
from tubemq_spark.sink.batch_plan import BatchPlan, commit_batch, plan_batch
from tubemq_spark.sink.batch_state import BatchState, StateFile, StateFileError
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.task_attempts import WriteTask

QUERY = "a query"
_READ_ENDS = "tubemq_spark.sink.batch_plan.read_ends"


class Driver:
    """A driver that plans and commits batches of one query."""

    def __init__(self, cluster: EmbeddedCluster, checkpoint: str | None = None, *topics: str) -> None:
        self.cluster = cluster
        self.checkpoint = checkpoint or new_checkpoint()
        self.options = EffectivelyOnceOptions(
            f"{self.checkpoint}/tubemq", "checkpointLocation", topics or ("demo",), self.checkpoint
        )

    def plan(self, *, all_needed: bool = False) -> BatchPlan:
        with SESSIONS().lease(settings(self.cluster)) as session:
            return plan_batch(session, self.options, all_needed=all_needed)

    def commit(self, batch: int, *plans: BatchPlan) -> None:
        commit_batch(self.options, batch, QUERY, [one.state.plan for one in plans])


@pytest.fixture
def driver(cluster: EmbeddedCluster) -> Driver:
    return Driver(cluster)


def send(cluster: EmbeddedCluster, count: int = 4, topic: str = "demo") -> None:
    for number in range(count):
        cluster.tubemq.send(topic, b"%d" % number)


def task(batch: int, query: str = QUERY) -> WriteTask:
    return WriteTask(query, batch, 0, 0)


def test_batches_begin_where_partitions_end(cluster: EmbeddedCluster, driver: Driver) -> None:
    """Also if others write: an attempt that follows another one begins where that one began."""
    begins = []
    for batch in range(3):
        send(cluster)
        first = driver.plan()
        assert first.is_first
        send(cluster)
        second = driver.plan()
        assert not second.is_first
        assert first.begins(task(batch)) == second.begins(task(batch))
        begins.append({partition.store: end for partition, end in second.begins(task(batch)).items()})
        driver.commit(batch, second)
    assert [sum(one.values()) // 28 for one in begins] == [4, 12, 20]


def test_a_batch_that_spark_did_not_note_as_committed_begins_where_it_began(
    cluster: EmbeddedCluster, driver: Driver
) -> None:
    first = driver.plan()
    send(cluster)
    driver.commit(0, first)
    again = driver.plan()
    assert again.is_repeated(task(0))
    assert again.begins(task(0)) == first.begins(task(0))
    assert again.begins(task(1)) != first.begins(task(0))
    driver.commit(0, again)
    later = driver.plan()
    assert later.begins(task(0)) == first.begins(task(0))
    assert later.begins(task(1)) == again.begins(task(1))


def test_a_repeated_batch_leaves_the_begins_of_the_one_behind_it(cluster: EmbeddedCluster, driver: Driver) -> None:
    """Another run may have begun that batch meanwhile."""
    first = driver.plan()
    driver.commit(0, first)
    begun = driver.plan()
    send(cluster)
    again = driver.plan()
    driver.commit(0, again)
    later = driver.plan()
    assert not later.is_first
    assert later.begins(task(1)) == begun.begins(task(1))


def test_a_new_partition_takes_rows_from_the_next_batch_on(cluster: EmbeddedCluster, driver: Driver) -> None:
    first = driver.plan()
    cluster.tubemq.create_topic("demo", partitions=3)
    forget_servers()  # a heartbeat tells of it later
    for one in (driver.plan(), driver.plan()):  # no attempt has written to it, so the next attempt may
        added = one.begins(task(0)).keys() - first.begins(task(0)).keys()
        assert {partition.partition_id for partition in added} == {2}


def test_a_partition_whose_broker_is_away_is_left_out(
    cluster: EmbeddedCluster, driver: Driver, use_timings: UseTimings, caplog: pytest.LogCaptureFixture
) -> None:
    use_timings(broker_away_after=0.2)
    with cluster.tubemq.on("partition_register", broker=2).drop_request():
        begins = driver.plan().begins(task(0))
    assert {partition.broker_id for partition in begins} == {1}
    assert "[partitions-not-planned] no answer about 2:demo:0 and 1 others: this batch writes nothing" in caplog.text
    assert {partition.broker_id for partition in driver.plan().begins(task(0))} == {1, 2}


@pytest.mark.parametrize("all_needed", [False, True], ids=["no broker answers", "rows name partitions"])
def test_a_plan_waits_for_the_brokers_that_it_needs(
    cluster: EmbeddedCluster, driver: Driver, use_timings: UseTimings, all_needed: bool
) -> None:
    use_timings(broker_away_after=0.2)
    away: dict[str, Any] = {"broker": 2} if all_needed else {}
    given = replace(settings(cluster), retry_for=0.5, rpc_timeout=0.2)
    with (
        SESSIONS().lease(given) as session,
        cluster.tubemq.on("partition_register", **away).drop_request(),
        pytest.raises(TransportError, match=r"gave up after 0\.5 s"),
    ):
        plan_batch(session, driver.options, all_needed=all_needed)
    assert not state_file(driver.checkpoint).exists()


def test_an_unknown_topic_ends_the_query_at_its_start(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="has no topic nowhere"):
        Driver(cluster, None, "demo", "nowhere").plan()


def test_topics_without_enough_messages_for_marks_are_told(
    cluster: EmbeddedCluster, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.plan()
    assert "[no-marks] no partition of topic demo holds enough messages" in caplog.text
    caplog.clear()
    send(cluster, 100)
    other = Driver(cluster)
    other.plan()
    assert "[no-marks]" not in caplog.text


# The file is not that of the batch


def test_a_checkpoint_in_another_file_system_is_refused(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="metadata is missing"):
        Driver(cluster, str(tmp_path)).plan()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_query_is_refused(driver: Driver) -> None:
    driver.commit(0, driver.plan())
    with pytest.raises(StateFileError, match=f"belongs to query {QUERY}, and this is another"):
        driver.plan().check(task(1, "another"))


@pytest.mark.parametrize(
    ("committed", "batch", "says"),
    [
        (None, 0, None),
        (None, 1, "the query is at batch 1, and its file knows no batch: a run without effectivelyOnce"),
        (4, 4, None),
        (4, 5, None),
        (4, 6, "the query is at batch 6, and its file ends at batch 4: a run without effectivelyOnce"),
        (4, 3, "the checkpoint is at batch 3, and the file of effectivelyOnce at batch 4: it is unknown"),
    ],
)
def test_a_batch_that_does_not_follow_the_committed_one_may_be_stored(
    committed: int | None, batch: int, says: str | None
) -> None:
    plan = BatchPlan(BatchState("id", None, committed, begins={}), True, 0)
    found = plan.check(task(batch))
    assert (found is None) if says is None else (found or "").startswith(says)


def test_a_file_that_is_gone_fails_the_commit(driver: Driver) -> None:
    plan = driver.plan()
    state_file(driver.checkpoint).unlink()
    with pytest.raises(StateFileError, match=r"was removed while batch 0 was written\. Its rows are stored"):
        driver.commit(0, plan)


# Two runs of one query


def test_the_older_of_two_runs_ends_in_its_commit(driver: Driver) -> None:
    older, newer = driver.plan(), driver.plan()
    with pytest.raises(FencedError, match="two runs use one checkpoint"):
        driver.commit(0, older)
    driver.commit(0, newer)


@contextmanager
def planned_meanwhile(monkeypatch: pytest.MonkeyPatch, times: int, plan: Callable[[], object]) -> Iterator[None]:
    """Let another driver plan while one asks where partitions end."""
    left = [times]

    def read(*of: Any, **how: Any) -> Any:
        found = read_ends(*of, **how)
        if left[0]:
            left[0] -= 1
            with monkeypatch.context() as inner:
                inner.setattr(_READ_ENDS, read_ends)
                plan()
        return found

    with monkeypatch.context() as outer:
        outer.setattr(_READ_ENDS, read)
        yield


def test_of_two_drivers_that_plan_at_once_one_follows_the_other(
    cluster: EmbeddedCluster, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[BatchPlan] = []

    def plan() -> None:
        others.append(Driver(cluster, driver.checkpoint).plan())
        send(cluster)

    meanwhile: AbstractContextManager[None] = planned_meanwhile(monkeypatch, 1, plan)
    with meanwhile:
        mine = driver.plan()
    assert [others[0].is_first, mine.is_first] == [True, False]
    assert mine.base == others[0].base
    assert mine.begins(task(0)) == others[0].begins(task(0))


def test_drivers_that_plan_again_and_again_do_not_go_on(
    cluster: EmbeddedCluster, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan() -> None:
        file = StateFile(driver.options)
        file.write((file.read() or BatchState("id")).planned({}))  # so that ends are asked for again

    with planned_meanwhile(monkeypatch, 100, plan), pytest.raises(FencedError):
        driver.plan()
