# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests with one cluster and one Spark: frames, queries, and the content of topics and checkpoints."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tubemq_spark.testing import EmbeddedTubeMQ

T = TypeVar("T")

CONNECT = os.environ.get("MATRIX_CONNECT") == "1"
# By the release number, because the package's detection of this feature is under test.
HAS_READ_LIMITS = tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2])) >= (4, 2)


class Pipeline:
    """Frames and queries of one cluster, and the content of its topics."""

    def __init__(self, spark: SparkSession, tubemq: EmbeddedTubeMQ, folder: Path) -> None:
        self.spark = spark
        self.tubemq = tubemq
        self.checkpoint = folder / "checkpoint"
        self._started: list[StreamingQuery] = []

    def options(self, topic: str, **others: object) -> dict[str, str]:
        given = {"tubemq.master": self.tubemq.master, "tubemq.group": "matrix", **others}
        given["subscribe" if "tubemq.admin.address" not in given else "subscribePattern"] = topic
        return {name: json.dumps(value) if isinstance(value, Mapping) else str(value) for name, value in given.items()}

    def batch(self, topic: str, schema: str | None = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("tubemq").options(**self.options(topic, **options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, topic: str, schema: str | None = None, **options: object) -> DataFrame:
        given = self.options(topic, **{"startingOffsets": "earliest", **options})
        reader = self.spark.readStream.format("tubemq").options(**given)
        return (reader if schema is None else reader.schema(schema)).load()

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
        assert query.awaitTermination(240), f"it goes on: {query.status}"
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

    def wait_for(self, condition: Callable[[], T], what: str, timeout: float = 240.0) -> T:
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            for query in self._started:
                if not query.isActive and (problem := query.exception()) is not None:
                    raise problem
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
            time.sleep(0.05)
        return found

    def wait_for_copies(self, topic: str, wanted: Counter[bytes]) -> None:
        """Wait until the topic has all bodies and the micro-batch of the last one is committed."""
        self.wait_for(lambda: self.bodies(topic) == wanted, "all messages")
        last = self.numbers("offsets")[-1]
        self.wait_for(lambda: last in self.numbers("commits"), f"the end of micro-batch {last}")

    # The checkpoint

    def numbers(self, log: str) -> list[int]:
        return sorted(int(file.name) for file in (self.checkpoint / log).glob("[0-9]*"))

    def end(self, batch_id: int) -> dict[str, dict[str, int]]:
        """Return the end of a micro-batch from the offset log."""
        text = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        offsets: dict[str, dict[str, int]] = json.loads(text)["offsets"]
        return offsets

    def forget_commit(self) -> int:
        """Remove the last entry of the commit log, as after a crash of Spark before it; return its number."""
        last = self.numbers("commits")[-1]
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink()
        return last
