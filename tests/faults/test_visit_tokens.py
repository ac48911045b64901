# SPDX-License-Identifier: Apache-2.0
"""The master changes the visit token every few minutes, and brokers refuse the older ones (415)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.clocks import UseTimings
from tests.faults.engine import GROUP, SMALL_FETCHES, TOPICS, Query, bodies, counts, fill, options, stored, write
from tests.faults.engine import settings as usual
from tests.scanning import new_claim
from tests.without_spark.sink import Task, Writing, schema
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.consumer.bookmarks import Bookmark, move_bookmarks, read_bookmarks
from tubemq_spark.client.consumer.partition_scan import scan_partition
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.testing import EmbeddedTubeMQ

ROTATION = 240.0  # seconds between two tokens
LONG = 20  # rotations; a token lives for six at the most
FOR_EVER = 1e9  # seconds: all but tokens stays as it is, however far the clock is advanced
CHECKED = replace(
    SMALL_FETCHES,
    start_visit_token_check=True,
    visit_token_check_in_valid_time=0.0,
    visit_token_valid_period=ROTATION * 5 / 4,
    consumer_heartbeat_timeout=FOR_EVER,
    producer_heartbeat_timeout=FOR_EVER,
    broker_heartbeat_timeout=FOR_EVER,
    consumer_reg_timeout=FOR_EVER,
    mem_cache_flush_interval=FOR_EVER,
)
CALM: dict[str, Any] = {"retry_for": 30.0, "rpc_timeout": 10.0}
INVALID = "Visit Authorized Token is invalid!"


@pytest.fixture
def tubemq(use_timings: UseTimings) -> Iterator[EmbeddedTubeMQ]:
    """No heartbeat brings a new token, so requests have to get it. The reader proves its claim before each delivery."""
    use_timings(heartbeat_period=3600.0, claim_proof_max_age=0.0)
    with EmbeddedTubeMQ(topics=TOPICS, config=CHECKED) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def rotate(tubemq: EmbeddedTubeMQ, times: int = LONG) -> None:
    for _ in range(times):
        tubemq.clock.advance(ROTATION)


def settings(tubemq: EmbeddedTubeMQ) -> ClientSettings:
    return usual(tubemq, **CALM)


# Reading


@pytest.mark.parametrize("moment", ["found", "planned", "given"])
def test_a_stream_continues_after_token_rotations(tubemq: EmbeddedTubeMQ, moment: str) -> None:
    """The tokens rotate before a batch is planned, before its tasks run, or while these read."""
    query = Query(tubemq, **CALM)
    turns = []

    def turn() -> None:
        turns.append(moment)
        rotate(tubemq, LONG if moment != "given" else 7)

    setattr(query, moment, turn)
    fill(tubemq)
    query.run()
    fill(tubemq)
    query.run()
    assert query.rows == stored(tubemq)
    assert turns


def test_an_idle_stream_continues_after_token_rotations(tubemq: EmbeddedTubeMQ) -> None:
    driver = MicroBatchPlanner(options(tubemq, **CALM))
    try:
        start = driver.latest(driver.initial())
        rotate(tubemq)
        assert driver.latest(start) == start
        fill(tubemq)
        assert driver.latest(start).positions == {Partition(1, "one", 0): 28 * 80} | {
            Partition(1, "pair", number): 28 * 160 for number in range(2)
        }
    finally:
        driver.stop()
    assert tubemq.claims() == {}


def test_a_batch_can_be_read_again_long_after_it_was_planned(tubemq: EmbeddedTubeMQ) -> None:
    """A process joins the group once for all its tasks and attempts, and leaves it at once."""
    fill(tubemq)
    tasks = plan_batch(options(tubemq, **CALM))
    rotate(tubemq)
    with tubemq.on("consumer_register_v2").count() as joined:
        for _ in range(2):
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == 240
    assert joined.fired == 1
    assert tubemq.claims() == {}
    rotate(tubemq)
    assert sum(batch.num_rows for task in tasks for batch in task.read()) == 240


def test_tasks_of_a_group_with_filters_get_new_tokens(tubemq: EmbeddedTubeMQ) -> None:
    for number in range(20):
        tubemq.send("one", b"%d" % number, msg_type="ab"[number % 2])
    wanted = replace(options(tubemq, "one", **CALM), filters={"one": ("a",)})
    query = Query(tubemq, "one", **CALM)
    query._options = wanted
    query.planned = lambda: rotate(tubemq)
    query.run()
    assert [row.body for row in query.rows[Partition(1, "one", 0)]] == [b"%d" % n for n in range(0, 20, 2)]


# Writing


def test_a_task_continues_to_write_after_token_rotations(tubemq: EmbeddedTubeMQ) -> None:
    rows = bodies(60)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 20):
            yield pa.RecordBatch.from_pydict({"value": pa.array(rows[start : start + 20], pa.binary())})
            rotate(tubemq, 7)  # 21 in all

    written = write_batches(WritePlan(SinkOptions(settings(tubemq), "pair", 10)), batches())
    assert sum(written.rows.values()) == len(rows)
    assert counts(tubemq) == Counter(rows)


def test_effectively_once_works_across_token_rotations(tubemq: EmbeddedTubeMQ, use_timings: UseTimings) -> None:
    """Each attempt finds the stored rows, and the bookmarks move."""
    use_timings(task_settling=0.05)
    tubemq_settings = {"effectivelyOnce": True, "checkpointLocation": "/checkpoints/rotating"}
    rows = [{"value": b"%d" % number} for number in range(30)]
    task = Task()
    for _ in range(2):
        writing = Writing(Served(tubemq), schema(rows), "one", streaming=True, **tubemq_settings)  # type: ignore[arg-type]
        rotate(tubemq)
        writing.write(rows[:20], task)
        rotate(tubemq)
        task = task.again()
        written = writing.write(rows, task)
        rotate(tubemq)
        writing.commit([written], task.batch)
        task = task.next()
    assert counts(tubemq, "one") == Counter({row["value"]: 2 for row in rows})


class Served:
    """The part of a cluster that `Writing` needs."""

    framing = "standard"

    def __init__(self, tubemq: EmbeddedTubeMQ) -> None:
        self.master = tubemq.master


def test_scans_and_bookmarks_work_across_token_rotations(tubemq: EmbeddedTubeMQ) -> None:
    place = Partition(1, "one", 0)
    with SESSIONS().lease(settings(tubemq)) as session:
        session.add_topics(["one"])
        assert read_bookmarks(session, "base", [place])[place].end == 0
        for number in range(3):
            tubemq.send("one", b"%d" % number)
            rotate(tubemq)
            assert len(list(scan_partition(session, "base", place, 0, new_claim()))) == number + 1
            rotate(tubemq)
            move_bookmarks(session, "base", number, [place])
        assert read_bookmarks(session, "base", [place])[place] == Bookmark(28 * 3, 28 * 2, 28 * 3)


# What is told when no token helps


def read_all(tubemq: EmbeddedTubeMQ, **client: Any) -> None:
    Query(tubemq, "one", **client).run()


@pytest.mark.parametrize("method", ["partition_register", "partition_heartbeat"])
def test_the_error_of_a_refused_token_does_not_blame_the_password(tubemq: EmbeddedTubeMQ, method: str) -> None:
    fill(tubemq)
    tubemq.on(method).fail(415, INVALID)
    with pytest.raises(TransportError, match=rf"{INVALID}.*the master gives no newer one") as caught:
        read_all(tubemq)
    assert "password" not in str(caught.value)


def test_the_error_of_a_sends_refused_token_does_not_blame_the_password(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.on("send_message").fail(415, INVALID)
    with pytest.raises(ServerError, match=f"{INVALID}.*check that the broker belongs to the cluster") as caught:
        write_batches(
            WritePlan(SinkOptions(usual(tubemq), "pair")), [pa.RecordBatch.from_pydict({"value": pa.array([b"x"])})]
        )
    assert "password" not in str(caught.value)


def test_a_task_waits_for_a_broker_that_gets_the_token_later(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    query.planned = lambda: tubemq.on("partition_register", times=4).fail(415, INVALID)
    query.run()
    late = tubemq.on("send_message", times=2).fail(415, INVALID)
    assert write(tubemq, [b"x"], **CALM) == 1
    assert late.fired == 2
    query.run()
    assert query.rows == stored(tubemq)


def test_without_a_master_the_error_names_the_token_and_the_master(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    tasks = plan_batch(options(tubemq, "one"))
    rotate(tubemq)
    with (
        tubemq.on("consumer_register_v2").throw("java.lang.Exception", "out of order"),
        pytest.raises(TransportError, match=rf"{INVALID}|no newer one: .*out of order"),
    ):
        list(tasks[0].read())
    assert len(tubemq.messages("one")) == 80


def test_token_rotations_are_not_logged(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    fill(tubemq)
    query = Query(tubemq, group=GROUP, **CALM)
    query.planned = lambda: rotate(tubemq)
    with caplog.at_level(logging.WARNING):
        query.run()
    assert not caplog.records
