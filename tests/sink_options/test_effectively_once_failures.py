# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` with crashes, closed topics, and partitions that only some processes know."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.sink_options.effectively_once import Start, assert_each_stored_once, new_workers, plan_batch, rows
from tests.without_spark.sink import Task, Writing, schema
from tubemq_spark.errors import RowError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.stored_rows import TemporaryFolderError


def test_an_attempt_waits_once_for_all_its_topics(
    start: Start, monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings
) -> None:
    topics = ["t1", "t2", "t3", "t4"]
    cluster, task = start(*topics), Task()
    some = [row for topic in topics for row in rows(topic, 3, topic=topic)]
    clock = SkippingClock()
    monkeypatch.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
    use_timings(task_settling=3.0)
    writing = plan_batch(cluster, some, None, effectivelyOnceTopics=",".join(topics))
    writing.write(some, task)
    assert [pause for pause in clock.pauses if pause > 2.0] == []
    again = plan_batch(cluster, some, None, effectivelyOnceTopics=",".join(topics))
    assert again.write(some, task.restarted()).already_stored == 12
    assert [pause for pause in clock.pauses if pause > 2.0] == [pytest.approx(3.0, abs=0.5)]
    clock.pauses.clear()
    assert writing.write(some, task.again()).already_stored == 12
    assert [pause for pause in clock.pauses if pause > 2.0] == [pytest.approx(9.0, abs=0.5)]


def test_a_removed_broker_is_not_needed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, task = start(brokers=2), Task()
    given: dict[str, Any] = {"tubemq_retry_maxElapsedMs": 3000}
    first, second = rows("a", 10), rows("b", 10)
    writing = plan_batch(cluster, first, **given)
    writing.commit([writing.write(first, task)], 0)
    cluster.stop_broker(2)
    left = frozenset({Partition(1, "demo", 0)})
    monkeypatch.setattr(
        "tubemq_spark.client.cluster.producer_session.ProducerSession.lists", lambda _, one: one in left
    )
    task = task.next().restarted()
    assert plan_batch(cluster, second, **given).write(second, task).rows == {"1:demo:0": 10}


def test_a_task_that_searches_waits_for_all_brokers(start: Start) -> None:
    """A broker that is away may have stored rows of the earlier attempt."""
    cluster, task, some = start(brokers=2), Task(), rows("a", 10)
    writing = plan_batch(cluster, some, tubemq_retry_maxElapsedMs=2000)
    assert {"1:demo:0", "2:demo:0"} == writing.write(some, task).rows.keys()
    cluster.stop_broker(2)
    with pytest.raises(TransportError, match="with 1 of 2 partitions to go, asking where partitions end"):
        writing.write(some, task.again())
    cluster.start_broker(2)
    writing.write(some, task.again().again())
    assert_each_stored_once(cluster, some)


def test_a_partition_that_is_new_since_the_plan_takes_no_rows(start: Start) -> None:
    """A search of another attempt of the batch would not find them there."""
    cluster, task, some = start(), Task(), rows("a", 20)
    named = rows("b", 1, broker_id=1, partition=1)
    writing = plan_batch(cluster, some)
    naming = plan_batch(cluster, named, tubemq_retry_maxElapsedMs=500)
    cluster.tubemq.create_topic("demo", partitions=2)
    new_workers()
    assert writing.write(some, task).rows == {"1:demo:0": 20}
    with pytest.raises(TransportError, match="1:demo:1 was added since the driver planned the batch"):
        naming.write(named, task)


def test_a_task_without_a_writable_temporary_folder_fails_at_its_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not when it needs one, after other rows were sent; and the error names the folder."""
    cluster, task = start(), Task()
    writing = plan_batch(cluster, rows("a", 10), effectivelyOnceUncertain="sendAgain")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))  # as a disk that is full
        with pytest.raises(TemporaryFolderError) as full:
            writing.write(rows("a", 10), task)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert str(full.value) == (
        "option 'effectivelyOnce' needs a folder for temporary files, and the task cannot write into "
        f"{tmp_path}: File too large. Make room there, or set TMPDIR to another folder, for example with "
        "spark.executorEnv.TMPDIR"
    )
    with monkeypatch.context() as all_read_only:
        all_read_only.setattr("tubemq_spark.sink.stored_rows.os.access", lambda *_: False)
        with pytest.raises(TemporaryFolderError, match=f"cannot write into {tmp_path} or /var/tmp or .*TMPDIR"):
            writing.write(rows("a", 10), task)
    assert not cluster.tubemq.messages("demo")
    assert writing.write(rows("a", 10), task.again()).rows == {"1:demo:0": 10}


def test_a_row_above_the_clusters_limit_cannot_be_sent(start: Start) -> None:
    """The topic takes it, but a broker leaves it out when it reads its memory, so that no search would find it."""
    cluster, some = start(), [*rows("a", 1), {"value": bytes((1 << 20) + 1)}]
    cluster.tubemq.create_topic("long", partitions=1, max_msg_size=4 << 20)
    with pytest.raises(RowError, match=r"^row 1 of .* topic long takes 1048576 at most"):
        plan_batch(cluster, some, "long").write(some, Task())
    assert Writing(cluster, schema(some), "long", stampRows=True).write(some, Task()).rows == {"1:long:0": 2}
    assert len(cluster.tubemq.messages("long")) == 3
