"""Checkpoints that releases wrote go on, to the row, in all later ones."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.golden.stories import FILE, FOLDER, Story, send
from tests.spark.queries import Batches, Queries, committed_end, logged_end, numbers, run_to_the_end
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.stored_message import StoredMessage

KEPT = sorted(file.parent for file in FOLDER.glob(f"*/*/{FILE}"))
ENTRY = 28  # bytes of a message in the index

Stored = tuple[str, StoredMessage]


@pytest.mark.parametrize("kept", KEPT, ids=[f"{folder.parent.name}-{folder.name}" for folder in KEPT])
def test_goes_on(kept: Path, spark: SparkSession, queries: Queries, tmp_path: Path) -> None:
    """The micro-batch that was logged but not committed comes once more, the same; then what came since, and no more.

    The server has forgotten the group.
    """
    story = Story.read(kept)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(kept, checkpoint, ignore=shutil.ignore_patterns(FILE))
    logged, committed = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
    with EmbeddedTubeMQ(brokers=story.brokers) as tubemq:
        story.create_topics(tubemq)
        before = send(tubemq, story.before, "before")
        runs = [send(tubemq, targets, f"run {number}") for number, targets in enumerate(story.runs)]
        past = [message for part in (before, *runs) for message in part]
        assert logged_end(checkpoint, logged[-1]) == ends(story, past), "the server is not as it was"
        later = send(tubemq, story.targets()[::2] * 3, "later")

        frame = spark.readStream.format("tubemq").options(**story.options).option("tubemq.master", tubemq.master)
        batches = Batches()
        run_to_the_end(queries.start(frame.load(), batches, checkpoint, availableNow=True))

        due = {number: from_start(story, before, runs[number], number) for number in logged if number not in committed}
        assert [number for number, _ in batches.brought] == [*due, logged[-1] + 1]
        for number, messages in due.items():
            (rows,) = batches.rows_of(number)
            assert cells(rows) == expected(story, messages)
        (rows,) = batches.rows_of(logged[-1] + 1)
        assert cells(rows) == expected(story, later)

        end = ends(story, past + later)
        assert committed_end(checkpoint) == end
        assert {p: tubemq.group_offset("golden", p.topic, p.broker_id, p.partition_id) for p in end} == end


@pytest.mark.parametrize("kept", KEPT, ids=[f"{folder.parent.name}-{folder.name}" for folder in KEPT])
def test_tells_nothing_of_the_machine(kept: Path) -> None:
    for file in kept.rglob("*"):
        assert file.is_dir() or "/" not in file.read_text(encoding="utf-8"), file


def test_they_are_there() -> None:
    assert len(KEPT) >= 8


def partition_of(topic: str, message: StoredMessage) -> Partition:
    return Partition(message.broker_id, topic, message.partition)


def from_start(story: Story, before: list[Stored], run: list[Stored], number: int) -> list[Stored]:
    """What a run brought; the first, from where the query began."""
    if number or not story.options["startingOffsets"].startswith("{"):
        return run
    # The one story of this kind: 1:0 began at entry 5, 1:1 at the earliest, 1:2 where the store ended.
    begin = {0: 5 * ENTRY, 1: 0, 2: len(before + run) * ENTRY}
    return [(topic, message) for topic, message in before + run if message.offset >= begin[message.partition]]


def ends(story: Story, stored: Iterable[Stored]) -> dict[Partition, int]:
    """The end of each partition's store."""

    def store(partition: Partition) -> tuple[int, str, int]:
        return partition.broker_id, partition.topic, partition.partition_id // STORE_PARTITION_BASE

    counts = Counter(store(partition_of(topic, message)) for topic, message in stored)
    return {partition: counts[store(partition)] * ENTRY for partition in map(parse, story.targets())}


def parse(target: str) -> Partition:
    topic, _, place = target.partition(" ")
    broker_id, _, partition_id = place.partition(":")
    return Partition(int(broker_id), topic, int(partition_id))


def expected(story: Story, stored: Iterable[Stored]) -> Counter[tuple[object, ...]]:
    """The rows: the offset is told where a partition has its store for itself."""
    return Counter(
        (
            partition_of(topic, message),
            message.offset if story.topics[topic][0] == 1 else None,
            message.message_id,
            message.body,
        )
        for topic, message in stored
    )


def cells(rows: Iterable[Row]) -> Counter[tuple[object, ...]]:
    return Counter(
        (Partition(row.broker_id, row.topic, row.partition), row["offset"], row.message_id, bytes(row.value))
        for row in rows
    )
