"""Streams and batch reads as Spark runs them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.stream import TubeMQStreamReader
from tubemq_spark.testing import EmbeddedTubeMQ

UNIT = 28
GROUP = "readers"

Row = dict[str, Any]
Positions = dict[Partition, int]


def options(tubemq: EmbeddedTubeMQ, *topics: str, **given: object) -> dict[str, str]:
    """As Spark hands them over: texts under lower-cased keys. `_` in a name of `given` stands for `.`, and None leaves
    one out. A query begins at the earliest and asks the brokers each time, unless told otherwise."""
    raw: dict[str, object] = {
        "tubemq.master": tubemq.master,
        "tubemq.rpc.framing": tubemq.framing.value,
        "tubemq.group": GROUP,
        "subscribe": ",".join(topics) if topics else None,
        "startingOffsets": "earliest",
        "headsIntervalMs": 0,
    }
    raw.update({name.replace("_", "."): value for name, value in given.items()})
    return {
        name.lower(): json.dumps(value) if isinstance(value, Mapping) else str(value)
        for name, value in raw.items()
        if value is not None
    }


class Stream:
    """A streaming query: its logs outlive a run, all else ends with it. `rows` are those of committed batches."""

    def __init__(self, tubemq: EmbeddedTubeMQ, *topics: str, **given: object) -> None:
        self.rows: list[Row] = []
        self.offset_log: list[str] = []
        self.committed = 0
        self._last = 0  # rows of the last committed batch
        self._tubemq = tubemq
        self._topics = topics
        self._given = given

    @contextmanager
    def running(self, trigger: str = "processingTime", **changed: object) -> Iterator[Run]:
        """A run with the query's options, some of them changed."""
        raw = options(self._tubemq, *self._topics, **{**self._given, **changed})
        run = Run(self, raw, trigger)
        try:
            yield run
        finally:
            run.reader.stop()

    def run(self, trigger: str = "availableNow", **changed: object) -> list[list[Row]]:
        """Until there is nothing new; the rows of each micro-batch."""
        with self.running(trigger, **changed) as run:
            batches = []
            while (rows := run.next()) is not None:
                batches.append(rows)
                if trigger == "once":
                    break
            return batches

    def add(self, rows: list[Row]) -> None:
        """The rows of the batch that is committed now."""
        self.committed += 1
        self.rows += rows
        self._last = len(rows)

    def forget_commit(self) -> list[Row]:
        """As if Spark had crashed before it committed the last batch; the rows that are taken back."""
        self.committed -= 1
        self.rows, again = self.rows[: -self._last or None], self.rows[len(self.rows) - self._last :]
        return again

    @property
    def end(self) -> Positions:
        """Where the last committed batch ended."""
        return dict(StreamOffset.from_json(self.offset_log[self.committed - 1]).positions)


class Run:
    """One run of a stream, micro-batch by micro-batch."""

    def __init__(self, stream: Stream, raw: dict[str, str], trigger: str) -> None:
        source = TubeMQDataSource(raw)
        schema = source.schema()
        self.reader = source.streamReader(schema)
        assert isinstance(self.reader, TubeMQStreamReader)
        self.tasks: Sequence[InputPartition] = ()
        self.reported: Any = None
        self._stream = stream
        self._on_executors = pickle.dumps(source.streamReader(schema))
        self._limit = ReadAllAvailable() if trigger == "once" else self.reader.getDefaultReadLimit()
        if trigger == "availableNow":
            self.reader.prepareForTriggerAvailableNow()

    def latest(self) -> Any:
        """What Spark is told when it asks where the next micro-batch ends; `reported` is what it asks for then."""
        end = self.reader.latestOffset(self._start(), self._limit)
        self.reported = self.reader.reportLatestOffset()
        return end

    def next(self) -> list[Row] | None:
        """The rows of the next micro-batch; None when there is nothing new."""
        stream = self._stream
        if len(stream.offset_log) == stream.committed:
            end = json.dumps(self.latest())
            if stream.committed and end == stream.offset_log[-1]:
                return None
            stream.offset_log.append(end)
            if stream.committed:
                self.reader.commit(self._start())
        self.tasks = pickle.loads(
            pickle.dumps(self.reader.partitions(self._start(), json.loads(stream.offset_log[-1])))
        )
        rows = read(pickle.loads(self._on_executors), self.tasks)
        stream.add(rows)
        return rows

    def _start(self) -> Any:
        stream = self._stream
        return json.loads(stream.offset_log[stream.committed - 1]) if stream.committed else self.reader.initialOffset()


def read_batch(tubemq: EmbeddedTubeMQ, *topics: str, **given: object) -> list[Row]:
    """What a batch read gives."""
    source = TubeMQDataSource(options(tubemq, *topics, **given))
    reader = source.reader(source.schema())
    return read(reader, reader.partitions())


def read(reader: Any, tasks: Iterable[InputPartition]) -> list[Row]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


# What came, and what there is


def bodies(rows: Iterable[Row]) -> list[bytes]:
    return [row["value"] for row in rows]


def stored(tubemq: EmbeddedTubeMQ, *topics: str) -> list[bytes]:
    """The bodies of all messages, in the order of their positions, broker by broker."""
    return [message.body for topic in topics for message in tubemq.messages(topic)]


def fill(
    tubemq: EmbeddedTubeMQ, topic: str, count: int, partition: int | str | None = None, **given: Any
) -> list[bytes]:
    """`count` messages, no two of a topic alike; their bodies."""
    begin = len(tubemq.messages(topic))
    return [tubemq.send(topic, b"%s %d" % (topic.encode(), begin + n), partition, **given).body for n in range(count)]


def where(rows: Iterable[Row]) -> set[Partition]:
    return {Partition(row["broker_id"], row["topic"], row["partition"]) for row in rows}


def ranges_of(tasks: Iterable[InputPartition]) -> list[dict[Partition, tuple[int, int]]]:
    """What each task is to read."""
    found = []
    for task in tasks:
        assert isinstance(task, TubeMQInputPartition)
        found.append({wanted.partition: (wanted.start, wanted.end) for wanted, _ in task.ranges})
    return found
