# SPDX-License-Identifier: Apache-2.0
"""Counts the calls that a source makes on an embedded server, without Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tubemq_spark.client import forget_servers
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.testing import EmbeddedTubeMQ

TOPIC = "demo"
METHODS = (
    "partition_register",
    "partition_unregister",
    "get_message",
    "commit_offset",
    "partition_heartbeat",
    "get_partition_meta",
)


@dataclass
class Cost:
    """The cost of some work: calls by method, and CPU seconds of this thread."""

    calls: dict[str, int]
    processor: float = 0.0
    seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def of_partitions(self) -> dict[str, int]:
        """Return the calls without those that depend only on time."""
        timed = ("partition_heartbeat", "get_partition_meta")
        return {method: count for method, count in self.calls.items() if count and method not in timed}

    def __str__(self) -> str:
        listed = ", ".join(f"{method} {count}" for method, count in self.calls.items() if count)
        return f"{self.total:7} calls  {self.processor:7.3f} s of a core  {self.seconds:7.3f} s  ({listed})"


@contextmanager
def counted(tubemq: EmbeddedTubeMQ) -> Iterator[Cost]:
    """Measure the block. The cost is complete at its end."""
    rules = {method: tubemq.on(method).count() for method in METHODS}
    cost = Cost({})
    begin, processor = time.perf_counter(), time.thread_time()
    try:
        yield cost
    finally:
        cost.processor, cost.seconds = time.thread_time() - processor, time.perf_counter() - begin
        for method, rule in rules.items():
            cost.calls[method] = rule.fired
            rule.remove()


class Stream:
    """One run of a streaming query, with the calls of Spark's engine."""

    def __init__(self, master: str, *, asks_always: bool = True) -> None:
        raw = {"tubemq.master": master, "tubemq.group": "readers", "subscribe": TOPIC, "startingOffsets": "earliest"}
        options = SourceOptions.read(raw, streaming=True)
        if asks_always:
            options = replace(options, poll_interval=0.0)
        self.driver = MicroBatchPlanner(options)
        self.start = self.driver.initial()
        self.rows = 0

    def ask(self) -> StreamOffset:
        return self.driver.latest(self.start)

    def read(self) -> None:
        """Run one micro-batch."""
        end = self.ask()
        tasks: list[TubeMQInputPartition] = pickle.loads(pickle.dumps(self.driver.plan(self.start, end)))
        self.rows += sum(batch.num_rows for task in tasks for batch in task.read())
        self.start = end


@contextmanager
def streaming(tubemq: EmbeddedTubeMQ, *, asks_always: bool = True) -> Iterator[Stream]:
    stream = Stream(tubemq.master, asks_always=asks_always)
    try:
        yield stream
    finally:
        stream.driver.stop()


@contextmanager
def cluster(partitions: int, stores: int, brokers: int = 1) -> Iterator[EmbeddedTubeMQ]:
    """Start a cluster with one topic of `partitions` partitions in each of `stores` stores on each broker."""
    with EmbeddedTubeMQ(brokers=brokers) as tubemq:
        tubemq.create_topic(TOPIC, partitions, stores)
        yield tubemq
        forget_servers()


def send_to_all(tubemq: EmbeddedTubeMQ, partitions: int, stores: int, brokers: int = 1) -> None:
    """Send one message to each partition."""
    for broker_id in range(1, brokers + 1):
        for store in range(stores):
            for partition in range(partitions):
                tubemq.send(TOPIC, b"message", f"{broker_id}:{store * 10_000 + partition}")
