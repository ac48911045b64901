# SPDX-License-Identifier: Apache-2.0
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
from pyspark.sql.types import DataType, StructField, StructType

from tests.clusters import Cluster
from tests.stored import Stored, stored_in
from tubemq_spark import columns
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.sink.writers import TubeMQStreamRowWriter

Cells = Mapping[str, Any]
"""The cells of a row, by column."""

BINARY, STRING, INT, TIMESTAMP, TEXTS = (
    kind.spark for kind in (columns.BINARY, columns.STRING, columns.INT, columns.TIMESTAMP, columns.TEXTS)
)
KINDS: Mapping[str, DataType] = {**{one.name: one.kind.spark for one in columns.COLUMNS}, "msg_time": STRING}
_ARROW: Sequence[tuple[DataType, pa.DataType]] = [
    (kind.spark, kind.arrow) for kind in dict.fromkeys(one.kind for one in columns.COLUMNS)
]
MINUTE = datetime(2026, 11, 21, 8, 30, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Task:
    """An attempt of a task, as Spark's task context describes it. By default, the query belongs to this test alone."""

    query: str | None = field(default_factory=lambda: str(uuid.uuid4()))
    batch: int = 0
    partition: int = 0
    attempt: int = 0
    attempt_id: int = 0

    def again(self) -> Task:
        """Return the next attempt of the task in the same run."""
        return replace(self, attempt=self.attempt + 1, attempt_id=self.attempt_id + 1)

    def in_repeated_stage(self) -> Task:
        """Return the next attempt of the task, in another attempt of its stage."""
        return replace(self, attempt=0, attempt_id=self.attempt_id + 1)

    def restarted(self) -> Task:
        """Return the first attempt of the same task in another run of the query."""
        return replace(self, attempt=0)

    def next(self) -> Task:
        """Return the first attempt of the same task in the next batch."""
        return replace(self, batch=self.batch + 1, attempt=0)

    @contextmanager
    def running(self) -> Iterator[None]:
        properties = {
            "sql.streaming.queryId": self.query,
            "streaming.sql.batchId": str(self.batch),
        }
        context = SimpleNamespace(
            partitionId=lambda: self.partition,
            attemptNumber=lambda: self.attempt,
            taskAttemptId=lambda: self.attempt_id,
            getLocalProperty=properties.get,
        )
        # Of the sink alone: another thread may run tasks of the source.
        with mock.patch("tubemq_spark.sink.task_attempts.TaskContext", SimpleNamespace(get=lambda: context)):
            yield


def options(cluster: Cluster, topic: str | None = None, **given: Any) -> dict[str, str]:
    """Return options as Spark passes them: texts under lower-cased keys.

    `_` in a name of `given` stands for `.`, and None removes an option.
    """
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
    """Return a schema of `value`, the columns that any of `rows` has, and those that `kinds` names."""
    known = {**KINDS, **(kinds or {})}
    names = ["value", *dict.fromkeys([*(kinds or {}), *(name for row in rows for name in row)])]
    return StructType([StructField(name, known[name]) for name in dict.fromkeys(names)])


def batches(rows: Sequence[Cells], columns: StructType, size: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield `rows` as record batches of `size` rows, or as one."""
    fields = pa.schema(
        [(column.name, next(arrow for kind, arrow in _ARROW if kind == column.dataType)) for column in columns.fields]
    )
    for start in range(0, len(rows), size or len(rows) or 1):
        part = rows[start : start + (size or len(rows))]
        yield pa.RecordBatch.from_pylist([dict(row) for row in part], fields)


# The calls of Spark, each in a process of its own: writers travel as bytes


def plan_stream(raw: Mapping[str, str], columns: StructType) -> bytes:
    """Plan a micro-batch on the driver, and return the writer for its tasks."""
    return pickle.dumps(TubeMQDataSource(dict(raw)).streamWriter(columns, False))


def run_task(
    writer: bytes,
    rows: Sequence[Cells],
    columns: StructType,
    task: Task | None,
    *,
    by_rows: bool = False,
    size: int = 3,
) -> Written:
    """Write `rows` in a task, in record batches of `size` rows or row by row. Without `task`, run outside Spark."""
    unpickled = pickle.loads(writer)
    names = columns.fieldNames()
    with task.running() if task else nullcontext():
        if by_rows:
            spark_rows = (Row(**{name: row.get(name) for name in names}) for row in rows)
            written = TubeMQStreamRowWriter(unpickled._plan).write(spark_rows)
        else:
            written = unpickled.write(batches(rows, columns, size))
    copy: Written = pickle.loads(pickle.dumps(written))
    return copy


def commit_stream(raw: Mapping[str, str], columns: StructType, written: Sequence[Written | None], batch: int) -> None:
    """Commit a micro-batch with a writer made anew, as Spark does."""
    TubeMQDataSource(dict(raw)).streamWriter(columns, False).commit(list(written), batch)


class Writing:
    """A planned batch write, or a planned micro-batch of a stream."""

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
        raw = options(cluster, topic, **given)
        self._columns = columns
        self._by_rows = by_rows
        self._is_stream = streaming or by_rows
        self._writer = (
            plan_stream(raw, columns) if self._is_stream else pickle.dumps(TubeMQDataSource(raw).writer(columns, False))
        )

    @property
    def plan(self) -> WritePlan:
        plan: WritePlan = pickle.loads(self._writer)._plan
        return plan

    def write(self, rows: Sequence[Cells], task: Task | None = None) -> Written:
        """Write `rows` in `task`, or outside Spark."""
        return run_task(self._writer, rows, self._columns, task, by_rows=self._by_rows)

    def commit(self, written: Sequence[Written | None], batch: int = 0) -> None:
        writer = pickle.loads(self._writer)
        if self._is_stream:
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
    """Plan, write and commit a batch of one task."""
    writing = Writing(cluster, schema(rows, kinds), topic, **given)
    written = writing.write(rows, task)
    writing.commit([written])
    return written


def bodies(cluster: Cluster, topic: str) -> list[bytes]:
    """Return the bodies of all messages, sorted."""
    return sorted(message.body for message in stored_in(cluster, topic))


def own(message: Stored) -> dict[str, str]:
    """Return the attributes of a message without those of the system."""
    return dict(message.attributes.own or {})


def read_back(cluster: Cluster, topic: str, **given: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch read of `topic`."""
    more: dict[str, Any] = {"subscribe": topic, "tubemq.group": f"back_{uuid.uuid4().hex[:12]}", **given}
    source = TubeMQDataSource(options(cluster, **more))
    reader = source.reader(source.schema())
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    found: list[Any] = [batch for task in tasks for batch in reader.read(task)]
    return [row for batch in found for row in batch.to_pylist()]


def as_json(attributes: Mapping[str, str]) -> str:
    return json.dumps(list(attributes.items()), ensure_ascii=False)
