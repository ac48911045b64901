# SPDX-License-Identifier: Apache-2.0
"""The Spark program of a scenario. It uses only the installed wheel and pyspark, and writes what it found as JSON into
a file of its folder, because its output may be in a container.

application.py FILE, with {"scenario": "batch", "spark": "spark://…", "tubemq": "host:port", "folder": "…", …} in it.
It is a file, because YARN takes two braces in an argument for its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType

TOLD = "told.txt"
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
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")  # so rows reach a sink one after the other
        )
        for name, value in given["config"].items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def tell(self, line: str) -> None:
        with open(self._folder / TOLD, "a", encoding="utf-8") as told:
            told.write(f"{line}\n")

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
        return self.spark.read.schema("value BINARY").parquet(str(self._folder / "rows"))

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
        return counts(self.batch().select(slow("value").alias("value")))

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
        """Spark reads the two sides as two streams, so each has a group of its own."""
        sides = (self.stream(**{"tubemq.group": f"side_{side}"}).select("value").alias(side) for side in "ab")
        one, other = sides
        return self.rows_of(one.join(other, "value"))

    def write(self) -> Found:
        numbers = self.spark.range(0, self._given["count"], 1, 4).selectExpr("CAST(id AS STRING) AS value")
        sink = {"tubemq.master": self._given["tubemq"], "topic": self._given["output"]}
        numbers.write.format("tubemq").options(**sink).mode("append").save()
        return {}

    def copy_stream(self) -> Found:
        return self.copy(self.stream(maxOffsetsPerTrigger="1000"))

    def copy_slowly(self) -> Found:
        return self.copy(self.stream().select(slow("value").alias("value")))

    def read_and_copy(self) -> Found:
        return {**counts(self.batch()), **self.copy(self.stream())}

    def speculate(self) -> Found:
        """The first attempt of one task hangs; Spark starts a second one, which ends first."""
        found = {}
        for name, read in (("batch", self._batch_that_hangs), ("stream", self._stream_that_hangs)):
            (self._folder / name).mkdir()
            found[name] = read(hanging(self._folder / name))
            found[name]["again"] = len(list((self._folder / name).glob("again-*")))
        batch, stream = found.values()
        is_same = all(batch[name] == stream[name] for name in ("rows", "distinct", "sum"))
        return {**batch, "same": is_same, "speculated": batch["again"] > 0 and stream["again"] > 0}

    def _batch_that_hangs(self, hang: Any) -> Found:
        return counts(self.batch().select(hang("value").alias("value")))

    def _stream_that_hangs(self, hang: Any) -> Found:
        return self.rows_of(self.stream().select(hang("value").alias("value")))

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
            return bool(sum(progress["numInputRows"] for progress in query.recentProgress) >= rows)

        wait_for(lambda: has(half), "the first half")
        most = self._executors()
        wait_for(lambda: self._executors() == 0, IDLE)
        self.tell(IDLE)
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


@udf(BinaryType(), useArrow=False)
def slow(value: bytes) -> bytes:
    """Return the value so late that a process can be killed meanwhile."""
    time.sleep(0.02)
    return value


def hanging(folder: Path) -> Any:
    """Return a function of a column that returns its values. The first attempt of task 0 hangs once; a later attempt
    leaves a file in `folder`."""

    @udf(BinaryType(), useArrow=False)
    def hang(value: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        if context.partitionId() == 0 and attempt not in seen:
            seen.append(attempt)
            if context.attemptNumber() == 0:
                time.sleep(20)
            else:
                (folder / f"again-{attempt}").touch()
        return value

    seen: list[int] = []
    return hang


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s: {what}"
        time.sleep(0.3)


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    application = Application(given)
    found = getattr(application, given["program"])()
    application.tell(RESULT + json.dumps(found))
    application.spark.stop()


if __name__ == "__main__":
    main()
