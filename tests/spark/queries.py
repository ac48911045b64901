# SPDX-License-Identifier: Apache-2.0
"""Queries in tests: how they are started, watched and stopped, and what their checkpoints hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.clusters import Cluster
from tests.matrix.queries import TOO_LATE, Frames, logged_offsets, numbers, wait_for
from tests.messages import Sent
from tests.reading import end_of, group_position
from tubemq_spark.protocol.metadata import Partition

Positions = dict[Partition, int]
Sink = Callable[[DataFrame, int], None]


class Message(NamedTuple):
    """What identifies a message; `offset` is null if the partition shares its store."""

    offset: int | None
    message_id: int
    value: bytes


class Source(Frames):
    """The `tubemq` source on one cluster, for one group."""

    def __init__(self, spark: SparkSession, cluster: Cluster, group: str) -> None:
        client = {"tubemq.master": cluster.master, "tubemq.rpc.framing": cluster.framing}
        super().__init__(spark, {**client, "tubemq.group": group})
        self.cluster = cluster
        self.group = group

    def left_at(self, partitions: Iterable[Partition]) -> Positions:
        """Return the group's positions after all its members have left."""
        wait_for(lambda: not self.cluster.members(self.group).clients, f"the end of group {self.group}")
        return {partition: group_position(self.cluster, self.group, partition).group for partition in partitions}


class Batches:
    """A sink that keeps the rows of each micro-batch in their order, also those of a repeated one."""

    def __init__(self) -> None:
        self.brought: list[tuple[int, list[Row]]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.brought.append((batch_id, frame.collect()))

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in self.brought for row in rows]


class Queries:
    """Starts queries, and stops all of them."""

    def __init__(self) -> None:
        self._started: list[StreamingQuery] = []

    def start(self, frame: DataFrame, sink: Sink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        return self.begin((writer.trigger(**trigger) if trigger else writer).start)

    def begin(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Return a query whose source runs, or has failed by itself."""
        for _ in range(5):
            query = self.add(start())
            wait_for(lambda: not (query.isActive and _is_starting(query)), "the start of the query")  # noqa: B023
            if not came_too_late(query):
                break
        return query

    def add(self, query: StreamingQuery) -> StreamingQuery:
        self._started.append(query)
        return query

    def stop(self) -> None:
        for query in self._started:
            query.stop()


def came_too_late(query: StreamingQuery) -> bool:
    """Return True if Spark gave up the source's process, as on a busy machine."""
    return TOO_LATE in str(query.exception())


def _is_starting(query: StreamingQuery) -> bool:
    return bool(query.status["message"].startswith("Initializing"))


def wait_for_rows(query: StreamingQuery, batches: Batches, count: int) -> None:
    """Wait until there are `count` rows, and the micro-batch of the last row is committed."""
    wait_for(lambda: len(batches.rows) >= count, f"{count} rows", query)
    last = batches.brought[-1][0]
    wait_for(lambda: _is_over(query, last), f"the end of batch {last}", query)


def _is_over(query: StreamingQuery, batch_id: int) -> bool:
    """An idle query reports the number of its next micro-batch, but no time for its sink."""
    progress = query.lastProgress
    if progress is None:
        return False
    return progress["batchId"] > batch_id or (progress["batchId"] == batch_id and "addBatch" in progress["durationMs"])


# Messages


def by_partition(rows: Iterable[Row]) -> dict[Partition, list[Message]]:
    found: dict[Partition, list[Message]] = defaultdict(list)
    for row in rows:
        message = Message(row["offset"], row["message_id"], bytes(row["value"]))
        found[Partition(row["broker_id"], row["topic"], row["partition"])].append(message)
    return dict(found)


def expected(cluster: Cluster, *parts: Mapping[Partition, Sequence[Sent]]) -> dict[Partition, list[Message]]:
    """Return what `by_partition` must return for all messages that were sent."""
    found: dict[Partition, list[Message]] = defaultdict(list)
    for part in parts:
        for partition, sent in part.items():
            sole = cluster.topics[partition.topic].partitions == 1
            found[partition] += [
                Message(message.position if sole else None, message.message_id, message.body) for message in sent
            ]
    return dict(found)


def ends_of(*parts: Mapping[Partition, Sequence[Sent]]) -> Positions:
    """Return the position after the last message of each partition's store."""
    stores: dict[tuple[int, str, int], int] = defaultdict(int)
    for part in parts:
        for partition, sent in part.items():
            store = partition.broker_id, partition.topic, partition.store_id
            stores[store] = max(stores[store], end_of(sent))
    return {p: stores[p.broker_id, p.topic, p.store_id] for part in parts for p in part}


# Checkpoints


def logged_end(checkpoint: Path, batch_id: int) -> Positions:
    """Return where a micro-batch ends, by the offset log."""
    return {
        Partition(int(key.split(":")[0]), topic, int(key.split(":")[1])): position
        for topic, keys in logged_offsets(checkpoint, batch_id).items()
        for key, position in keys.items()
    }


def committed_end(checkpoint: Path) -> Positions:
    """Return where the last committed micro-batch ends."""
    return logged_end(checkpoint, numbers(checkpoint / "commits")[-1])
