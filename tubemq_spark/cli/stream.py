# SPDX-License-Identifier: Apache-2.0
"""The Spark part of the demo: a local session, and a streaming query that collects its rows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tubemq_spark.errors import TubeMQError

TRIGGER = "1 second"
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # halves the start time
_COLUMNS = (
    "broker_id", "partition", "offset", "msg_type", "msg_time", "attributes", "CAST(value AS STRING) AS value"
)  # fmt: skip

VERSION = pyspark.__version__


class Reading(NamedTuple):
    """One row of the source, as texts."""

    partition: str  # brokerId:partitionId
    offset: str  # empty where it is not known
    msg_type: str
    msg_time: str
    attributes: str
    value: str


@dataclass(frozen=True)
class Batch:
    """A committed micro-batch. `lag` is the number of messages behind it in the topic when its rows came out."""

    number: int
    rows: list[Reading]
    lag: int
    seconds: float = 0.0


@contextmanager
def local_session(folder: Path, log: Path, name: str = "tubemq-spark demo") -> Iterator[SparkSession]:
    """Yield a session with its files in `folder`, and its output in `log`. Raise `TubeMQError` if it does not start."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages of this interpreter
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", _JVM_OPTIONS)
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with _standard_error_to(log):  # Spark's processes inherit it
        with spark_errors("Spark did not start"), ThreadPoolExecutor(1) as pool:
            # Not in the main thread, where PySpark would install its own Ctrl-C handler.
            session = pool.submit(builder.getOrCreate).result()
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def spark_errors(what: str = "Spark failed") -> Iterator[None]:
    """Turn errors of Spark into `TubeMQError`."""
    try:
        yield
    except (PySparkException, Py4JError) as cause:
        raise TubeMQError(f"{what}: {_first_line(cause)}") from None


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Stream:
    """A query that starts at once. `lag_after` returns the lag for the number of rows that came out."""

    def __init__(
        self, session: SparkSession, master: str, group: str, topic: str, folder: Path, lag_after: Callable[[int], int]
    ) -> None:
        self.rows = 0  # rows that came out of Spark
        self.offsets: set[tuple[str, str]] = set()  # partition and offset of each
        self._lag_after = lag_after
        self._uncommitted: dict[int, Batch] = {}
        self._lock = threading.Lock()  # Spark calls `_collect` in another thread
        self._query = (
            session.readStream.format("tubemq")
            .option("tubemq.master", master)
            .option("tubemq.group", group)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr(*_COLUMNS)
            .writeStream.foreachBatch(self._collect)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def _collect(self, frame: DataFrame, number: int) -> None:
        rows = [
            Reading(
                partition=f"{row.broker_id}:{row.partition}",
                offset="" if row.offset is None else str(row.offset),
                msg_type=row.msg_type,
                msg_time=f"{row.msg_time:%Y-%m-%d %H:%M}",
                attributes=", ".join(f"{key}={value}" for key, value in (row.attributes or {}).items()),
                value=row.value,
            )
            for row in frame.collect()
        ]
        with self._lock:
            self.rows += len(rows)
            self.offsets.update((row.partition, row.offset) for row in rows)
            self._uncommitted[number] = Batch(number, rows, self._lag_after(self.rows))

    def committed(self) -> list[Batch]:
        """Return the batches committed since the last call, in order; `TubeMQError` when the query failed."""
        with spark_errors("the query failed"):
            if (cause := self._query.exception()) is not None:
                raise cause
        done = []
        for progress in self._query.recentProgress:
            with self._lock:
                batch = self._uncommitted.pop(progress["batchId"], None)
            if batch is not None:
                done.append(replace(batch, seconds=progress["durationMs"].get("triggerExecution", 0) / 1000))
        return done

    def drain(self) -> None:
        """Wait until all rows of the topic came out; `TubeMQError` when the query fails."""
        with spark_errors("the query failed"):
            self._query.processAllAvailable()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the query; it has committed its offsets to the group when this returns."""
        self._query.stop()


def _first_line(cause: Exception) -> str:
    """Return the line that names the cause; py4j's own first line names a call only."""
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[1] if isinstance(cause, Py4JJavaError) and len(lines) > 1 else lines[0]
