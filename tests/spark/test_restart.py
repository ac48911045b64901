# SPDX-License-Identifier: Apache-2.0
"""A query is stopped or killed while messages arrive: its output has each message once.

The output is Parquet files; Spark reads only those of committed micro-batches. If a repeated micro-batch read more or
less than its first attempt, messages would be there twice, or never.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from tests.clusters import Cluster
from tests.messages import Sent, numbered, partitions, send
from tests.spark.queries import (
    Queries,
    Source,
    came_too_late,
    ends_of,
    numbers,
    run_to_the_end,
    wait_for,
)
from tests.spark_jvm import quick_start
from tubemq_spark.protocol.metadata import Partition

ROOT = Path(__file__).parents[2]

real_thoroughly = [pytest.mark.real, pytest.mark.thorough]
stops = pytest.mark.parametrize(
    ("cluster", "turns"),
    [
        pytest.param("embedded", 3, id="embedded"),
        pytest.param("embedded", 12, id="embedded-often", marks=pytest.mark.thorough),
        pytest.param("real", 4, id="real", marks=real_thoroughly),
    ],
    indirect=["cluster"],
)
kills = pytest.mark.parametrize(
    ("cluster", "turns", "program"),
    [
        pytest.param("embedded", 1, "any", id="embedded", marks=pytest.mark.thorough),
        pytest.param("embedded", 2, "all", id="embedded-everything", marks=pytest.mark.thorough),
        pytest.param("embedded", 2, "java", id="embedded-java", marks=pytest.mark.thorough),
        pytest.param("real", 1, "all", id="real-everything", marks=real_thoroughly),
        pytest.param("real", 1, "java", id="real-java", marks=real_thoroughly),
    ],
    indirect=["cluster"],
)


@pytest.fixture
def topics(cluster: Cluster) -> list[str]:
    return [cluster.new_topic("one"), cluster.new_topic("three")]


class Producer:
    """A thread that sends a few messages to all partitions of some topics every `pause` seconds."""

    def __init__(self, cluster: Cluster, topics: list[str], pause: float = 0.05) -> None:
        self._cluster = cluster
        self._pause = pause
        self._targets = [partition for topic in topics for partition in partitions(cluster, topic)]
        self._parts: list[dict[Partition, list[Sent]]] = []
        self._ended = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def sent(self) -> list[dict[Partition, list[Sent]]]:
        """All messages, after the thread has ended."""
        assert not self._thread.is_alive()
        if self._problem is not None:
            raise self._problem
        return self._parts

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause):
                random.shuffle(self._targets)
                self._parts.append(send(self._cluster, numbered(self._targets, random.randint(1, 60))))
        except BaseException as problem:
            self._problem = problem


class Output:
    """A query's Parquet files and its checkpoint."""

    def __init__(self, source: Source, topics: list[str], folder: Path) -> None:
        self._source = source
        self.options = source.options(*topics, startingOffsets="earliest")
        self.folder = str(folder / "output")
        self.checkpoint = folder / "checkpoint"
        self._topics = topics

    def write(self, queries: Queries, **trigger: bool) -> StreamingQuery:
        frame = self._source.stream(*self._topics, startingOffsets="earliest")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        if trigger:
            return queries.begin(lambda: writer.trigger(**trigger).start(self.folder))
        return queries.add(writer.start(self.folder))

    def wait_for_more_batches(self, count: int) -> None:
        """Wait until `count` more micro-batches are logged."""
        log = self.checkpoint / "offsets"
        enough = len(numbers(log)) + count
        wait_for(lambda: len(numbers(log)) >= enough, f"micro-batch {enough}")

    def check(self, sent: list[dict[Partition, list[Sent]]]) -> None:
        """Assert that the output has every message once, and that the group is at the end."""
        rows = self._source.spark.read.parquet(self.folder).collect()
        found = Counter(
            (Partition(row.broker_id, row.topic, row.partition), row.message_id, bytes(row.value)) for row in rows
        )
        wanted = {
            (partition, message.message_id, message.body)
            for part in sent
            for partition, messages in part.items()
            for message in messages
        }
        assert [key for key, count in found.items() if count > 1][:5] == [], "more than once"
        assert sorted(wanted - found.keys())[:5] == [], "missing"
        assert sorted(found.keys() - wanted)[:5] == [], "never sent"
        self._source.wait_for_positions(ends_of(*sent))


@stops
def test_stopped_at_any_moment(
    source: Source, queries: Queries, topics: list[str], tmp_path: Path, chance: random.Random, turns: int
) -> None:
    output = Output(source, topics, tmp_path)
    with Producer(source.cluster, topics) as producer:
        for turn in range(turns):
            query = output.write(queries)
            if turn % 2:  # a run's first seconds are its start: let some runs get further
                wait_for(lambda: query.lastProgress or came_too_late(query), "the first micro-batch")  # noqa: B023
            time.sleep(chance.uniform(0, 2))
            query.stop()
            assert query.exception() is None or came_too_late(query)
    run_to_the_end(output.write(queries, availableNow=True))
    output.check(producer.sent)


@kills
def test_killed_at_any_moment(
    source: Source,
    queries: Queries,
    topics: list[str],
    tmp_path: Path,
    chance: random.Random,
    turns: int,
    program: str,
) -> None:
    """Kill all processes at once, or the Java process alone, which leaves Python workers that still read."""
    output = Output(source, topics, tmp_path)
    given = {
        "options": output.options,
        "output": output.folder,
        "checkpoint": str(output.checkpoint),
        "java": quick_start(),
    }
    command = [sys.executable, "-m", "tests.spark.endless_query", json.dumps(given)]
    with Producer(source.cluster, topics) as producer:
        for turn in range(turns):
            with in_a_session(command) as leader:
                # The first kill is within the first micro-batch, later ones are anywhere.
                output.wait_for_more_batches(chance.randint(1, 4) if turn else 1)
                time.sleep(chance.uniform(0, 0.5))
                what = chance.choice(["all", "java"]) if program == "any" else program
                kill(leader, None if what == "all" else what)
                run_to_the_end(output.write(queries, availableNow=True))
    run_to_the_end(output.write(queries, availableNow=True))
    output.check(producer.sent)


@contextmanager
def in_a_session(command: list[str]) -> Iterator[int]:
    """Run `command` in a session of its own; yield the session's id, and kill the whole session at the end."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process.pid
    finally:
        kill(process.pid)
        process.wait()


def kill(session: int, program: str | None = None) -> None:
    """Kill all processes of a session, or those of one program. (Python workers leave the process group.)"""

    def alive() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                head, _, tail = (folder / "stat").read_text().rpartition(") ")
            except OSError:
                continue  # it has ended
            state, _, _, its_session = tail.split()[:4]
            if int(its_session) == session and state != "Z" and program in (None, head.partition(" (")[2]):
                found.append(int(folder.name))
        return found

    def killed() -> bool:
        pids = alive()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_for(killed, f"the end of session {session}")
