# SPDX-License-Identifier: Apache-2.0
"""The master changes the visit token every few minutes, and brokers refuse the older ones (415)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.query import SMALL_FETCHES, TOPICS, Query, counts, fill, options, stored, write
from tests.without_spark.sink import Task, commit_stream, plan_stream, run_task, schema
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import TransportError
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.testing import EmbeddedTubeMQ

ROTATION = 240.0  # seconds between two tokens
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
INVALID = "Visit Authorized Token is invalid!"


@pytest.fixture
def tubemq(use_timings: UseTimings, skipping_clock: SkippingClock) -> Iterator[EmbeddedTubeMQ]:
    """No heartbeat brings a new token, so requests have to get it. The reader proves its claim before each delivery."""
    use_timings(heartbeat_period=3600.0, claim_proof_max_age=0.0)
    with EmbeddedTubeMQ(topics=TOPICS, config=CHECKED) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def rotate(tubemq: EmbeddedTubeMQ, times: int = 20) -> None:
    """Change the token so often; a token lives for six rotations at the most."""
    for _ in range(times):
        tubemq.clock.advance(ROTATION)


@pytest.mark.parametrize("moment", ["found", "planned", "given"])
def test_a_stream_continues_after_token_rotations(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    """The tokens rotate before a batch is planned, before its tasks run, or while these read. The log is silent."""
    query = Query(tubemq)
    setattr(query, moment, lambda: rotate(tubemq))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            fill(tubemq)
            query.run()
    assert query.rows == stored(tubemq)
    assert not caplog.records


def test_a_batch_can_be_read_again_long_after_it_was_planned(tubemq: EmbeddedTubeMQ) -> None:
    """A process joins the group once for all its tasks and attempts."""
    fill(tubemq)
    tasks = plan_batch(options(tubemq))
    for _ in range(2):
        rotate(tubemq)
        with tubemq.on("consumer_register_v2").count() as joined:
            for _ in range(2):
                assert sum(batch.num_rows for task in tasks for batch in task.read()) == 240
        assert joined.fired == 1
        assert tubemq.claims() == {}


def test_effectively_once_works_across_token_rotations(tubemq: EmbeddedTubeMQ) -> None:
    """Each attempt finds the stored rows."""
    raw = {"tubemq.master": tubemq.master, "tubemq.rpc.framing": "standard", "topic": "one"}
    raw |= {"effectivelyonce": "true", "checkpointlocation": new_checkpoint()}
    rows, columns, task = [{"value": b"%d" % number} for number in range(30)], schema(), Task()
    for _ in range(2):
        writer = plan_stream(raw, columns)
        rotate(tubemq)
        run_task(writer, rows[:20], columns, task)
        rotate(tubemq)
        written = run_task(writer, rows, columns, task.again())
        rotate(tubemq)
        commit_stream(raw, columns, [written], task.batch)
        task = task.next()
    assert counts(tubemq, "one") == Counter({row["value"]: 2 for row in rows})


def test_a_task_waits_for_a_broker_that_gets_the_token_later(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq)
    query.planned = lambda: tubemq.on("partition_register", times=4).fail(415, INVALID)
    query.run()
    assert query.rows == stored(tubemq)
    with tubemq.on("send_message", times=2).fail(415, INVALID) as late:
        assert write(tubemq, [b"x"]) == 1
    assert late.fired == 2


def test_without_a_master_the_error_names_the_token_and_the_master(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    tasks = plan_batch(options(tubemq, "one"))
    rotate(tubemq)
    with (
        tubemq.on("consumer_register_v2").throw("java.lang.Exception", "out of order"),
        pytest.raises(TransportError, match=rf"{INVALID}|no newer one: .*out of order"),
    ):
        list(tasks[0].read())
