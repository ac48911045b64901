# SPDX-License-Identifier: Apache-2.0
"""Ten minutes without any master: streams and sinks go on with the partitions that they know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import embedded_cluster
from tests.faults.engine import PATIENT, fill, settings
from tests.faults.unanswered import unanswered
from tests.real.topics import TopicSpec
from tests.waiting import wait_until
from tests.without_spark.sink import Task, Writing, commit_stream, plan_stream, run_task, schema
from tests.without_spark.source import Stream, where
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ

OUTAGE, STEP = 600.0, 20.0  # seconds; there is a micro-batch every 20 s

Event = Callable[[EmbeddedTubeMQ], None]


def stop(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.stop_master()


def start(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.start_master()


def be_silent(tubemq: EmbeddedTubeMQ) -> None:
    for method in ("get_partition_meta", "consumer_register_v2"):
        unanswered(tubemq.on(method).drop_request())


def answer(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.clear_faults()


def told(caplog: pytest.LogCaptureFixture, name: str) -> int:
    return sum(record.message.startswith(f"[{name}]") for record in caplog.records)


@pytest.mark.parametrize(("leave", "come_back"), [(stop, start), (be_silent, answer)], ids=["down", "silent"])
def test_a_stream_reads_the_partitions_that_it_knows(
    tubemq: EmbeddedTubeMQ,
    caplog: pytest.LogCaptureFixture,
    use_timings: UseTimings,
    leave: Event,
    come_back: Event,
) -> None:
    """Each micro-batch asks the master once and does not wait long for it. The log says so once a minute."""
    use_timings(silent_master_timeout=0.02, min_connect_step=0.02)
    clock = SkippingClock()
    client = settings(tubemq, clock=clock, retry_for=PATIENT)
    stream = Stream(tubemq, "one", metadataIntervalMs=int(1000 * STEP))
    stream.change = lambda given: replace(given, client=client)
    fill(tubemq)
    with stream.running() as run:
        assert run.next()
        leave(tubemq)
        for _ in range(round(OUTAGE / STEP)):
            clock.advance(STEP)
            fill(tubemq, 3)
            clock.pauses.clear()
            rows = run.next()
            assert rows is not None
            assert len(rows) == 1
            assert sum(clock.pauses) < 1.0
        assert told(caplog, "partition-lists-wait") == OUTAGE / 60
        assert told(caplog, "outage") == 0
        come_back(tubemq)
        tubemq.create_topic("one", partitions=2)
        tubemq.send("one", b"new", 1)
        while Partition(1, "one", 1) not in where(stream.rows):
            clock.advance(STEP)
            tubemq.clock.advance(STEP)  # the master balances the group anew
            run.next()
        assert told(caplog, "partition-lists-again") == 1
    assert sorted(row["value"] for row in stream.rows) == sorted(message.body for message in tubemq.messages("one"))


def test_a_sink_plans_writes_and_commits_to_the_partitions_that_it_knows(
    caplog: pytest.LogCaptureFixture, skipping_clock: SkippingClock
) -> None:
    """With `effectivelyOnce` the driver reads the topic's partitions anew now and then; it asks once a minute."""
    task, columns = Task(), schema()

    def write(number: int) -> None:
        writing = Writing(cluster, columns, "pair", streaming=True, effectivelyOnce=True, effectivelyOnceGroup="g")
        written = writing.write([{"value": b"row %d" % number}], replace(task, batch=number))
        writing.commit([written], number)

    with embedded_cluster(topics={"pair": TopicSpec(partitions=2)}) as cluster:
        write(0)
        cluster.tubemq.stop_master()
        batches = round(OUTAGE / STEP)
        for number in range(1, batches):
            skipping_clock.advance(STEP)
            write(number)
        cluster.tubemq.start_master()
        write(batches)
        stored = [one.body for one in cluster.tubemq.messages("pair")]
        assert sorted(stored) == sorted(b"row %d" % number for number in range(batches + 1))
        assert 0 < told(caplog, "partitions-maybe-old") <= OUTAGE / 30


def test_a_new_process_commits_a_batch_without_any_master_and_plans_none(
    tubemq: EmbeddedTubeMQ, use_timings: UseTimings
) -> None:
    """Spark commits in a process that may have asked no master before. The rows are stored by then."""
    use_timings(first_contact_timeout=0.0)
    given = {"tubemq.master": tubemq.master, "tubemq.rpc.framing": "standard", "topic": "one"}
    written = [run_task(plan_stream(given, schema()), [{"value": b"row"}], schema(), Task())]
    tubemq.stop_master()
    SESSIONS().close()
    commit_stream(given, schema(), written, 0)
    with pytest.raises(TransportError, match=r"no master answered.*tubemq\.master"):
        plan_stream(given, schema())


@pytest.mark.parametrize("once", [True, False], ids=["effectively once", "at least once"])
def test_a_new_process_writes_to_the_partitions_that_the_driver_knows(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, use_timings: UseTimings, once: bool
) -> None:
    """It registers when a master is back."""
    use_timings(task_settling=0.0)
    given = {"tubemq.master": tubemq.master, "tubemq.rpc.framing": "standard", "topic": "pair"}
    if once:
        given |= {"effectivelyonce": "true", "effectivelyoncegroup": "g"}
    task, columns = Task(), schema()
    commit_stream(given, columns, [run_task(plan_stream(given, columns), [{"value": b"1"}], columns, task)], 0)
    writer = plan_stream(given, columns)
    tubemq.stop_master()
    SESSIONS().close()
    written = run_task(writer, [{"value": b"2"}, {"value": b"3"}], columns, task.next())
    commit_stream(given, columns, [written], 1)
    assert told(caplog, "partitions-of-driver") == 1
    tubemq.start_master()
    commit_stream(given, columns, [run_task(plan_stream(given, columns), [{"value": b"4"}], columns, task.next())], 2)
    assert sorted(message.body for message in tubemq.messages("pair")) == [b"1", b"2", b"3", b"4"]


def test_a_session_that_waits_for_a_silent_master_can_be_closed(
    tubemq: EmbeddedTubeMQ, use_timings: UseTimings
) -> None:
    """A query must stop soon, even while its heartbeat waits for an answer."""
    use_timings(heartbeat_period=0.01, master_close_timeout=0.05)
    session = ConsumerSession(settings(tubemq, rpc_timeout=PATIENT), "g", ["one"])
    session.register()
    closes = tubemq.on("consumer_close").count()
    with tubemq.on("consumer_heartbeat_v2", times=1).drop_request() as asked:
        wait_until(lambda: asked.fired == 1, "a heartbeat")
        session.close()
    assert closes.fired == 0  # the session did not wait until it may send that request
