# SPDX-License-Identifier: Apache-2.0
"""Ten minutes without any master: streams and sinks go on with the partitions that they know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.query import fill
from tests.without_spark.sink import Task, commit_stream, plan_stream, run_task, schema
from tests.without_spark.source import Stream, bodies, stored, where
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ

OUTAGE, STEP = 600.0, 20.0  # seconds; there is a micro-batch every 20 s
COLUMNS = schema()


@pytest.fixture(autouse=True)
def _local_folder_of_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


def told(caplog: pytest.LogCaptureFixture, name: str) -> int:
    return sum(record.message.startswith(f"[{name}]") for record in caplog.records)


@pytest.mark.parametrize("is_silent", [False, True], ids=["down", "silent"])
def test_a_stream_reads_the_partitions_that_it_knows(
    tubemq: EmbeddedTubeMQ,
    caplog: pytest.LogCaptureFixture,
    use_timings: UseTimings,
    skipping_clock: SkippingClock,
    is_silent: bool,
) -> None:
    """Each micro-batch asks the master once and does not wait long for it. The log says so once a minute."""
    use_timings(silent_master_timeout=0.02, min_connect_step=0.02, slow_peer_grace=0.02)
    stream = Stream(
        tubemq, "one", metadataIntervalMs=int(1000 * STEP), tubemq_rpc_timeoutMs=1000 if is_silent else 10_000
    )
    fill(tubemq)
    with stream.running() as run:
        assert run.next()
        if is_silent:
            for method in ("get_partition_meta", "consumer_register_v2"):
                tubemq.on(method).drop_request()
        else:
            tubemq.stop_master()
        for _ in range(round(OUTAGE / STEP)):
            skipping_clock.advance(STEP)
            fill(tubemq, 3)
            skipping_clock.pauses.clear()
            rows = run.next()
            assert rows is not None
            assert len(rows) == 1
            assert sum(skipping_clock.pauses) < 1.0
        assert told(caplog, "outage") == OUTAGE / 60
        tubemq.clear_faults()
        tubemq.start_master()
        tubemq.create_topic("one", partitions=2)
        tubemq.send("one", b"new", 1)
        while Partition(1, "one", 1) not in where(stream.rows):
            skipping_clock.advance(STEP)
            tubemq.clock.advance(STEP)  # the master balances the group anew
            run.next()
        assert told(caplog, "outage-over") == 1
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "one"))


def given(tubemq: EmbeddedTubeMQ, once: bool) -> dict[str, str]:
    usual = {"tubemq.master": tubemq.master, "tubemq.rpc.framing": "standard", "topic": "pair"}
    return usual | ({"effectivelyonce": "true", "checkpointlocation": new_checkpoint()} if once else {})


def test_a_sink_plans_writes_and_commits_to_the_partitions_that_it_knows(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, skipping_clock: SkippingClock
) -> None:
    """With `effectivelyOnce`, too: the brokers tell where partitions end."""
    task, raw = Task(), given(tubemq, once=True)
    batches = round(OUTAGE / STEP)
    for number in range(batches + 1):
        if number == 1:
            tubemq.stop_master()
        elif number == batches:
            tubemq.start_master()
        rows = [{"value": b"row %d" % number}]
        written = run_task(plan_stream(raw, COLUMNS), rows, COLUMNS, replace(task, batch=number))
        commit_stream(raw, COLUMNS, [written], number)
        skipping_clock.advance(STEP)
    assert sorted(stored(tubemq, "pair")) == sorted(b"row %d" % number for number in range(batches + 1))


@pytest.mark.parametrize("once", [True, False], ids=["effectively once", "at least once"])
def test_a_new_process_writes_to_the_partitions_that_the_driver_knows(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, once: bool
) -> None:
    """It registers when a master is back."""
    task, raw = Task(), given(tubemq, once)
    commit_stream(raw, COLUMNS, [run_task(plan_stream(raw, COLUMNS), [{"value": b"1"}], COLUMNS, task)], 0)
    writer = plan_stream(raw, COLUMNS)
    tubemq.stop_master()
    SESSIONS().close()
    commit_stream(raw, COLUMNS, [run_task(writer, [{"value": b"2"}, {"value": b"3"}], COLUMNS, task.next())], 1)
    assert told(caplog, "partitions-of-driver") == 1
    tubemq.start_master()
    commit_stream(
        raw, COLUMNS, [run_task(plan_stream(raw, COLUMNS), [{"value": b"4"}], COLUMNS, task.next().next())], 2
    )
    assert sorted(stored(tubemq, "pair")) == [b"1", b"2", b"3", b"4"]


def test_a_new_process_commits_a_batch_without_any_master_and_plans_none(tubemq: EmbeddedTubeMQ) -> None:
    """Spark commits in a process that may have asked no master before. The rows are stored by then."""
    raw = given(tubemq, once=False)
    written = [run_task(plan_stream(raw, COLUMNS), [{"value": b"row"}], COLUMNS, Task())]
    tubemq.stop_master()
    SESSIONS().close()
    commit_stream(raw, COLUMNS, written, 0)
    with pytest.raises(TransportError, match=r"no master answered.*tubemq\.master"):
        plan_stream(raw, COLUMNS)
