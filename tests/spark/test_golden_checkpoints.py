# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of old releases: queries go on with exactly the right rows in all later releases."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, count
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.golden.stories import FILE, FOLDER, Story, send
from tests.matrix.queries import numbers, run_to_the_end
from tests.spark.queries import Batches, Positions, Queries, committed_end, logged_end
from tests.without_spark.source import Checkpoint, Run
from tubemq_spark.protocol.constants import STORE_PARTITION_BASE
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.broker.service import MessageIds
from tubemq_spark.testing.stored_message import StoredMessage

KEPT = sorted(file.parent for file in FOLDER.glob(f"*/{FILE}"))
ENTRY = 28  # bytes of a message in the index
ID_STEP = 1 << 22  # an id contains nanoseconds, above 22 bits

Stored = tuple[str, StoredMessage]


Brought = list[tuple[int, list[Row]]]
"""The rows of each micro-batch of a run, with its number."""


@pytest.fixture(params=KEPT, ids=[folder.name for folder in KEPT])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kept checkpoint. Servers give the messages the ids that they had when it was written."""
    folder: Path = request.param
    known = Story.read(folder).message_ids
    ids = chain(known, count(known[-1] + ID_STEP, ID_STEP))
    monkeypatch.setattr(MessageIds, "next", lambda self: next(ids))
    return folder


def test_golden_checkpoint_goes_on(kept: Path) -> None:
    """The micro-batch that was logged but not committed is repeated with the same rows; the next has all later rows.

    The server does not know the group any more.
    """

    def run(options: dict[str, str], end: Positions) -> Brought:
        checkpoint = Checkpoint()
        checkpoint.offsets = [(kept / "offsets" / str(n)).read_text().splitlines()[-1] for n in logged_in(kept)]
        checkpoint.committed = len(numbers(kept / "commits"))
        run = Run(checkpoint, {name.lower(): text for name, text in options.items()}, "availableNow")
        brought = []
        while run.find_next():
            [tasks] = run.plan()
            rows = [Row(**row) for batch in run.read(tasks) for row in batch.to_pylist()]
            brought.append((checkpoint.committed, rows))
            checkpoint.committed += 1
        run.stop()
        assert checkpoint.positions(-1 + checkpoint.committed) == end
        return brought

    check(kept, run)


def test_golden_checkpoint_goes_on_in_spark(kept: Path, spark: SparkSession, queries: Queries, tmp_path: Path) -> None:
    def run(options: dict[str, str], end: Positions) -> Brought:
        checkpoint = tmp_path / "checkpoint"
        shutil.copytree(kept, checkpoint, ignore=shutil.ignore_patterns(FILE))
        frame = spark.readStream.format("tubemq").options(**options)
        batches = Batches()
        run_to_the_end(queries.start(frame.load(), batches, checkpoint, availableNow=True))
        assert committed_end(checkpoint) == end
        return batches.brought

    check(kept, run)


def check(kept: Path, run: Callable[[dict[str, str], Positions], Brought]) -> None:
    """Run the query on a server that has the messages of the checkpoint's story, and some more."""
    story = Story.read(kept)
    logged, committed = logged_in(kept), numbers(kept / "commits")
    with EmbeddedTubeMQ(brokers=story.brokers) as tubemq:
        story.create_topics(tubemq)
        runs = [send(tubemq, targets, f"run {number}") for number, targets in enumerate(story.runs)]
        past = [message for run in runs for message in run]
        assert logged_end(kept, logged[-1]) == ends(story, past), "the server is not as it was"
        later = send(tubemq, story.targets()[::2] * 3, "later")
        end = ends(story, past + later)

        brought = run({**story.options, "tubemq.master": tubemq.master}, end)

        due = {number: runs[number] for number in logged if number not in committed}
        due[logged[-1] + 1] = later
        assert [number for number, _ in brought] == list(due)
        for number, rows in brought:
            assert cells(rows) == expected(story, due[number])
        assert {p: tubemq.group_offset("golden", p.topic, p.broker_id, p.partition_id) for p in end} == end


def logged_in(checkpoint: Path) -> list[int]:
    found = numbers(checkpoint / "offsets")
    assert found == list(range(len(found)))
    return found


def test_golden_checkpoints_have_no_paths(kept: Path) -> None:
    for file in kept.rglob("*"):
        assert file.is_dir() or "/" not in file.read_text(encoding="utf-8"), file


def partition_of(topic: str, message: StoredMessage) -> Partition:
    return Partition(message.broker_id, topic, message.partition)


def ends(story: Story, stored: Iterable[Stored]) -> dict[Partition, int]:
    """Return the end of each partition's store."""

    def store(partition: Partition) -> tuple[int, str, int]:
        return partition.broker_id, partition.topic, partition.partition_id // STORE_PARTITION_BASE

    counts = Counter(store(partition_of(topic, message)) for topic, message in stored)
    return {partition: counts[store(partition)] * ENTRY for partition in map(parse, story.targets())}


def parse(target: str) -> Partition:
    topic, _, place = target.partition(" ")
    broker_id, _, partition_id = place.partition(":")
    return Partition(int(broker_id), topic, int(partition_id))


def expected(story: Story, stored: Iterable[Stored]) -> Counter[tuple[object, ...]]:
    """Return the rows; they have an offset if the partition has its store for itself."""
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
