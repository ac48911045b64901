# SPDX-License-Identifier: Apache-2.0
"""The connector's own code in the model of Spark: its source, its sink, batch reads and batch writes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from tests.simulation.machine import Replacement
from tests.simulation.spark import Application, Sink, Source, StreamQuery, TaskContext, travel
from tests.simulation.world import the_world
from tests.without_spark.sink import Cells, batches, schema
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError, DataLossError, TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit import Written
from tubemq_spark.source.stream import TubeMQStreamReader

if TYPE_CHECKING:
    from tests.simulation.writing import OperatedWriting

Raw = Mapping[str, str]

FOLDER_FAILS = "the folder fails"
"""What errors of the model's folder begin with."""


class Row(NamedTuple):
    partition: Partition
    offset: int | None
    message_id: int
    body: bytes


_READ = ("topic", "broker_id", "partition", "offset", "message_id", "value")


@lru_cache(maxsize=256)
def _schema(options: tuple[tuple[str, str], ...]) -> StructType:
    """Return all columns, or for every other number of options only those that `rows_of` needs."""
    schema = TubeMQDataSource(dict(options)).schema()
    return StructType([schema[name] for name in reversed(_READ)]) if len(options) % 2 else schema


def schema_of(raw: Raw) -> StructType:
    return _schema(tuple(sorted(raw.items())))


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    for topic, broker_id, partition, *row in zip(*(batch.column(name).to_pylist() for name in _READ), strict=True):
        yield Row(Partition(broker_id, topic, partition), *row)


def read_task(what: str, pickled: bytes) -> list[Row]:
    """Read what an input partition has, in a worker."""
    world = the_world()
    assert world.running is not None
    process = world.running.process
    rows: list[Row] = []
    generator = pickle.loads(pickled).read()
    process.state = "reads"
    with closing(generator):  # here, and not when the garbage collector finds it, in another process of the world
        for batch in generator:
            rows += rows_of(batch)
            process.state = "has rows that it gave to Spark"
            if pause := world.decide(f"slow {what}", world.unrest.slow_task, lambda r: r.random() ** 3):
                world.sleep((10 if pause < 0.8 else 60) * pause)  # longer than a claim lives without heartbeats
            process.state = "reads"
    return rows


class TubeMQSource(Source):
    """The connector's source in a process of its own, which lives as long as the run."""

    def __init__(self, raw: Raw, scans: int = 1) -> None:
        self._raw, self._scans = raw, scans

    def begin(self, query: StreamQuery) -> None:
        self._query = query
        self._process = query.app.python("reader")
        self._reader: Any = self._call(self._new_reader)
        self._limit = self._call(self._reader.getDefaultReadLimit)
        if query.available_now:
            self._call(self._reader.prepareForTriggerAvailableNow)

    def _new_reader(self) -> TubeMQStreamReader:
        # Its process gets SIGTERM from `StreamQuery`, and this OS process does not.
        return TubeMQStreamReader(self._raw, schema_of(self._raw), owns_process=False)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._process.state = f"is asked for {function.__name__.removeprefix('_')}"
        value = self._process.start("call", function, *args).result()
        self._query.check()
        self._process.state = "waits for Spark"
        return value

    def initial(self) -> str:
        return json.dumps(self._call(self._reader.initialOffset))

    def latest(self, start: str) -> str:
        end = self._call(self._reader.latestOffset, json.loads(start), self._limit)
        return json.dumps(end)

    def commit(self, end: str) -> None:
        self._call(self._reader.commit, json.loads(end))

    def plan(self, start: str, end: str) -> Sequence[Sequence[Callable[[], Any]]]:
        found = []
        for _ in range(self._scans):
            tasks = self._call(self._reader.partitions, json.loads(start), json.loads(end))
            found.append([partial(read_task, "read", pickle.dumps(task)) for task in tasks])
        return found

    def interrupt(self) -> None:
        if hasattr(self, "_process"):
            self._process.interrupt()

    def stop(self) -> None:
        if not hasattr(self, "_reader"):
            if hasattr(self, "_process"):
                self._process.kill()
            return
        self._process.state = "stops"
        self._process.start("stop", self._reader.stop).wait(20.0)
        self._process.kill()


class RowSource(Source):
    """Rows that a schedule makes, for each batch the same ones each time."""

    def __init__(self, schedule: OperatedWriting, times: Sequence[float]) -> None:
        """Each batch is there from one of the `times` on."""
        self._schedule, self._times = schedule, times

    def initial(self) -> str:
        return "0"

    def latest(self, start: str) -> str:
        batch = int(start)
        return str(batch + (batch < len(self._times) and the_world().now >= self._times[batch]))

    def plan(self, start: str, end: str) -> Sequence[Sequence[Callable[[], Any]]]:
        rows, batch = self._schedule.rows(int(start)), int(start)
        return [[partial(self._schedule.in_order, batch, task, of_task) for task, of_task in enumerate(rows)]]


class FileSink(Sink):
    """A sink that keeps each micro-batch once, by its number, as Parquet files do."""

    def __init__(self, written: Callable[[StreamQuery, int, list[list[Row]]], None]) -> None:
        """`written` gets the rows of each scan of a micro-batch, before the micro-batch is committed."""
        self._written = written

    def write(self, batch: int, scans: Sequence[Sequence[Callable[[], Any]]]) -> None:
        query = self._query
        functions = [function for scan in scans for function in scan]
        parts = query.app.run_stage("read", functions, query.properties, query.check)
        rows, first = [], 0
        for scan in scans:
            rows.append([row for part in parts[first : first + len(scan)] for row in part])
            first += len(scan)
        query.state = "writes the files of a batch"
        query.world.sleep(0.02)
        self._written(query, batch, rows)


class TubeMQSink(Sink):
    """The connector's sink, which tells a schedule what it does."""

    def __init__(self, raw: Raw, columns: Sequence[str], schedule: OperatedWriting) -> None:
        self._raw, self._schedule = raw, schedule
        self._columns = schema([dict.fromkeys(columns)])

    def write(self, batch: int, scans: Sequence[Sequence[Callable[[], Any]]]) -> None:
        query, app = self._query, self._query.app
        self._schedule.planned(query, batch)
        query.state = "plans a write"
        writer = app.call("write planner", self._plan)
        self._schedule.writing.has_planned(query.run_id, ("batch", batch))
        query.check()
        query.state = "runs tasks"
        functions = [partial(self._write, writer, batch, number, make) for number, make in enumerate(scans[0])]
        parts = app.run_stage("write", functions, query.properties, query.check)
        query.state = "commits the writes"
        written = [message for _, message in parts]
        app.call("write committer", self._commit, written, batch)
        query.check()
        self._schedule.committed(query, batch, [cells for cells, _ in parts], written)

    def _plan(self) -> bytes:
        return pickle.dumps(TubeMQDataSource(dict(self._raw)).streamWriter(self._columns, False))

    def _write(
        self, writer: bytes, batch: int, number: int, make: Callable[[], Sequence[Any]]
    ) -> tuple[list[Cells], Written]:
        rows = [self._schedule.cells_of(row) for row in make()]
        self._schedule.started(self._query, batch, number, rows)
        try:
            return rows, write_task(writer, rows, self._columns, self._schedule.asks_for_more)
        except TubeMQError as error:
            self._schedule.attempt_failed(batch, error)
            raise

    def _commit(self, written: list[Written], batch: int) -> None:
        TubeMQDataSource(dict(self._raw)).streamWriter(self._columns, False).commit(list(written), batch)


def write_task(
    writer: bytes, rows: Sequence[Cells], columns: StructType, asks_for_more: Callable[[Sequence[Cells]], None]
) -> Written:
    """Write rows in a worker, which gets them as Spark gives them: a row may take long to be made. `asks_for_more` gets
    those that the task has, when it asks for more."""
    world = the_world()
    assert world.running is not None
    world.running.process.state = "writes"

    def feed() -> Iterator[pa.RecordBatch]:
        given = 0
        for batch in batches(rows, columns, 3):
            if pause := world.decide("slow write", world.unrest.slow_task, lambda r: r.random() ** 3):
                world.sleep(10 * pause)
            if not given:
                asks_for_more([])
            yield batch
            given += batch.num_rows
            asks_for_more(rows[:given])

    written: Written = travel(pickle.loads(writer).write(feed()))
    return written


def batch_write(
    app: Application,
    raw: Raw,
    columns: Sequence[str],
    tasks: Sequence[Sequence[Cells]],
    started: Callable[[int, Sequence[Cells]], None],
    asks_for_more: Callable[[Sequence[Cells]], None],
) -> list[Written]:
    """Write rows as a batch. To be called in an actor of the application's driver."""
    schema_of_rows = schema([dict.fromkeys(columns)])

    def plan() -> bytes:
        return pickle.dumps(TubeMQDataSource(dict(raw)).writer(schema_of_rows, False))

    def write(task: int, rows: Sequence[Cells], writer: bytes) -> Written:
        started(task, rows)
        return write_task(writer, rows, schema_of_rows, asks_for_more)

    def commit(writer: bytes, written: list[Any]) -> None:
        pickle.loads(writer).commit(written)

    writer = app.call("write planner", plan)
    written = app.run_stage("write a batch", [partial(write, task, rows, writer) for task, rows in enumerate(tasks)])
    app.call("write committer", commit, writer, list(written))
    return written


def batch_read(
    app: Application, raw: Raw, scans: int = 1, is_planned: Callable[[], None] = lambda: None
) -> list[list[Row]]:
    """Plan a batch read, call `is_planned`, and run it `scans` times, as several actions on one DataFrame. To be called
    in an actor of the application's driver."""

    def plan() -> list[bytes]:
        reader = TubeMQDataSource(dict(raw)).reader(schema_of(raw))
        return [pickle.dumps(task) for task in reader.partitions()]

    planned = app.call("read planner", plan)
    is_planned()
    found = []
    for _ in range(scans):
        parts = app.run_stage("read a batch", [partial(read_task, "read", one) for one in planned])
        found.append([row for part in parts for row in part])
    return found


def replacements() -> list[Replacement]:
    """Return what lets the connector see the model's task contexts and folder, and the model see reported losses."""
    from tubemq_spark.client.consumer.loss_policy import LossPolicy
    from tubemq_spark.client.consumer.partition_reader import PartitionReader
    from tubemq_spark.sink import batch_state, task_attempts
    from tubemq_spark.source import input_partition
    from tubemq_spark.source.truncation_check import TruncationCheck

    report, read, search = LossPolicy.report, PartitionReader.batches, TruncationCheck._search

    def recording_report(self: LossPolicy, loss: DataLossError, range_end: int | None = None) -> None:
        report(self, loss, range_end)
        world = the_world()
        if world.running is not None and not self.fail:  # else the query ends by the error
            world.reported(world.running.process, loss)

    def recording_read(self: PartitionReader) -> Iterator[Any]:
        with closing(read(self)) as found:
            for batch in found:
                the_world().delivered(self._wanted.partition, self._claim.client_id)
                yield batch

    def recording_search(self: TruncationCheck, checked: Any, low: int, high: int, old_ids: Any) -> int:
        world = the_world()
        if world.running is not None and old_ids is None:
            world.skipped(world.running.process, checked.store, low, high)
        return search(self, checked, low, high, old_ids)

    return [
        (LossPolicy, "report", recording_report),
        (TruncationCheck, "_search", recording_search),
        (PartitionReader, "batches", recording_read),
        (input_partition, "TaskContext", TaskContext),
        (task_attempts, "TaskContext", TaskContext),
        (batch_state, "OutputDir", StateFolder),
    ]


class StateFolder:
    """A folder that all hosts share, with one file: it stands for `OutputDir`. An operation takes a moment, may fail
    before or behind its effect, and the effect of one that has begun comes also if the driver is killed meanwhile."""

    def __init__(self, location: str, option: str) -> None:
        self._location = location

    def shown(self, name: str) -> str:
        return f"{self._location}/{name}"

    def read(self, name: str, most: int | None = None) -> pa.Buffer | None:
        world = the_world()
        world.sleep(0.002)
        if world.decide("read the state file", world.unrest.bad_folder):
            raise self._error(name, "read")
        content = "{}" if name == "metadata" else world.files.get(self.shown(name))
        return None if content is None else pa.py_buffer(content.encode())

    def write(self, name: str, content: pa.Buffer) -> None:
        world = the_world()
        fate = world.decide("write the state file", world.unrest.bad_folder, lambda r: r.random()) or 0.0
        if fate > 0.7:
            world.sleep(0.002)
            raise self._error(name, "written")
        takes = 0.002 + fate  # seconds
        world.at(takes, world.files.__setitem__, self.shown(name), content.to_pybytes().decode())
        world.sleep(takes + 0.001)
        if fate > 0.5:
            raise self._error(name, "written")

    def _error(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"{FOLDER_FAILS}: {self.shown(name)} cannot be {what}")
