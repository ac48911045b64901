# SPDX-License-Identifier: Apache-2.0
"""`effectivelyOnce` with crashes, closed topics, and partitions that only some processes know."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster
from tests.messages import broker, settings
from tests.reading import UNIT
from tests.real.topics import TopicSpec
from tests.sending import bodies_in
from tests.sink_options.effectively_once import Start, assert_each_stored_once, plan_batch, rows
from tests.without_spark.sink import Cells, Task, Writing, schema
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.bookmarks import bookmark_group
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.partition_scan import scan_group
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.client.timings import DEFAULT_TIMINGS
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.task_attempts import RUN_CACHE
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.config import Release, ServerConfig


def bookmarked(cluster: EmbeddedCluster) -> set[tuple[str, str]]:
    """Return topic and group of all positions that the brokers keep."""
    brokers = cluster.tubemq._servers.brokers.values()
    return cluster.tubemq._on_thread(
        lambda: {(key.topic, key.group) for server in brokers for key in server.service.offsets._records}
    )


@pytest.mark.parametrize("lost", [9, 10, 11])
def test_rows_are_found_after_a_crash_that_moved_them_before_the_bookmark(lost: int) -> None:
    """The crash removes messages, so that rows of the first attempt get positions before the bookmark."""
    first, second = rows("a", lost), rows("b", 10)
    config = ServerConfig(mem_cache_flush_interval=3600.0)
    with EmbeddedTubeMQ(release=Release.V2_5, config=config) as tubemq:
        cluster, task = EmbeddedCluster(tubemq, config), Task()
        cluster.create("demo", TopicSpec(partitions=1))
        writing = plan_batch(cluster, first)
        writing.commit([writing.write(first, task)], 0)
        tubemq.clock.advance(12)  # positions are on disk by then, and messages not
        tubemq.crash_broker(1)
        tubemq.start_broker(1)
        task = task.next()
        plan_batch(cluster, second).write(second, task)
        RUN_CACHE().clear()  # all processes were killed
        assert plan_batch(cluster, second).write(second, task.restarted()).already_stored == 10
        assert_each_stored_once(cluster, second)
        forget_servers()


@pytest.mark.parametrize("is_allowed", [True, False], ids=["sendAgain", "a stage that is run again"])
def test_another_row_with_the_same_number_is_not_mistaken(start: Start, is_allowed: bool) -> None:
    """Without the search, rows in another order may be stored twice, but none may be lost."""
    cluster, task = start(), Task()
    given: dict[str, Any] = {}
    if is_allowed:
        given = {"effectivelyOnceUncertain": "sendAgain", "effectivelyOnceMaxOffsets": 1}
    first, second = rows("a", 1), rows("b", 200)
    writing = plan_batch(cluster, first, **given)
    writing.commit([writing.write(first, task)], 0)
    task = task.next()
    writing = plan_batch(cluster, second, **given)
    writing.write(second[:100], task)
    cluster.tubemq.on("send_message", nth=1, times=1).close_connection()
    writing.write(second[100:] + second[:100], task.again() if is_allowed else task)
    stored = bodies_in(cluster)
    assert {row["value"] for row in second} <= stored.keys()


def test_a_partition_known_only_to_the_plan_is_searched(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, task = start(brokers=2), Task()
    first, second = rows("a", 2), rows("b", 20)
    writing = plan_batch(cluster, first)
    writing.commit([writing.write(first, task)], 0)
    task = task.next()
    writing = plan_batch(cluster, second, tubemq_retry_maxElapsedMs=1000)
    writing.write(second, task)
    # Another worker, whose master has a shorter list by now, for a broker is away.
    monkeypatch.setattr(
        "tubemq_spark.sink.stored_rows_search.all_partitions", lambda *_, **__: frozenset({Partition(1, "demo", 0)})
    )
    monkeypatch.setattr(
        "tubemq_spark.client.cluster.producer_session.ProducerSession.lists", lambda _, one: one.broker_id == 1
    )
    cluster.stop_broker(2)
    with pytest.raises(Exception, match="2:demo:0"):
        writing.write(second, task.again())
    cluster.start_broker(2)
    assert_each_stored_once(cluster, first, second)


def test_bookmarks_of_a_rarely_written_topic_move(start: Start) -> None:
    """The bookmarks of all topics move with each commit, so retention does no harm."""
    cluster, task = start("rare", "often"), Task()
    for batch in range(6):
        some = rows(str(batch), 10, topic="often" if batch % 2 else "rare")
        writing = plan_batch(cluster, some, None)
        writing.commit([writing.write(some, task)], batch)
        task = task.next()
    cluster.tubemq.flush("rare")
    cluster.tubemq.expire("rare", keep=5)
    RUN_CACHE().clear()
    some = rows("6", 10, topic="rare")
    try:
        assert sum(plan_batch(cluster, some, None).write(some, task.restarted()).rows.values()) == 10
    except DataLossError as loss:
        pytest.fail(str(loss))


def test_partitions_known_only_to_the_earlier_attempt_are_searched(start: Start) -> None:
    """The attempt ran in another process, and this one has not asked the master since."""
    cluster, task = start(), Task()
    first, second = rows("a", 3), rows("b", 20)
    writing = plan_batch(cluster, first)
    writing.commit([writing.write(first, task)], 0)
    task = task.next()
    writing = plan_batch(cluster, second)
    cluster.create("demo", TopicSpec(partitions=4))
    other = plan_batch(cluster, second, tubemq_connections_shared=False)  # which has a session of its own
    assert len(other.write(second, task).rows) == 4
    assert writing.write(second, task.again()).already_stored == 20
    assert_each_stored_once(cluster, first, second)


def test_a_batch_without_new_rows_moves_the_bookmarks(start: Start) -> None:
    cluster, task, some = start("rare"), Task(), rows("a", 10, topic="rare")
    plan_batch(cluster, some, None).write(some, task)
    RUN_CACHE().clear()
    writing = plan_batch(cluster, some, None)
    written = writing.write(some, task.restarted())
    assert (written.already_stored, dict(written.rows)) == (10, {})
    writing.commit([written], 0)
    options = writing.plan.options.effectively_once
    assert options is not None
    positions = [cluster.group_offset(bookmark_group(options.group, batch), "rare", 1, 0) for batch in (0, 1)]
    assert positions == [10 * UNIT, 0]


def test_dead_letters_have_no_bookmarks(start: Start) -> None:
    """Each attempt sends them again, and searches nothing in their topic."""
    cluster, task = start("demo", "dead"), Task()
    given: dict[str, Any] = {"failedRows": "deadLetter", "deadLetterTopic": "dead"}
    some: list[Cells] = [*rows("a", 3), {"value": None}]
    writing = plan_batch(cluster, some, **given)
    writing.commit([writing.write(some, task)], 0)
    cluster.tubemq.flush("dead")
    cluster.tubemq.expire("dead", keep=0)
    task = task.next()
    writing = plan_batch(cluster, some, **given)
    writing.write(some, task)
    again = writing.write(some, task.again())
    assert (again.already_stored, again.dead_letters) == (3, 1)
    assert not {topic for topic, _ in bookmarked(cluster) if topic == "dead"}


def test_a_closed_topic_does_not_stop_a_commit(start: Start) -> None:
    cluster, task = start("demo", "other"), Task()
    some = [*rows("a", 3, topic="demo"), *rows("b", 3, topic="other")]
    writing = plan_batch(cluster, some, None)
    written = writing.write(some, task)
    forget_servers()
    cluster.tubemq.delete_topic("other")
    writing.commit([written], 0)
    options = writing.plan.options.effectively_once
    assert options is not None
    assert cluster.group_offset(bookmark_group(options.group, 0), "demo", 1, 0) == 3 * UNIT


def test_an_attempt_waits_once_for_all_its_topics(
    start: Start, monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings
) -> None:
    topics = ["t1", "t2", "t3", "t4"]
    cluster, task = start(*topics), Task()
    some = [row for topic in topics for row in rows(topic, 3, topic=topic)]
    clock = SkippingClock()
    monkeypatch.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
    use_timings(task_settling=3.0)
    writing = plan_batch(cluster, some, None)
    writing.write(some, task)
    assert [pause for pause in clock.pauses if pause > 2.0] == [pytest.approx(3.0, abs=0.5)]
    clock.pauses.clear()
    assert writing.write(some, task.again()).already_stored == 12
    assert [pause for pause in clock.pauses if pause > 2.0] == [pytest.approx(9.0, abs=0.5)]


def test_the_claim_of_a_killed_scan_with_a_fast_clock_is_overcome(start: Start) -> None:
    cluster, task, some = start(), Task(), rows("a", 5)
    writing = plan_batch(cluster, some)
    writing.write(some[:2], task)
    options = writing.plan.options.effectively_once
    assert options is not None
    ahead = time.time_ns() // 1_000_000 + 20_000
    killed = str(ClaimId(f"look-{task.query}-0", ahead, 0, 0, 1))
    calls = GroupRequests(settings(cluster), f"{scan_group(options.group)}x")  # by another process, in its group
    send_requests(settings(cluster), [calls.register(broker(cluster, 1), Partition(1, "demo", 0), killed, 0)])
    assert writing.write(some, task.again()).already_stored == 2
    assert_each_stored_once(cluster, some)


def test_a_removed_broker_is_not_needed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, task = start(brokers=2), Task()
    given: dict[str, Any] = {"tubemq_retry_maxElapsedMs": 3000}
    first, second = rows("a", 10), rows("b", 10)
    writing = plan_batch(cluster, first, **given)
    writing.commit([writing.write(first, task)], 0)
    cluster.stop_broker(2)
    left = frozenset({Partition(1, "demo", 0)})
    monkeypatch.setattr("tubemq_spark.sink.stored_rows_search.all_partitions", lambda *_, **__: left)
    monkeypatch.setattr(
        "tubemq_spark.client.cluster.producer_session.ProducerSession.lists", lambda _, one: one in left
    )
    task = task.next().restarted()
    assert plan_batch(cluster, second, **given).write(second, task).rows == {"1:demo:0": 10}


def test_many_unknown_topics_cause_no_pauses(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, clock = start(), SkippingClock()
    monkeypatch.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
    some = [*rows("a", 1, topic="demo"), *({"value": b"x", "topic": f"nope{n}"} for n in range(20))]
    assert Writing(cluster, schema(some), failedRows="drop").write(some).dropped == 20
    assert all(pause <= DEFAULT_TIMINGS.producer_poll for pause in clock.pauses)  # those of the master are longer


def test_plans_share_the_list_of_partitions(start: Start) -> None:
    cluster = start()
    forget_servers()
    asked = cluster.tubemq.on("consumer_register_v2").count()
    for _ in range(5):
        plan_batch(cluster, rows("a", 1))
    assert asked.fired == 1
