# SPDX-License-Identifier: Apache-2.0
"""Two brokers restart, each at the other's address: what was planned or connected before meets the wrong broker there.

Each row is read once, from the broker that has it, and each message is stored once, where it was sent to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests import messages
from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.real.topics import TopicSpec
from tests.stored import stored_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Task, Writing, schema
from tests.without_spark.source import Stream, options, read
from tubemq_spark.datasource import TubeMQDataSource

TOPICS = {
    name: TopicSpec(partitions=1) for name in ("stream_true", "stream_false", "planned", "targets", "keys", "once")
}
PATIENCE: dict[str, Any] = {"tubemq_retry_maxElapsedMs": 60_000}

Place = tuple[int, bytes]
"""The broker and the body of a message."""


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(request.param, topics=TOPICS) as servers:
        yield servers


def swap(cluster: Cluster) -> None:
    for broker_id in (1, 2):
        cluster.stop_broker(broker_id)
    cluster.swap_addresses(1, 2)
    for broker_id in (1, 2):
        cluster.start_broker(broker_id)


def send(cluster: Cluster, topic: str, *counts: int) -> list[Place]:
    """Send so many messages to broker 1 and to broker 2, and return them."""
    targets = zip(messages.partitions(cluster, topic), counts, strict=True)
    sent = messages.send(cluster, [one for target, count in targets for one in messages.numbered([target], count)])
    return [(partition.broker_id, one.body) for partition, stored in sent.items() for one in stored]


def places(rows: list[dict[str, Any]]) -> list[Place]:
    return sorted((row["broker_id"], row["value"]) for row in rows)


def all_stored(cluster: Cluster, topic: str) -> list[Place]:
    return sorted((one.partition.broker_id, one.body) for one in stored_in(cluster, topic))


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_stream_reads_each_row_once(cluster: Cluster, fail_on_data_loss: str) -> None:
    topic = f"stream_{fail_on_data_loss}"
    stream = Stream(
        cluster, topic, failOnDataLoss=fail_on_data_loss, tubemq_group=topic, maxOffsetsPerTrigger=20, **PATIENCE
    )
    sent = send(cluster, topic, 30, 5)
    with stream.running() as run:
        for _ in range(2):
            assert run.next()
            swap(cluster)
        sent += send(cluster, topic, 5, 30)
        while len(stream.rows) < len(sent):
            assert run.next()
        assert places(stream.rows) == sorted(sent)
        swap(cluster)
        assert run.next() is None
    assert stream.run() == []


def test_a_batch_read_that_was_planned_before_reads_each_row_once(cluster: Cluster) -> None:
    sent = send(cluster, "planned", 40, 25)
    source = TubeMQDataSource(options(cluster, "planned", tubemq_group="planned", **PATIENCE))
    reader = source.reader(source.schema())
    tasks = list(reader.partitions())
    assert places(read(reader, tasks)) == sorted(sent)
    swap(cluster)
    assert places(read(reader, tasks)) == sorted(sent)


def test_a_write_stores_each_row_in_its_partition(cluster: Cluster, tmp_path: Any) -> None:
    rows = [
        {"value": b"%d for %d" % (number, to), "broker_id": to, "partition": 0} for to in (1, 2) for number in (1, 2)
    ]
    writing = Writing(cluster, schema(rows), "targets", receipts=str(tmp_path), **PATIENCE)
    written = [writing.write(rows[::2])]
    swap(cluster)
    written.append(writing.write(rows[1::2]))
    writing.commit(written)
    assert all_stored(cluster, "targets") == sorted((row["broker_id"], row["value"]) for row in rows)
    receipts = [row for file in tmp_path.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert {row["offset"] for row in receipts} == {0, 28}
    assert Counter(row["broker_id"] for row in receipts) == {1: 2, 2: 2}


def test_rows_of_a_key_stay_in_their_partition(cluster: Cluster) -> None:
    rows = [{"value": b"%d" % (number % 8), "key": b"%d" % (number % 8)} for number in range(64)]
    writing = Writing(cluster, schema(rows), "keys", **PATIENCE)
    written = [writing.write(rows[:32])]
    swap(cluster)
    writing.commit([*written, writing.write(rows[32:])])
    found = Counter(all_stored(cluster, "keys"))
    assert sorted(found.values()) == [8] * 8
    assert {broker_id for broker_id, _ in found} == {1, 2}


def test_effectively_once_finds_what_an_earlier_attempt_has_stored(cluster: Cluster, use_timings: UseTimings) -> None:
    use_timings(task_settling=0.1)  # the earlier attempts have ended
    rows: list[dict[str, Any]] = [
        {"value": b"row %d" % number, "broker_id": 1 + number % 2, "partition": 0} for number in range(30)
    ]
    given: dict[str, Any] = {"effectivelyOnce": True, "checkpointLocation": new_checkpoint(), **PATIENCE}
    writing = Writing(cluster, schema(rows), "once", streaming=True, **given)
    task = Task()
    writing.write(rows[:20], task)
    swap(cluster)
    writing.commit([writing.write(rows, task.again())])
    swap(cluster)
    assert all_stored(cluster, "once") == sorted((row["broker_id"], row["value"]) for row in rows)
    more = [{**row, "value": row["value"] + b" of the next batch"} for row in rows]
    writing = Writing(cluster, schema(rows), "once", streaming=True, **given)
    writing.commit([writing.write(more, task.next())], batch=1)
    assert all_stored(cluster, "once") == sorted((row["broker_id"], row["value"]) for row in [*rows, *more])
