# SPDX-License-Identifier: Apache-2.0
"""Guarantees of the sink in `docs/delivery.md` that no other test proves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, settings
from tests.waiting import wait_until
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, Writing, schema
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.short_claims import read_ends
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.protocol.key_partitioner import KeyMap
from tubemq_spark.protocol.metadata import Partition

KEYS = [b"key %d" % number for number in range(60)]
OWNERS = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
LEFT = KeyMap([Partition(1, "demo", number) for number in (0, 1, 2)])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_timings: UseTimings) -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions each."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    use_timings(task_settling=0.0, broker_away_after=0.2)
    with embedded_cluster(topics={"demo": TopicSpec(partitions=3)}) as running:
        yield running


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The brokers that are away. A batch skips no others, because they may only be slow."""
    brokers: set[int] = set()

    def read(
        session: ProducerSession,
        base: str,
        partitions: Iterable[Partition],
        *retry_for: float | None,
        within: float | None = None,
    ) -> dict[Partition, int]:
        wanted = list(partitions)
        there = [one for one in wanted if one.broker_id not in brokers]
        gone = [one for one in wanted if one.broker_id in brokers]
        found = read_ends(session, base, there, *retry_for)
        return found | read_ends(session, base, gone, *retry_for, within=within)

    monkeypatch.setattr("tubemq_spark.sink.batch_plan.read_ends", read)
    return brokers


def homes(cluster: EmbeddedCluster) -> list[tuple[bytes, Partition]]:
    messages = cluster.tubemq.messages("demo")
    return [(message.body, Partition(message.broker_id, "demo", message.partition)) for message in messages]


def test_keys_in_flight_to_a_broker_that_goes_away_go_to_others(
    cluster: EmbeddedCluster, use_timings: UseTimings
) -> None:
    """They do not wait for late copies in a partition that the master does not list any more."""
    use_timings(closed_connection_settling=3600.0, heartbeat_period=0.1)

    cluster.tubemq.on("send_message", broker=2, times=1).run(lambda: cluster.stop_broker(2))
    with Producer(settings(cluster, retry_for=360_000.0, clock=SkippingClock())) as producer:
        for key in KEYS:
            producer.send("demo", key, key=key)
        producer.flush()
    assert set(homes(cluster)) >= {(key, LEFT.partition(key)) for key in KEYS}


def is_listed(cluster: EmbeddedCluster) -> bool:
    with Producer(settings(cluster)) as producer:
        producer.limit("demo")
        listed = Partition(2, "demo", 0) in producer._session.cluster.partitions("demo")
    forget_servers()
    return listed


def test_a_batch_skips_a_broker_that_is_away(cluster: EmbeddedCluster, away: set[int]) -> None:
    """Keys of its partitions go to others. When it is back, another attempt of the task finds its rows."""
    once: dict[str, Any] = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint()}
    task = Task()
    for batch in range(2):
        rows: list[dict[str, Any]] = [{"value": b"%d %b" % (batch, key), "key": key} for key in KEYS]
        rows += [{"value": b"%d anywhere %d" % (batch, number), "key": None} for number in range(60)]
        if batch:
            cluster.stop_broker(2)
            away.add(2)
        writing = Writing(cluster, schema(rows), "demo", streaming=True, **once)
        assert sum(writing.write(rows, task).rows.values()) == 120
        if batch:
            cluster.start_broker(2)
            away.clear()
            wait_until(lambda: is_listed(cluster))
            assert writing.write(rows, task.again()).already_stored == 120
        writing.commit([writing.write(rows, task.again().again())], batch)
        task = task.next()
    assert set(bodies_in(cluster).values()) == {1}
    found = dict(homes(cluster))
    assert len(found) == 240
    for key in KEYS:
        assert found[b"0 " + key] == OWNERS.partition(key)
        assert found[b"1 " + key] == LEFT.partition(key)
    for batch, brokers in ((0, {1, 2}), (1, {1})):
        bodies = [b"%d anywhere %d" % (batch, number) for number in range(60)]
        assert {found[body].broker_id for body in bodies} == brokers
