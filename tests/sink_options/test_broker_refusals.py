# SPDX-License-Identifier: Apache-2.0
"""Brokers that are down, or have removed what an earlier attempt has stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import INT, Task, Writing, schema
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import DataLossError

ROWS = [{"value": b"%03d" % n} for n in range(600)]


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedCluster]:
    with embedded_cluster() as running:
        yield running


@pytest.fixture
def own_cluster(running: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield running
    running.tubemq.clear_faults()


def bodies(cluster: EmbeddedCluster, topic: str) -> list[bytes]:
    return sorted(message.body for message in cluster.tubemq.messages(topic))


@pytest.mark.sink_option("effectivelyOnceUncertain")
@pytest.mark.parametrize("uncertain", ["fail", "sendAgain"])
def test_the_next_attempt_reports_stored_rows_that_retention_removed(
    own_cluster: EmbeddedCluster, uncertain: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is unknown whether these rows were stored."""
    topic = own_cluster.new_topic("one")
    task = Task()
    once: dict[str, Any] = {"effectivelyOnceUncertain": uncertain, "checkpointLocation": new_checkpoint()}
    writing = Writing(
        own_cluster,
        schema(kinds=dict.fromkeys(["broker_id", "partition"], INT)),
        topic,
        streaming=True,
        effectivelyOnce=True,
        **once,
    )
    rows = [{**row, "broker_id": 2 if number < 5 else 1, "partition": 0} for number, row in enumerate(ROWS)]
    writing.write(rows[:100], task)
    own_cluster.tubemq.expire(topic, keep=10)
    reason = (
        rf"{topic}:0: the messages that an earlier attempt .* cannot be found, because retention has removed messages"
    )
    if uncertain == "fail":
        with pytest.raises(DataLossError, match=f"{reason}.*'effectivelyOnceUncertain' set to sendAgain") as caught:
            writing.write(rows, task.again())
        assert str(caught.value).count("sendAgain") == 1
        assert len(bodies(own_cluster, topic)) == 15
    else:
        assert writing.write(rows, task.again()).already_stored == 5  # of the broker that lost none
        assert set(bodies(own_cluster, topic)) == {row["value"] for row in ROWS}
        assert re.search(rf"{reason}.*; it may store some rows twice, as option", caplog.text)


@pytest.mark.sink_option("failedRows")
@pytest.mark.parametrize("failed_rows", ["fail", "drop"])
@pytest.mark.parametrize("once", [False, True], ids=["", "once"])
def test_rows_of_a_topic_whose_only_broker_is_down_wait_for_it(
    own_cluster: EmbeddedCluster, use_timings: UseTimings, failed_rows: str, once: bool
) -> None:
    """The worker is new and does not know the topic. Rows of an unknown topic are dropped all the same."""
    use_timings(topic_lists_fill_up=0.0)
    task = Task()
    topic, lone = (f"on_{broker}_{failed_rows}_{once}" for broker in (1, 2))
    for broker, name in enumerate((topic, lone), start=1):
        own_cluster.create(name, TopicSpec(partitions=1, brokers=(broker,)))
    given: dict[str, Any] = {}
    if once:
        given = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()}
        given["effectivelyOnceTopics"] = f"{topic},{lone}"
    rows = [{"topic": (topic, lone)[n % 2], "value": b"%03d" % n} for n in range(20)]
    bad = [{"topic": "nowhere", "value": b"bad"}] if failed_rows == "drop" else []
    writing = Writing(own_cluster, schema(rows), streaming=True, failedRows=failed_rows, **given)
    forget_servers()
    own_cluster.stop_broker(2)
    back = own_cluster.tubemq.on("producer_heartbeat", nth=9, times=1).run(lambda: own_cluster.start_broker(2))
    written = writing.write(rows + bad, task)
    assert back.fired == 1
    assert (written.dropped, sum(written.rows.values())) == (len(bad), len(rows))
    assert [*map(len, (bodies(own_cluster, topic), bodies(own_cluster, lone)))] == [10, 10]
