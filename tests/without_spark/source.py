# SPDX-License-Identifier: Apache-2.0
"""Streaming queries and batch reads as Spark 4.2 and 4.3 run them, call by call, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.clusters import Cluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.source.stream import TubeMQStreamReader
from tubemq_spark.testing import EmbeddedTubeMQ

# The moments of a micro-batch, in their order.
FOUND = "found"  # its end is known, and not yet in the offset log
LOGGED = "logged"  # it is in the offset log
PLANNED = "planned"  # its tasks are known
GIVEN = "given"  # a task returned some rows

UNIT = 28
GROUP = "readers"

Row = dict[str, Any]
Positions = dict[Partition, int]
Change = Callable[[SourceOptions], SourceOptions]
Served = EmbeddedTubeMQ | Cluster  # an address and a framing


def options(tubemq: Served, *topics: str, **given: object) -> dict[str, str]:
    """Options as Spark passes them: texts under lower-cased keys. `_` in a name of `given` stands for `.`, and None
    removes an option. By default, a query begins at the earliest and asks the brokers each time."""
    raw: dict[str, object] = {
        "tubemq.master": tubemq.master,
        "tubemq.rpc.framing": Framing(tubemq.framing).value,
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


class Checkpoint:
    """The offset log and the commit log of a streaming query. They outlive its runs."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.committed = 0  # entries of the commit log

    @property
    def is_pending(self) -> bool:
        """Whether a micro-batch is logged that is not committed."""
        return len(self.offsets) > self.committed

    def offset(self, number: int = -1) -> StreamOffset:
        """The end of a logged micro-batch."""
        return StreamOffset.from_json(self.offsets[number])

    def positions(self, number: int) -> Positions:
        """Where a logged micro-batch ends; nothing for number -1, the start of the query."""
        return dict(self.offset(number).positions) if number >= 0 else {}


class Run:
    """One run of a query: calls the reader in the order of Spark 4.2 and 4.3.

    `change` replaces options that no text can express, such as the clock. `point` is called at the moments FOUND,
    LOGGED, PLANNED and GIVEN; what it raises ends the run, as if Spark had failed there.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        raw: Mapping[str, str],
        trigger: str = "processingTime",
        *,
        change: Change = lambda options: options,
        point: Callable[[str], object] = lambda point: None,
    ) -> None:
        self._raw = raw
        self.reader = self._new_reader()
        self.reader._options = change(self.reader._options)
        self.reported: Any = None  # what progress reports show
        self.end: Any = None  # what `latestOffset` returned last
        self._checkpoint = checkpoint
        self._point = point
        self._limit = ReadAllAvailable() if trigger == "once" else self.reader.getDefaultReadLimit()
        if trigger == "availableNow":
            self.reader.prepareForTriggerAvailableNow()

    def latest(self) -> Any:
        """Ask where the next micro-batch ends."""
        self.end = self.reader.latestOffset(self._start(), self._limit)
        self.reported = self.reader.reportLatestOffset()
        return self.end

    def find_next(self) -> bool:
        """Log the end of the next micro-batch, unless one is pending; False if there is nothing new."""
        checkpoint = self._checkpoint
        if not checkpoint.is_pending:
            end = json.dumps(self.latest())
            start = self._start()
            if checkpoint.committed and end == json.dumps(start):  # Spark always has a first micro-batch
                return False
            self._point(FOUND)
            checkpoint.offsets.append(end)
            if checkpoint.committed:
                self.reader.commit(start)
            self._point(LOGGED)
        return True

    def plan(self, scans: int = 1) -> list[list[TubeMQInputPartition]]:
        """The tasks of each scan of the pending micro-batch, as executors receive them."""
        start, end = self._start(), json.loads(self._checkpoint.offsets[-1])
        planned = [pickle.loads(pickle.dumps(self.reader.partitions(start, end))) for _ in range(scans)]
        self._point(PLANNED)
        return planned

    def read(self, tasks: Iterable[InputPartition]) -> Iterator[pa.RecordBatch]:
        """What the tasks return, one after another."""
        reader = pickle.loads(pickle.dumps(self._new_reader()))
        for task in tasks:
            for batch in reader.read(task):
                yield batch
                self._point(GIVEN)

    def stop(self) -> None:
        self.reader.stop()

    def _new_reader(self) -> TubeMQStreamReader:
        schema = TubeMQDataSource(dict(self._raw)).schema()
        return TubeMQStreamReader(self._raw, schema, owns_process=False)  # the tests' process has signals of its own

    def _start(self) -> Any:
        committed = self._checkpoint.committed
        return json.loads(self._checkpoint.offsets[committed - 1]) if committed else self.reader.initialOffset()


class Stream:
    """A streaming query with its sink. `rows` are those of committed batches; `change` is as for `Run`."""

    def __init__(self, tubemq: Served, *topics: str, **given: object) -> None:
        self.rows: list[Row] = []
        self.checkpoint = Checkpoint()
        self._last = 0  # rows of the last committed batch
        self._tubemq = tubemq
        self._topics = topics
        self._given = given
        self.change: Change = lambda options: options

    @contextmanager
    def running(self, trigger: str = "processingTime", **changed: object) -> Iterator[StreamRun]:
        """A run with the query's options, some of them changed."""
        run = StreamRun(self, options(self._tubemq, *self._topics, **{**self._given, **changed}), trigger)
        try:
            yield run
        finally:
            run.stop()

    def run(self, trigger: str = "availableNow", **changed: object) -> list[list[Row]]:
        """Run until there is nothing new; the rows of each micro-batch."""
        with self.running(trigger, **changed) as run:
            batches = []
            while (rows := run.next()) is not None:
                batches.append(rows)
                if trigger == "once":
                    break
            return batches

    def commit(self, rows: list[Row]) -> None:
        self.checkpoint.committed += 1
        self.rows += rows
        self._last = len(rows)

    def forget_commit(self) -> list[Row]:
        """Undo the last commit, as if Spark had crashed before it; the rows that are taken back."""
        self.checkpoint.committed -= 1
        self.rows, again = self.rows[: -self._last or None], self.rows[len(self.rows) - self._last :]
        return again

    @property
    def end(self) -> Positions:
        """Where the last committed batch ended."""
        return self.checkpoint.positions(self.checkpoint.committed - 1)


class StreamRun(Run):
    """One run of a stream, micro-batch by micro-batch."""

    def __init__(self, stream: Stream, raw: Mapping[str, str], trigger: str) -> None:
        super().__init__(stream.checkpoint, raw, trigger, change=stream.change)
        self.tasks: Sequence[InputPartition] = ()
        self._stream = stream

    def next(self) -> list[Row] | None:
        """Run the next micro-batch; its rows, or None if there is nothing new."""
        if not self.find_next():
            return None
        [self.tasks] = self.plan()
        rows = [row for batch in self.read(self.tasks) for row in batch.to_pylist()]
        self._stream.commit(rows)
        return rows


def read_batch(tubemq: Served, *topics: str, **given: object) -> list[Row]:
    """The rows of a batch read."""
    source = TubeMQDataSource(options(tubemq, *topics, **given))
    reader = source.reader(source.schema())
    return read(reader, reader.partitions())


def read(reader: Any, tasks: Iterable[InputPartition]) -> list[Row]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


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
