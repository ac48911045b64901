# SPDX-License-Identifier: Apache-2.0
"""The Spark session of the benchmarks, and what it costs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import proc
from benchmarks.rounds import Sample, timed


@contextmanager
def spark_session(cores: int = 2, jars: Sequence[str] = ()) -> Iterator[SparkSession]:
    """Start Spark in this machine's processes. Sessions of one process that need jars must be the first ones."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "120s")  # for a machine that is busy
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def jvm(spark: SparkSession) -> int:
    """Return the process id of Spark's JVM, the parent of the Python workers' daemons."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


class Meter:
    """Measures what queries take: time, and CPU time of the tasks' Python workers and of the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = jvm(spark)

    def timed(self, count: int, work: Callable[[], object]) -> Sample:
        before, jvm_before = proc.task_cpu_seconds(self._jvm), proc.cpu_seconds(self._jvm)
        sample = timed(count, work)
        after, jvm_after = proc.task_cpu_seconds(self._jvm), proc.cpu_seconds(self._jvm)
        used = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
        return replace(sample, cpu_seconds=used if after else None, jvm_cpu_seconds=jvm_after - jvm_before)

    def timed_stream(self, count: int, work: Callable[[], float]) -> Sample:
        """The same for a streaming query, whose ``work`` returns the seconds of its micro-batches."""
        batches: list[float] = []
        whole = self.timed(count, lambda: batches.append(work()))
        return replace(whole, seconds=batches[0], start_seconds=whole.seconds - batches[0])

    def peak_memory(self) -> float:
        """Return the largest peak of a worker that lives, in MB."""
        return max((proc.peak_memory(pid) for pid in proc.task_workers(self._jvm)), default=0.0)


def drain_batch(spark: SparkSession, source: str, options: Mapping[str, str], columns: str = "") -> None:
    """Read everything there is; `columns` are those of a schema, or all."""
    reader = spark.read.format(source).options(**options)
    (reader.schema(columns) if columns else reader).load().write.format("noop").mode("overwrite").save()


def drain_stream(spark: SparkSession, source: str, options: Mapping[str, str], count: int) -> float:
    """Read everything there is in a new query. Return the seconds of its micro-batches."""
    with tempfile.TemporaryDirectory(prefix="bench-") as checkpoint:
        stream = spark.readStream.format(source).options(**options, startingOffsets="earliest").load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        done = query.recentProgress
    came = sum(progress["numInputRows"] for progress in done)
    if came != count:
        raise RuntimeError(f"a stream of {source} read {came} rows, not {count}")
    return float(sum(progress["durationMs"]["triggerExecution"] for progress in done)) / 1000
