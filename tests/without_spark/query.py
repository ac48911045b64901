# SPDX-License-Identifier: Apache-2.0
"""A query and a write whose client has settings that no option can express, such as a clock of the test's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from tests.without_spark.source import LOGGED, PLANNED, Checkpoint, Run
from tubemq_spark.client.producer.send_queue import SendLimits
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition, parse_addresses
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

TOPICS = {"one": 1, "pair": 2}  # a partition with a store of its own, and two that share theirs
GROUP = "readers"
# About 20 of the rows below come with one fetch; nothing is flushed by time, however slow a test is.
SMALL_FETCHES = ServerConfig(transfer_size=2048, mem_cache_flush_interval=3600.0)


class Row(NamedTuple):
    """A delivered row; `offset` is None where it cannot be known."""

    offset: int | None
    message_id: int
    body: bytes


Rows = dict[Partition, list[Row]]


def settings(tubemq: EmbeddedTubeMQ, **others: Any) -> ClientSettings:
    masters = parse_addresses(tubemq.master)
    usual = ClientSettings(masters=masters, rpc_timeout=10.0, framing=Framing.STANDARD, retry_for=30.0)
    return replace(usual, **others)


def options(tubemq: EmbeddedTubeMQ, *topics: str, group: str = GROUP, **client: Any) -> SourceOptions:
    """Return options of a source that starts at the earliest position and asks the brokers each time."""
    return replace(
        SourceOptions.read(_raw(tubemq, topics, group), streaming=True),
        client=settings(tubemq, **client),
        poll_interval=0.0,
        metadata_interval=0.0,
        claim_timeout=0.2,
    )


def _raw(tubemq: EmbeddedTubeMQ, topics: tuple[str, ...], group: str) -> dict[str, str]:
    topic_list = ",".join(topics or TOPICS)
    return {
        "tubemq.master": tubemq.master, "tubemq.group": group, "subscribe": topic_list, "startingOffsets": "earliest",
    }  # fmt: skip


def fill(tubemq: EmbeddedTubeMQ, count: int = 240, *, flush: bool = True) -> None:
    """Send `count` messages to the partitions of `TOPICS` in turn. A crash does not lose flushed messages."""
    for number in range(count):
        topic, partition = [("one", 0), ("pair", 0), ("pair", 1)][number % 3]
        tubemq.send(topic, b"row %d" % number, partition)
    if flush:
        for topic in TOPICS:
            tubemq.flush(topic)


def stored(tubemq: EmbeddedTubeMQ, *topics: str) -> Rows:
    """Return the rows that a reader of the topics must deliver, by partition."""
    rows: Rows = defaultdict(list)
    for topic in topics or TOPICS:
        for message in tubemq.messages(topic):
            offset = message.offset if TOPICS[topic] == 1 else None
            partition = Partition(message.broker_id, topic, message.partition)
            rows[partition].append(Row(offset, message.message_id, message.body))
    return dict(rows)


class Query:
    """A streaming query whose checkpoint outlives a run.

    `rows` are those of committed batches. `found`, `planned` and `given` are called when the end of a batch is logged,
    when it is planned, and after each Arrow batch of a task.
    """

    def __init__(self, tubemq: EmbeddedTubeMQ, *topics: str, group: str = GROUP, **client: Any) -> None:
        self.rows: Rows = defaultdict(list)
        self.checkpoint = Checkpoint()
        self.found: Callable[[], object] = lambda: None
        self.planned: Callable[[], object] = lambda: None
        self.given: Callable[[], object] = lambda: None
        self._raw = _raw(tubemq, topics, group)
        self._options = options(tubemq, *topics, group=group, **client)

    def filter(self, topic: str, *types: str) -> None:
        """Read only messages of these types."""
        self._options = replace(self._options, filters={topic: types} if types else {})

    @property
    def ends(self) -> Mapping[Partition, int]:
        """The end positions of the last committed batch."""
        return self.checkpoint.positions(self.checkpoint.committed - 1)

    def run(self) -> None:
        """Read until there is nothing new. Raise the query's error; the next run continues from the checkpoint."""
        run = Run(self.checkpoint, self._raw, change=lambda _: self._options, point=self._come_to)
        try:
            while run.find_next():
                [tasks] = run.plan()
                for partition, row in [row for task in tasks for row in self._run_task(task)]:
                    self.rows[partition].append(row)
                self.checkpoint.committed += 1
        finally:
            run.stop()

    def _come_to(self, point: str) -> None:
        {LOGGED: self.found, PLANNED: self.planned}.get(point, lambda: None)()

    def _run_task(self, task: TubeMQInputPartition) -> Iterator[tuple[Partition, Row]]:
        for batch in task.read():
            yield from zip(partitions_of(batch), rows_of(batch), strict=True)
            self.given()


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    yield from map(Row, *(batch.column(name).to_pylist() for name in ("offset", "message_id", "value")))


def partitions_of(batch: pa.RecordBatch) -> Iterator[Partition]:
    yield from map(Partition, *(batch.column(name).to_pylist() for name in ("broker_id", "topic", "partition")))


def write(
    tubemq: EmbeddedTubeMQ, rows: list[bytes], *, max_in_flight: int = 1000, topic: str = "pair", **client: Any
) -> int:
    """Run a task of the sink, and return the number of rows that it reports as stored."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.binary())})
    options = SinkOptions(settings(tubemq, **client), topic, SendLimits(max_in_flight))
    return sum(write_batches(WritePlan(options), [batch]).rows.values())


def counts(tubemq: EmbeddedTubeMQ, topic: str = "pair") -> Counter[bytes]:
    """Return how often each body is stored."""
    return Counter(message.body for message in tubemq.messages(topic))
