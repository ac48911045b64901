# SPDX-License-Identifier: Apache-2.0
"""What tests with one cluster and one Spark do: read, write, start queries, compare topics and checkpoints."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.matrix.queries import Frames, logged_offsets, numbers, run_to_the_end, wait_for
from tubemq_spark.testing import EmbeddedTubeMQ

T = TypeVar("T")

CONNECT = os.environ.get("MATRIX_CONNECT") == "1"
# By the release number, because the package's detection of this feature is under test.
HAS_READ_LIMITS = tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2])) >= (4, 2)


class Pipeline(Frames):
    """Frames and queries of one cluster, and the content of its topics."""

    def __init__(self, spark: SparkSession, tubemq: EmbeddedTubeMQ, folder: Path) -> None:
        client = {"tubemq.master": tubemq.master, "tubemq.group": "matrix"}
        super().__init__(spark, {**client, "startingOffsets": "earliest"})
        self.tubemq = tubemq
        self.checkpoint = folder / "checkpoint"
        self._started: list[StreamingQuery] = []

    def write(self, frame: DataFrame, topic: str | None = None, **options: str) -> None:
        given = {"tubemq.master": self.tubemq.master, **({} if topic is None else {"topic": topic}), **options}
        frame.write.format("tubemq").options(**given).mode("append").save()

    def copy(self, frame: DataFrame, topic: str, **trigger: Any) -> StreamingQuery:
        """Start a query that writes the frame's `value` to a topic."""
        return self.start(frame.select("value"), {"topic": topic}, **trigger)

    def start(self, frame: DataFrame, options: Mapping[str, str], **trigger: Any) -> StreamingQuery:
        """Start a query that writes the frame to the sink."""
        given = {"tubemq.master": self.tubemq.master, "checkpointLocation": str(self.checkpoint), **options}
        writer = frame.writeStream.format("tubemq").options(**given)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self._started.append(query)
        return query

    def run_to_the_end(self, frame: DataFrame, topic: str) -> StreamingQuery:
        query = self.copy(frame, topic, availableNow=True)
        run_to_the_end(query)
        return query

    def stop(self) -> None:
        for query in self._started:
            query.stop()

    def send(self, topic: str, *bodies: bytes) -> Counter[bytes]:
        for body in bodies:
            self.tubemq.send(topic, body)
        return Counter(bodies)

    def bodies(self, topic: str) -> Counter[bytes]:
        return Counter(message.body for message in self.tubemq.messages(topic))

    def wait_for(self, condition: Callable[[], T], what: str) -> T:
        return wait_for(condition, what, *self._started)

    def wait_for_copies(self, topic: str, wanted: Counter[bytes]) -> None:
        """Wait until the topic has all bodies and the micro-batch of the last one is committed."""
        self.wait_for(lambda: self.bodies(topic) == wanted, "all messages")
        last = self.numbers("offsets")[-1]
        self.wait_for(lambda: last in self.numbers("commits"), f"the end of micro-batch {last}")

    # The checkpoint

    def numbers(self, log: str) -> list[int]:
        return numbers(self.checkpoint / log)

    def end(self, batch_id: int) -> dict[str, dict[str, int]]:
        return logged_offsets(self.checkpoint, batch_id)

    def forget_commit(self) -> int:
        """Remove the last entry of the commit log, as after a crash of Spark before it; return its number."""
        last = self.numbers("commits")[-1]
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink()
        return last
