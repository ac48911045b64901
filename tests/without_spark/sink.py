"""Writes as Spark runs them, without Spark: planned on the driver, written by tasks, committed on the driver."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.clusters import Cluster
from tests.stored import Stored, stored_in
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.stream import TubeMQStreamRowWriter
from tubemq_spark.sink.write_plan import WritePlan

Cells = Mapping[str, Any]
"""A row by its columns."""

BINARY, STRING, INT, TIMESTAMP = BinaryType(), StringType(), IntegerType(), TimestampType()
TEXTS = MapType(STRING, STRING)
KINDS: Mapping[str, DataType] = {
    "value": BINARY,
    "topic": STRING,
    "attributes": TEXTS,
    "msg_type": STRING,
    "msg_time": STRING,
    "key": BINARY,
    "broker_id": INT,
    "partition": INT,
    "inlong_group": STRING,
    "inlong_stream": STRING,
    "inlong_time": TIMESTAMP,
    "inlong_attributes": TEXTS,
    "corrupt": BooleanType(),
    "inlong_index": INT,
    "offset": LongType(),
    "message_id": LongType(),
}
_ARROW: Sequence[tuple[DataType, pa.DataType]] = [
    (BINARY, pa.binary()),
    (STRING, pa.string()),
    (INT, pa.int32()),
    (LongType(), pa.int64()),
    (BooleanType(), pa.bool_()),
    (TIMESTAMP, pa.timestamp("us", tz="UTC")),
    (TEXTS, pa.map_(pa.string(), pa.string())),
]
MINUTE = datetime(2026, 11, 21, 8, 30, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Task:
    """What Spark tells a task of itself. Each query has a name that no other test uses."""

    query: str | None = field(default_factory=lambda: str(uuid.uuid4()))
    batch: int = 0
    partition: int = 0
    attempt: int = 0
    run: str | None = field(default_factory=lambda: str(uuid.uuid4()))

    def again(self) -> Task:
        """The next try of the task."""
        return replace(self, attempt=self.attempt + 1)

    def restarted(self) -> Task:
        """The same task after the query was stopped and started."""
        return replace(self, attempt=0, run=str(uuid.uuid4()))

    def next(self) -> Task:
        """The same task of the next batch."""
        return replace(self, batch=self.batch + 1, attempt=0)

    @contextmanager
    def running(self) -> Iterator[None]:
        told = {
            "sql.streaming.queryId": self.query,
            "streaming.sql.batchId": str(self.batch),
            "spark.jobGroup.id": self.run,
        }
        context = SimpleNamespace(
            partitionId=lambda: self.partition, attemptNumber=lambda: self.attempt, getLocalProperty=told.get
        )
        with mock.patch("tubemq_spark.sink.task_context.TaskContext.get", return_value=context):
            yield


def options(cluster: Cluster, topic: str | None = None, **given: Any) -> dict[str, str]:
    """As Spark hands them over: texts under lower-cased keys. `_` in a name stands for `.`, None leaves one out."""
    raw: dict[str, object] = {
        "tubemq.master": cluster.master,
        "tubemq.rpc.framing": cluster.framing,
        "tubemq.retry.maxElapsedMs": 10_000,
        "topic": topic,
    }
    raw.update({name.replace("_", "."): value for name, value in given.items()})
    return {
        name.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in raw.items()
        if value is not None
    }


def schema(rows: Iterable[Cells] = (), kinds: Mapping[str, DataType] | None = None) -> StructType:
    """Of the columns that any of `rows` has, at least `value`, and of those that `kinds` names."""
    known = {**KINDS, **(kinds or {})}
    names = ["value", *dict.fromkeys([*(kinds or {}), *(name for row in rows for name in row)])]
    return StructType([StructField(name, known[name]) for name in dict.fromkeys(names)])


def batches(rows: Sequence[Cells], columns: StructType, size: int = 0) -> Iterator[pa.RecordBatch]:
    """`size` rows at a time, or all of them."""
    fields = [
        (column.name, next(arrow for kind, arrow in _ARROW if kind == column.dataType)) for column in columns.fields
    ]
    for start in range(0, len(rows), size or len(rows) or 1):
        part = rows[start : start + (size or len(rows))]
        yield pa.RecordBatch.from_pylist([dict(row) for row in part], pa.schema(fields))


class Writing:
    """One batch write, or one micro-batch of a stream with `task`, whose writer was planned and is to be used."""

    def __init__(
        self,
        cluster: Cluster,
        columns: StructType,
        topic: str | None = None,
        *,
        streaming: bool = False,
        by_rows: bool = False,
        **given: Any,
    ) -> None:
        self._columns = columns
        source = TubeMQDataSource(options(cluster, topic, **given))
        if by_rows:
            planned = source.streamWriter(columns, False)
            assert isinstance(planned, TubeMQStreamRowWriter)
            self._on_executors = pickle.dumps(TubeMQStreamRowWriter(planned._plan))
        else:
            make = source.streamWriter if streaming else source.writer
            self._on_executors = pickle.dumps(make(columns, False))
        self._streaming = streaming or by_rows
        self._by_rows = by_rows

    @property
    def plan(self) -> WritePlan:
        plan: WritePlan = pickle.loads(self._on_executors)._plan
        return plan

    def write(self, rows: Sequence[Cells], task: Task | None = None) -> Written:
        """What a task does, which runs in Spark when one is given."""
        writer = pickle.loads(self._on_executors)
        names = self._columns.fieldNames()
        given: Iterator[Any] = (
            (Row(**{name: row.get(name) for name in names}) for row in rows)
            if self._by_rows
            else batches(rows, self._columns, 3)
        )
        with task.running() if task else nullcontext():
            written: Written = pickle.loads(pickle.dumps(writer.write(given)))
        return written

    def commit(self, written: Sequence[Written | None], batch: int = 0) -> None:
        writer = pickle.loads(self._on_executors)
        if self._streaming:
            writer.commit(list(written), batch)
        else:
            writer.commit(list(written))


def save(
    cluster: Cluster,
    rows: Sequence[Cells],
    topic: str | None = None,
    *,
    kinds: Mapping[str, DataType] | None = None,
    task: Task | None = None,
    **given: Any,
) -> Written:
    """A batch write of one task, from the plan to the commit."""
    writing = Writing(cluster, schema(rows, kinds), topic, **given)
    written = writing.write(rows, task)
    writing.commit([written])
    return written


def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    """Of all messages, in order."""
    return sorted(message.body for message in stored_in(cluster, topic))


def own(message: Stored) -> dict[str, str]:
    """A message's attributes, but for the system's."""
    return dict(message.attributes.own or {})


def read_back(cluster: Cluster, topic: str, **given: Any) -> list[dict[str, Any]]:
    """A batch read of a topic."""
    more: dict[str, Any] = {"subscribe": topic, "tubemq.group": f"back_{uuid.uuid4().hex[:12]}", **given}
    source = TubeMQDataSource(options(cluster, **more))
    reader = source.reader(source.schema())
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    found: list[Any] = [batch for task in tasks for batch in reader.read(task)]
    return [row for batch in found for row in batch.to_pylist()]


def as_json(attributes: Mapping[str, str]) -> str:
    return json.dumps(list(attributes.items()), ensure_ascii=False)
