# SPDX-License-Identifier: Apache-2.0
"""Streams through Spark: what they read, where they begin, and where they leave their group."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.clusters.servers import BOTH
from tests.messages import numbered, partitions, send
from tests.reading import end_of, register, unregister
from tests.spark.queries import (
    Batches,
    Queries,
    Source,
    by_partition,
    committed_end,
    ends_of,
    expected,
    forget_commit,
    logged_query,
    numbers,
    run_to_the_end,
    to_json,
    wait_for_rows,
)
from tests.spark.rivals import ServerBalanced

on_both_servers = pytest.mark.parametrize("cluster", BOTH, indirect=True)


def start(
    source: Source, queries: Queries, topic: str, sink: Batches, checkpoint: Path, **options: object
) -> StreamingQuery:
    return queries.start(source.stream(topic, **options), sink, checkpoint)


def read_available(
    source: Source, queries: Queries, topic: str, checkpoint: Path, sink: Batches | None = None, **options: object
) -> Batches:
    """Return what a run with trigger AvailableNow reads."""
    batches = Batches() if sink is None else sink
    run_to_the_end(queries.start(source.stream(topic, **options), batches, checkpoint, availableNow=True))
    return batches


@on_both_servers
def test_all_kinds_of_topics_in_one_query(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Two brokers, partitions with their own store or a shared one, several stores; triggers that end."""
    topics = [source.cluster.new_topic(layout) for layout in ("one", "three", "stores")]
    everywhere = [partition for topic in topics for partition in partitions(source.cluster, topic)]
    frame = source.stream(*topics, startingOffsets="earliest")
    batches = Batches()

    first = send(source.cluster, numbered(everywhere, 2000))
    run_to_the_end(queries.start(frame, batches, tmp_path, availableNow=True))
    assert by_partition(batches.rows) == expected(source.cluster, first)

    second = send(source.cluster, numbered(everywhere, 500))
    run_to_the_end(queries.start(frame, batches, tmp_path, once=True))
    assert by_partition(batches.rows) == expected(source.cluster, first, second)


# Where a query begins


def test_stream_on_an_empty_topic_begins_with_the_first_messages(
    source: Source, queries: Queries, tmp_path: Path
) -> None:
    """Also if the empty first micro-batch is repeated after a crash."""
    topic, batches = source.cluster.new_topic("one"), Batches()
    read_available(source, queries, topic, tmp_path, batches, startingOffsets="latest")
    assert numbers(tmp_path / "commits") == [0]
    forget_commit(tmp_path, 0)

    sent = send(source.cluster, numbered(partitions(source.cluster, topic), 40))
    query = start(source, queries, topic, batches, tmp_path, startingOffsets="latest")
    wait_for_rows(query, batches, 40)
    assert by_partition(batches.rows) == expected(source.cluster, sent)
    assert batches.rows_of(0) == [[], []]


def test_new_group_begins_at_starting_offsets_and_stays_there(source: Source, queries: Queries, tmp_path: Path) -> None:
    """With `latest`, the group's position is the log end at the start of the query, also for later members."""
    topic = source.cluster.new_topic("one")
    targets = partitions(source.cluster, topic)
    before = send(source.cluster, numbered(targets, 30))
    batches = read_available(source, queries, topic, tmp_path / "latest", startingOffsets="latest")
    after = send(source.cluster, numbered(targets, 50))
    assert batches.rows == []
    assert source.left_at(targets) == ends_of(before)

    batches = read_available(source, queries, topic, tmp_path / "group", startingOffsets="group")
    assert by_partition(batches.rows) == expected(source.cluster, after)
    assert source.left_at(targets) == ends_of(after)


def test_query_begins_at_the_group_or_the_earliest(source: Source, queries: Queries, tmp_path: Path) -> None:
    topic = source.cluster.new_topic("three")
    targets = partitions(source.cluster, topic)
    sent = send(source.cluster, numbered(targets, 600))
    stands = {targets[0]: sent[targets[0]][40].position, targets[4]: end_of(sent[targets[4]])}
    for partition, position in stands.items():
        assert register(source.cluster, source.group, partition, "before", position).errCode == 200
        unregister(source.cluster, source.group, partition, "before")

    batches = read_available(source, queries, topic, tmp_path, startingOffsets="group")
    assert by_partition(batches.rows) == expected(source.cluster, sent, start=dict.fromkeys(targets, 0) | stands)


def test_query_begins_at_given_positions(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Positions are numbers, the earliest or the latest; the group's position does not matter."""
    topic = source.cluster.new_topic("three")
    targets = partitions(source.cluster, topic)
    sent = send(source.cluster, numbered(targets, 600))
    end = ends_of(sent)[targets[2]]
    begin = dict.fromkeys(targets, 0) | {targets[0]: sent[targets[0]][40].position, targets[2]: end}
    given = begin | {targets[1]: -2, targets[2]: -1}

    batches = read_available(source, queries, topic, tmp_path, startingOffsets=to_json(given))
    assert by_partition(batches.rows) == expected(source.cluster, sent, start=begin)


def test_topic_added_to_a_query_is_read_from_its_earliest_position(
    source: Source, queries: Queries, tmp_path: Path
) -> None:
    old, new = source.cluster.new_topic("one"), source.cluster.new_topic("one")
    first = send(source.cluster, numbered(partitions(source.cluster, old), 20))
    batches = read_available(source, queries, old, tmp_path, startingOffsets="earliest")
    second = send(source.cluster, numbered(partitions(source.cluster, old) + partitions(source.cluster, new), 40))
    run_to_the_end(queries.start(source.stream(old, new), batches, tmp_path, availableNow=True))
    assert by_partition(batches.rows) == expected(source.cluster, first, second)


# Repeating


@pytest.mark.parametrize("batch_id", [0, 1])
def test_logged_batch_without_commit_is_repeated_exactly(
    source: Source, queries: Queries, tmp_path: Path, batch_id: int
) -> None:
    """More messages have arrived, and a new query would begin at the latest."""
    topic, batches = source.cluster.new_topic("three"), Batches()
    targets = partitions(source.cluster, topic)
    sent = []
    for _ in range(batch_id + 1):
        sent.append(send(source.cluster, numbered(targets, 1000)))
        read_available(source, queries, topic, tmp_path, batches, startingOffsets="earliest")
    (once,) = batches.rows_of(batch_id)

    sent.append(send(source.cluster, numbered(targets, 500)))
    forget_commit(tmp_path, batch_id)
    query = start(source, queries, topic, batches, tmp_path, startingOffsets="latest")
    wait_for_rows(query, batches, len(batches.rows) + len(once) + 500)
    query.stop()

    assert batches.rows_of(batch_id) == [once, once]
    others = [row for number, rows in batches.brought if number != batch_id for row in rows]
    before, meanwhile = sent[:batch_id], sent[-1]
    assert by_partition(others) == expected(source.cluster, *before, meanwhile)


@on_both_servers
def test_failed_batch_moves_nothing_and_is_repeated(source: Source, queries: Queries, tmp_path: Path) -> None:
    topic, batches = source.cluster.new_topic("one"), Batches()
    targets = partitions(source.cluster, topic)
    batches.fail_in = 1
    first = send(source.cluster, numbered(targets, 100))
    query = start(source, queries, topic, batches, tmp_path, startingOffsets="earliest")
    wait_for_rows(query, batches, 100)
    more = send(source.cluster, numbered(targets, 100))
    with pytest.raises(StreamingQueryException, match="the sink fails as it was told"):
        run_to_the_end(query)

    assert numbers(tmp_path / "offsets") == [0, 1]
    assert source.left_at(targets) == ends_of(first) == committed_end(tmp_path)

    batches.fail_in = None
    read_available(source, queries, topic, tmp_path, batches)
    assert batches.rows_of(1)[0] == batches.rows_of(1)[1] != []
    last_tries = dict(batches.brought).values()  # the failed batch may have begun before all messages were sent
    assert by_partition(row for rows in last_tries for row in rows) == expected(source.cluster, first, more)
    assert source.left_at(targets) == committed_end(tmp_path)


# The group


def test_group_is_at_the_end_of_the_last_committed_batch(source: Source, queries: Queries, tmp_path: Path) -> None:
    """While the query runs, and after it was stopped."""
    topic, batches = source.cluster.new_topic("stores"), Batches()
    targets = partitions(source.cluster, topic)
    query = start(source, queries, topic, batches, tmp_path, startingOffsets="earliest")
    for turn in range(1, 4):
        # Some partitions of each broker get no messages. Their positions must advance, too, because the stores advance.
        send(source.cluster, numbered(targets[turn : turn + 3], 90))
        wait_for_rows(query, batches, 90 * turn)
        last = committed_end(tmp_path)
        source.wait_for_positions(last)
    query.stop()
    assert committed_end(tmp_path) == last
    assert source.left_at(targets) == last


def test_stop_commits_the_last_batch(source: Source, queries: Queries, tmp_path: Path) -> None:
    """Spark writes the last micro-batch of a run to its commit log without calling `commit`."""
    topic = source.cluster.new_topic("one")
    targets = partitions(source.cluster, topic)
    sent = send(source.cluster, numbered(targets, 100))
    read_available(source, queries, topic, tmp_path, startingOffsets="earliest")
    assert source.left_at(targets) == committed_end(tmp_path) == ends_of(sent)


@on_both_servers
def test_running_query_keeps_other_consumers_out(source: Source, queries: Queries, tmp_path: Path) -> None:
    """The master lists the group and refuses server-balanced consumers; the brokers refuse other claims."""
    topic, batches = source.cluster.new_topic("one"), Batches()
    target = partitions(source.cluster, topic)[0]
    rival = ServerBalanced(source.cluster, source.group, [topic])
    query = start(source, queries, topic, batches, tmp_path, startingOffsets="earliest")
    send(source.cluster, numbered([target], 10))
    wait_for_rows(query, batches, 10)
    source.wait_for_positions(committed_end(tmp_path))  # the driver moves it there when it takes back the tasks' claims

    group = source.cluster.members(source.group)
    assert (group.topics, group.balance, len(group.clients)) == ([topic], "client-rebalance", 1)
    assert rival.register()[0] == 424
    refused = register(source.cluster, source.group, target, "rival", 0)
    assert refused.errCode == 410
    assert logged_query(tmp_path) in refused.errMsg

    query.stop()
    assert source.left_at([target])[target] == committed_end(tmp_path)[target]
    assert rival.register()[0] == 200
    rival.close()
