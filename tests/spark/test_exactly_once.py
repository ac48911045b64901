# SPDX-License-Identifier: Apache-2.0
"""A query from TubeMQ into TubeMQ with `effectivelyOnce` whose processes are killed: the output has each message once,
those of a key in their order, and receipts name their positions."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.latency import LOW_LATENCY
from tests.clusters import Cluster
from tests.matrix.queries import numbers, run_to_the_end, wait_for
from tests.messages import Sent, numbered, partitions, send
from tests.rounds import Rounds
from tests.spark.kills import kill, kill_a_worker
from tests.spark.queries import Queries, Source
from tests.spark_jvm import quick_start
from tubemq_spark.protocol.metadata import Partition

ROOT = Path(__file__).parents[2]
COLUMNS = [
    "value",
    # The rows of one topic have a key for each partition; the other topic's rows have none.
    "CASE WHEN topic LIKE 'three%' THEN concat_ws(':', broker_id, partition) END AS key",
    "map('from', concat_ws(':', broker_id, topic, partition)) AS attributes",
]
STAMP = ("spark_id", "spark_batch", "spark_partition", "spark_row")

# The number of random kills of the driver. A kill and the next start take half a minute on a busy machine.
KILLS = 50 if os.environ.get("TUBEMQ_FULL_TIMES") else 5


class Producer(Rounds):
    """A thread that sends a few messages to all partitions of some topics again and again."""

    def __init__(self, cluster: Cluster, topics: list[str]) -> None:
        super().__init__(0.3, self._send)  # seconds; each scan of the output reads all of it
        self._cluster = cluster
        self._targets = [partition for topic in topics for partition in partitions(cluster, topic)]
        self._parts: list[dict[Partition, list[Sent]]] = []

    @property
    def sent(self) -> list[dict[Partition, list[Sent]]]:
        """All messages, after the thread has ended."""
        assert not self._thread.is_alive()
        if self.problem is not None:
            raise self.problem
        return self._parts

    def _send(self) -> None:
        targets = random.sample(self._targets, len(self._targets))
        self._parts.append(send(self._cluster, numbered(targets, random.randint(1, 60))))


class Copy:
    """The query, its checkpoint, its output and its receipts."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        checkpoint: Path | None = None,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.config = config
        self.reading: dict[str, object] = {"startingOffsets": "earliest"}
        cluster = source.cluster
        self.topics = [cluster.new_topic("one"), cluster.new_topic("three")]
        self.output = cluster.new_topic("three")
        self.receipts = folder / "receipts"
        self.checkpoint = checkpoint or folder / "checkpoint"
        self.said = folder / "said.txt"
        self.source = source
        self.sink = {
            "tubemq.master": cluster.master,
            "tubemq.rpc.framing": cluster.framing,
            "topic": self.output,
            "effectivelyOnce": "true",
            "receipts": str(self.receipts),
            "checkpointLocation": str(self.checkpoint),
        }

    @contextmanager
    def running(self, *, reuse: bool = True) -> Iterator[subprocess.Popen[bytes]]:
        """Run the query in a session of its own, and kill the whole session at the end. Without `reuse`, each task has
        Python processes of its own."""
        given = {
            "source": self.source.options(*self.topics, **self.reading),
            "columns": COLUMNS,
            "sink": self.sink,
            "config": {
                **self.config,
                "spark.driver.extraJavaOptions": quick_start(),
                "spark.python.worker.reuse": str(reuse).lower(),
            },
            "seconds": 0,
        }
        command = [sys.executable, "-m", "tests.spark.endless_copy", json.dumps(given)]
        with open(self.said, "ab") as said:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
            )
        try:
            yield process
        finally:
            kill(process.pid)
            process.wait()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop the query; its process starts it again."""
        assert process.stdin is not None
        process.stdin.write(b"stop\n")
        process.stdin.flush()

    def wait_for_more_batches(self, count: int) -> None:
        """Wait until `count` more micro-batches are logged."""
        log = self.checkpoint / "offsets"
        enough = len(numbers(log)) + count
        try:
            wait_for(lambda: len(numbers(log)) >= enough, f"micro-batch {enough}")
        except TimeoutError:
            print(self.said.read_text()[-6000:])
            raise

    def finish(self, queries: Queries) -> None:
        """Process everything that is there."""
        frame = self.source.stream(*self.topics, **self.reading).selectExpr(*COLUMNS)
        writer = frame.writeStream.format("tubemq").options(**self.sink).trigger(availableNow=True)
        query: StreamingQuery = queries.begin(writer.start)
        run_to_the_end(query)

    def check(self, sent: list[dict[Partition, list[Sent]]]) -> None:
        wanted: dict[Partition, list[bytes]] = defaultdict(list)
        for part in sent:
            for partition, stored in part.items():
                wanted[partition] += [message.body for message in stored]
        # In another group, because killed members still hold theirs.
        rows = self.source.batch(self.output, tubemq_group=f"{self.source.group}_check").collect()

        found = Counter(bytes(row.value) for row in rows)
        bodies = {body for messages in wanted.values() for body in messages}
        assert [body for body, count in found.items() if count > 1][:5] == [], "more than once"
        assert sorted(bodies - found.keys())[:5] == [], "missing"
        assert sorted(found.keys() - bodies)[:5] == [], "never sent"

        stamps = Counter(tuple(row.attributes[name] for name in STAMP) for row in rows)
        assert [stamp for stamp, count in stamps.items() if count > 1][:5] == [], "stamped alike"
        assert len({stamp[0] for stamp in stamps}) == 1

        keyed = defaultdict(list)
        for row in rows:
            keyed[row.attributes["from"]].append((row.broker_id, row.partition, bytes(row.value)))
        for partition, messages in wanted.items():
            if partition.topic == self.topics[1]:
                copies = keyed[str(partition)]
                assert len({copy[:2] for copy in copies}) == 1, "one key in several partitions"
                assert [copy[2] for copy in copies] == messages, f"the order of {partition}"

        told = pq.read_table(str(self.receipts)).to_pylist()
        assert Counter(
            (
                *(str(one[name]) for name in STAMP),
                (one["topic"], one["broker_id"], one["partition"], one["message_id"]),
            )
            for one in told
        ) == Counter(
            (
                *(row.attributes[name] for name in STAMP),
                (row.topic, row.broker_id, row.partition, row.message_id),
            )
            for row in rows
        )


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("cluster", "config"),
    [
        pytest.param("embedded", {}, id="embedded"),
        pytest.param("embedded", LOW_LATENCY, id="embedded-low-latency"),
        pytest.param("real", {}, id="real", marks=pytest.mark.real),
    ],
    indirect=["cluster"],
)
def test_each_message_once_when_drivers_are_killed_at_random(
    source: Source, queries: Queries, tmp_path: Path, chance: random.Random, config: Mapping[str, str]
) -> None:
    copy = Copy(source, tmp_path, config=config)
    with Producer(source.cluster, copy.topics) as producer:
        for number in range(KILLS):
            with copy.running() as process:
                copy.wait_for_more_batches(1)
                time.sleep(chance.expovariate(1))  # within a micro-batch, its commit, or between two
                match chance.choice(["worker", "stop", "nothing"]):
                    case "worker":
                        kill_a_worker(process.pid, chance)
                        time.sleep(chance.expovariate(2))
                    case "stop":
                        copy.stop(process)
                        copy.wait_for_more_batches(1)
                kill(process.pid, chance.choice([None, "java"]))  # Python processes may disturb the next run
            print(f"kill {number + 1}: {len(numbers(copy.checkpoint / 'commits'))} micro-batches committed", flush=True)
    copy.finish(queries)
    copy.check(producer.sent)


@pytest.mark.thorough
def test_each_message_once_if_spark_reuses_no_worker(
    source: Source, queries: Queries, tmp_path: Path, chance: random.Random
) -> None:
    copy = Copy(source, tmp_path)
    with Producer(source.cluster, copy.topics) as producer, copy.running(reuse=False) as process:
        for _ in range(3):
            copy.wait_for_more_batches(1)
            kill_a_worker(process.pid, chance)
    copy.finish(queries)
    copy.check(producer.sent)
