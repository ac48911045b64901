# SPDX-License-Identifier: Apache-2.0
"""The Spark program of a scenario. It uses only the installed wheel and pyspark, and prints what it found as JSON.

application.py '{"scenario": "batch", "spark": "spark://…", "tubemq": "host:port", "topic": "…", "folder": "…", …}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

RESULT = "RESULT "
IDLE = "no executor is left"
_PATIENCE = 240.0  # seconds

Found = dict[str, Any]


class Application:
    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._folder = Path(given["folder"])
        builder = (
            SparkSession.builder.master(given["spark"])
            .appName(given["scenario"])
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.executor.memory", "600m")
            .config("spark.sql.shuffle.partitions", "2")
        )
        for name, value in given["config"].items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    # -- frames -----------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, str]:
        group = f"group_{self._given['scenario']}"
        return {"tubemq.master": self._given["tubemq"], "tubemq.group": group, "subscribe": self._given["topic"]}

    def batch(self) -> DataFrame:
        return self.spark.read.format("tubemq").options(**self.options()).load()

    def stream(self, **options: str) -> DataFrame:
        given = {**self.options(), "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("tubemq").options(**given).load()

    # -- outputs ----------------------------------------------------------------------------------------------------

    def copy(self, frame: DataFrame) -> Found:
        """Write the frame to the output topic with `effectivelyOnce`, until nothing is left."""
        writer = frame.select("value").writeStream.format("tubemq")
        sink = {"tubemq.master": self._given["tubemq"], "topic": self._given["output"], "effectivelyOnce": "true"}
        return self._run(writer.options(**sink))

    def rows_of(self, frame: DataFrame) -> Found:
        """Write a stream to files until nothing is left, and return what the files have."""
        return {**self._run(self._to_files(frame)), **counts(self.files())}

    def files(self) -> DataFrame:
        return self.spark.read.parquet(str(self._folder / "rows"))

    def _to_files(self, frame: DataFrame) -> DataStreamWriter:
        return frame.select("value").writeStream.format("parquet").option("path", str(self._folder / "rows"))

    def _run(self, writer: DataStreamWriter) -> Found:
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(int(_PATIENCE)), query.status
        return {"batches": len(list((self._folder / "checkpoint" / "commits").glob("[0-9]*")))}

    # -- scenarios --------------------------------------------------------------------------------------------------

    def read_batch(self) -> Found:
        return counts(self.batch())

    def read_batch_slowly(self) -> Found:
        return counts(self.batch().select("value").mapInArrow(slowly, "value binary"))

    def union(self) -> Found:
        frame = self.batch()
        return counts(frame.union(frame))

    def join(self) -> Found:
        frame = self.batch().select("value")
        return counts(frame.alias("a").join(frame.alias("b"), "value"))

    def read_stream(self) -> Found:
        return self.rows_of(self.stream(maxOffsetsPerTrigger="1000"))

    def stream_union(self) -> Found:
        frame = self.stream(maxOffsetsPerTrigger="1000")
        return self.rows_of(frame.union(frame))

    def stream_join(self) -> Found:
        frame = self.stream(maxOffsetsPerTrigger="1000").select("value")
        return self.rows_of(frame.alias("a").join(frame.alias("b"), "value"))

    def write(self) -> Found:
        numbers = self.spark.range(0, self._given["count"], 1, 4).selectExpr("CAST(id AS STRING) AS value")
        sink = {"tubemq.master": self._given["tubemq"], "topic": self._given["output"]}
        numbers.write.format("tubemq").options(**sink).mode("append").save()
        return {}

    def copy_stream(self) -> Found:
        return self.copy(self.stream(maxOffsetsPerTrigger="1000"))

    def copy_slowly(self) -> Found:
        return self.copy(self.stream().select("value").mapInArrow(slowly, "value binary"))

    def read_and_copy(self) -> Found:
        return {**counts(self.batch()), **self.copy(self.stream())}

    def speculate(self) -> Found:
        """The first attempt of one task hangs; Spark starts a second one, which ends first."""
        frame = self.batch().select("value").mapInArrow(hanging, "value binary")
        found = counts(frame)
        stream = self.stream().select("value").mapInArrow(hanging, "value binary")
        return {**found, "stream": self.rows_of(stream)["rows"]}

    def scale(self) -> Found:
        """Wait until the idle query has no executor; then rows arrive, and Spark starts executors again."""
        query = (
            self._to_files(self.stream())
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        half, count = self._given["count"] // 2, self._given["count"]

        def has(rows: int) -> bool:
            if (problem := query.exception()) is not None:
                raise problem
            return (self._folder / "rows" / "_spark_metadata").exists() and self.files().count() >= rows

        wait_for(lambda: has(half), "the first half")
        most = self._executors()
        wait_for(lambda: self._executors() == 0, IDLE)
        print(IDLE, flush=True)
        # `has` would itself start executors, so the query's progress tells when it has read more.
        wait_for(lambda: self._executors() > 0, "executors for the second half")
        wait_for(lambda: has(count), "the second half")
        query.stop()
        return {**counts(self.files()), "started": most > 0}

    def _executors(self) -> int:
        status = self.spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        return int(status.size()) - 1  # the driver is one


def counts(frame: DataFrame) -> Found:
    """Return number, distinct number and sum of the values, which are numbers as text."""
    numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    row = numbers.selectExpr("count(*) AS rows", "count(DISTINCT number) AS distinct", "sum(number) AS sum").first()
    assert row is not None
    return {"rows": row["rows"], "distinct": row["distinct"], "sum": row["sum"]}


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows so slowly that a process can be killed meanwhile."""
    for batch in batches:
        for start in range(0, batch.num_rows, 20):
            time.sleep(0.2)
            yield batch.slice(start, 20)


def hanging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    hangs = context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        if hangs:
            time.sleep(20)
        yield batch


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}"
        time.sleep(0.3)


def main() -> None:
    given = json.loads(sys.argv[1])
    application = Application(given)
    found = getattr(application, given["program"])()
    print(RESULT + json.dumps(found), flush=True)
    application.spark.stop()


if __name__ == "__main__":
    main()
