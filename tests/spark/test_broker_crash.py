# SPDX-License-Identifier: Apache-2.0
"""Server crashes under a query: it goes on, or fails with the exact loss, and reads no message twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tests.messages import Sent, numbered, partitions, send
from tests.real.topics import FLUSH_NEVER, TopicSpec
from tests.spark.queries import (
    Batches,
    Queries,
    Source,
    by_partition,
    ends_of,
    expected,
    forget_commit,
    numbers,
    run_to_the_end,
    wait_for_rows,
)
from tubemq_spark.protocol.metadata import Partition

Stored = dict[Partition, list[Sent]]

TOPICS = {
    "running": TopicSpec(partitions=3, settings=FLUSH_NEVER),
    "midway": TopicSpec(partitions=1, brokers=(1,), settings=FLUSH_NEVER),
    "tail_read": TopicSpec(partitions=1, brokers=(1,), settings=FLUSH_NEVER),
    "tail_not_read": TopicSpec(partitions=2, brokers=(1,), settings=FLUSH_NEVER),
    "masterless": TopicSpec(partitions=1, settings=FLUSH_NEVER),
}
SIZES = {"midway": 4096}
COUNTS = {"midway": 12_000}  # more than the pipes between Spark's processes hold


@pytest.fixture(scope="module", params=[EMBEDDED, REAL_THOROUGHLY])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(request.param, topics=TOPICS) as own:
        yield own


@pytest.fixture(scope="module")
def flushed(cluster: Cluster) -> dict[str, Stored]:
    """Messages of each topic that are in the files of broker 1, because it was stopped regularly."""
    stored = {
        topic: send(cluster, numbered(partitions(cluster, topic), COUNTS.get(topic, 3_000), SIZES.get(topic, 40)))
        for topic in TOPICS
    }
    cluster.stop_broker(1)
    cluster.start_broker(1)
    return stored


@pytest.fixture
def source(spark: SparkSession, cluster: Cluster, group: str, flushed: dict[str, Stored]) -> Source:
    return Source(spark, cluster, group)


def start(source: Source, queries: Queries, topic: str, sink: Batches, checkpoint: Path) -> StreamingQuery:
    return queries.start(source.stream(topic, startingOffsets="earliest"), sink, checkpoint)


def test_unread_messages_lost_in_a_crash_do_no_harm(
    source: Source, queries: Queries, tmp_path: Path, flushed: dict[str, Stored]
) -> None:
    cluster, batches = source.cluster, Batches()
    query = start(source, queries, "tail_not_read", batches, tmp_path)
    wait_for_rows(query, batches, 3_000)
    query.stop()

    targets = partitions(cluster, "tail_not_read")
    lost = send(cluster, numbered(targets, 100))
    cluster.kill_broker(1)
    cluster.start_broker(1)
    new = send(cluster, numbered(targets, 300))
    assert new[targets[0]][0].position == lost[targets[0]][0].position, "nothing was lost"

    query = start(source, queries, "tail_not_read", batches, tmp_path)
    wait_for_rows(query, batches, 3_300)
    assert by_partition(batches.rows) == expected(cluster, flushed["tail_not_read"], new)


def test_lost_tail_fails_the_query_and_names_the_range(
    source: Source, queries: Queries, tmp_path: Path, flushed: dict[str, Stored]
) -> None:
    """Other messages will get those positions, so going on would skip some. Every restart fails again."""
    cluster, batches = source.cluster, Batches()
    (partition,) = partitions(cluster, "tail_read")
    query = start(source, queries, "tail_read", batches, tmp_path)
    wait_for_rows(query, batches, 3_000)
    lost = send(cluster, numbered([partition], 100))
    wait_for_rows(query, batches, 3_100)
    kept, read = ends_of(flushed["tail_read"])[partition], ends_of(lost)[partition]

    cluster.kill_broker(1)
    cluster.start_broker(1)
    told = data_loss(query)
    assert told.startswith(f"{partition}: the store ends at {kept}, but the query has read up to {read}: ")
    assert f"[{kept}, {read})" in told
    assert data_loss(start(source, queries, "tail_read", batches, tmp_path)) == told
    assert by_partition(batches.rows) == expected(cluster, flushed["tail_read"], lost)

    # A batch that must be repeated fails in the same way.
    forget_commit(tmp_path, numbers(tmp_path / "commits")[-1])
    told = data_loss(start(source, queries, "tail_read", batches, tmp_path))
    assert str(partition) in told
    assert str(kept) in told
    assert str(read) in told
    assert by_partition(batches.rows) == expected(cluster, flushed["tail_read"], lost)


def data_loss(query: StreamingQuery) -> str:
    """Return the text of the DataLossError that ends `query`."""
    with pytest.raises(StreamingQueryException) as caught:
        run_to_the_end(query)
    (told,) = set(re.findall(r"tubemq_spark\.errors\.DataLossError: (.*)", str(caught.value)))
    assert isinstance(told, str)
    return told
