# SPDX-License-Identifier: Apache-2.0
"""Streams through Spark: what they read, where they begin, and where they leave their group."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery

from tests.clusters import LAYOUTS
from tests.clusters.servers import EMBEDDED_THOROUGHLY, REAL
from tests.matrix.queries import numbers, run_to_the_end, wait_for
from tests.messages import numbered, partitions, send
from tests.spark.queries import Batches, Queries, Source, by_partition, committed_end, ends_of, expected, wait_for_rows
from tubemq_spark.cli.main import main


def start(
    source: Source, queries: Queries, topic: str, sink: Batches, checkpoint: Path, **options: object
) -> StreamingQuery:
    return queries.start(source.stream(topic, **options), sink, checkpoint)


def read_available(source: Source, queries: Queries, topic: str, checkpoint: Path, **options: object) -> Batches:
    """Return what a run with trigger AvailableNow reads."""
    batches = Batches()
    run_to_the_end(queries.start(source.stream(topic, **options), batches, checkpoint, availableNow=True))
    return batches


@pytest.mark.parametrize("cluster", [EMBEDDED_THOROUGHLY, *REAL], indirect=True)
def test_all_kinds_of_topics_in_one_query(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Two brokers, partitions with their own store or a shared one, several stores; triggers that end."""
    topics = [source.cluster.new_topic(layout) for layout in LAYOUTS]
    everywhere = [partition for topic in topics for partition in partitions(source.cluster, topic)]
    frame = source.stream(*topics, startingOffsets="earliest")
    batches = Batches()

    first = send(source.cluster, numbered(everywhere, 2000))
    run_to_the_end(queries.start(frame, batches, tmp_path, availableNow=True))
    assert by_partition(batches.rows) == expected(source.cluster, first)

    second = send(source.cluster, numbered(everywhere, 500))
    run_to_the_end(queries.start(frame, batches, tmp_path, once=True))
    assert by_partition(batches.rows) == expected(source.cluster, first, second)


def test_a_stream_is_joined_with_itself(source: Source, queries: Queries, tmp_path: Path) -> None:
    topic, batches = source.cluster.new_topic("three"), Batches()
    send(source.cluster, numbered(partitions(source.cluster, topic), 50))
    frame = source.stream(topic, startingOffsets="earliest")
    joined = frame.selectExpr("value AS one").join(frame.selectExpr("value AS other"), expr("one = other"))
    run_to_the_end(queries.start(joined, batches, tmp_path, availableNow=True))
    assert len(batches.rows) == len({row.one for row in batches.rows}) == 50


# The group


def test_two_queries_of_an_application_need_two_groups(source: Source, queries: Queries, tmp_path: Path) -> None:
    """The second one fails long before the claim timeout, and names both; the first one goes on."""
    topic, batches = source.cluster.new_topic("one"), Batches()
    first = start(source, queries, topic, batches, tmp_path / "first", startingOffsets="earliest")
    send(source.cluster, numbered(partitions(source.cluster, topic), 10))
    wait_for_rows(first, batches, 10)
    second = start(source, queries, topic, Batches(), tmp_path / "second", tubemq_claim_timeoutMs=600_000)
    said = rf"streaming query \w+ .* of this Spark application reads group {source.group} already.*streaming query \w+"
    with pytest.raises(StreamingQueryException, match=said):
        second.awaitTermination(120)
    send(source.cluster, numbered(partitions(source.cluster, topic), 10))
    wait_for_rows(first, batches, 20)


def test_stop_commits_the_last_batch(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Spark writes the last micro-batch of a run to its commit log without calling `commit`."""
    topic = source.cluster.new_topic("one")
    targets = partitions(source.cluster, topic)
    sent = send(source.cluster, numbered(targets, 100))
    read_available(source, queries, topic, tmp_path, startingOffsets="earliest")
    assert source.left_at(targets) == committed_end(tmp_path) == ends_of(sent)


@pytest.mark.usefixtures("restored_signals")
def test_a_command_moves_the_group_of_a_query_that_was_stopped_between_triggers(
    source: Source, queries: Queries, tmp_path: Path
) -> None:
    """Spark reports a commit only when it plans the next batch, which here is an hour away."""
    topic, batches = source.cluster.new_topic("one"), Batches()
    targets = partitions(source.cluster, topic)
    sent = send(source.cluster, numbered(targets, 100))
    frame = source.stream(topic, startingOffsets="earliest")
    query = queries.start(frame, batches, tmp_path, processingTime="1 hour")
    wait_for_rows(query, batches, 100)
    wait_for(lambda: numbers(tmp_path / "commits"), "the commit", query)
    query.stop()
    source.left_at(targets)  # nobody is in the group any more
    master = ("--master", source.cluster.master)
    assert main(["offsets", "set", source.group, "--checkpoint", str(tmp_path), "--yes", *master]) == 0
    assert source.left_at(targets) == committed_end(tmp_path) == ends_of(sent)
