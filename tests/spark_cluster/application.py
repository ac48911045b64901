# SPDX-License-Identifier: Apache-2.0
"""The Spark program of a scenario. It uses only the installed wheel and pyspark, and writes what it found as JSON into
a file of its folder, because its output may be in a container.

application.py FILE, with {"scenario": "batch", "spark": "spark://…", "tubemq": "host:port", "folder": "…", …} in it.
It is a file, because YARN takes two braces in an argument for its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType

import tubemq_spark
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.task_counts import task_counts

TOLD = "told.txt"
RESULT = "RESULT "
IDLE = "no executor is left"
_PATIENCE = 240.0  # seconds
_POSITION = 28  # bytes of the index for each message

# The moments of the scenario with a repeated stage, as files.
STORED = "stored"  # tasks 0 and 1 have stored some rows
KILLED = "killed"  # task 1 has killed its executor
STORED_AGAIN = "stored-again"  # the second attempt of task 0 has stored rows
ENDED = "ended"  # the first attempt of task 0 has ended

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
        return self._run(self._to_topic(frame))

    def _to_topic(self, frame: DataFrame, **options: str) -> DataStreamWriter:
        sink = {"tubemq.master": self._given["tubemq"], "topic": self._given["output"], "effectivelyOnce": "true"}
        return frame.select("value").writeStream.format("tubemq").options(**sink, **options)

    def rows_of(self, frame: DataFrame) -> Found:
        """Write a stream to files until nothing is left, and return what the files have."""
        return {**self._run(self._to_files(frame)), **counts(self.files())}

    def files(self) -> DataFrame:
        return self.spark.read.schema("value BINARY").parquet(str(self._folder / "rows"))

    def _to_files(self, frame: DataFrame) -> DataStreamWriter:
        return frame.select("value").writeStream.format("parquet").option("path", str(self._folder / "rows"))

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()

    def _run(self, writer: DataStreamWriter) -> Found:
        query = self._start(writer)
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

    def repeat_stage(self) -> Found:
        """Spark repeats the stage that writes the second micro-batch, because an executor dies with its shuffle files.

        The first attempts of tasks 0 and 1 give out a part of their rows and wait. When these are stored, task 1 kills
        its executor. Then the remaining tasks cannot fetch their rows, and Spark repeats the stage, in which the
        attempts have number 0 again. When the second attempt of task 0 has stored rows, the first one goes on. It must
        end before the stage does.
        """
        wait_for(lambda: self._executors() == 2, "both executors")  # each is to have shuffle files
        half = self._given["count"] // 2
        frame = self.stream(maxOffsetsPerTrigger=str(half)).select("value").repartition(_WRITERS, "value")
        written = frame.mapInArrow(disturbed(self._folder, batch=1), "value BINARY")
        each_at_once = {"tubemq.producer.maxInFlightBytes": "1"}
        query = self._start(self._to_topic(written, **each_at_once))

        def parts(name: str) -> int:
            """Return how many rows the first attempts of both tasks have given out; too many if it is unknown."""
            told = [self._folder / f"{name}-{task}" for task in range(2)]
            return sum(int(one.read_text() or half) if one.exists() else half for one in told)

        def reach(is_so: Callable[[], bool], moment: str) -> None:
            wait_for(lambda: not query.isActive or is_so(), moment)
            if (problem := query.exception()) is not None:
                raise problem
            (self._folder / moment).touch()

        reach(lambda: self._stored() >= half + parts("surely"), STORED)
        reach(lambda: self._stored() > half + parts("at-most"), STORED_AGAIN)
        reach(lambda: self._end_of_first_attempt(query) is not None, ENDED)
        assert query.awaitTermination(int(_PATIENCE)), query.status
        end = self._end_of_first_attempt(query)
        return {"repeated": end is not None, "fenced": end is not None and "FencedError" in end}

    def _stored(self) -> int:
        """Return how many messages the output topic has. Its partitions share a store on each broker."""
        options = {**self.options(), "subscribe": self._given["output"], "tubemq.group": "watchers"}
        source = TubeMQDataSource({**options, "startingoffsets": "earliest", "headsintervalms": "0"})
        reader = source.streamReader(source.schema())
        try:
            ends = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["offsets"][self._given["output"]]
        finally:
            reader.stop()
        return sum({key.split(":")[0]: int(end) for key, end in ends.items()}.values()) // _POSITION

    def _end_of_first_attempt(self, query: StreamingQuery) -> str | None:
        """Return how task 0 of the first attempt of the repeated stage that writes has ended: its error, or its status.

        None if Spark has repeated no stage, or the task runs.
        """
        context = self.spark.sparkContext
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
        infos = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        repeated = [info.stageId for info in infos if info is not None and info.currentAttemptId > 0]
        if not repeated:
            return None
        tasks = store.taskList(max(repeated), 0, 100)  # the stage that writes comes after the one that reads
        (first,) = [one for one in map(tasks.apply, range(tasks.size())) if one.index() == 0]
        if first.errorMessage().isDefined():
            return str(first.errorMessage().get())
        return None if first.status() == "RUNNING" else str(first.status())

    def ship(self) -> Found:
        """Read and copy with executors that lack the package, and check that they do."""
        tubemq_spark.register(self.spark, ship=True)
        found = {**counts(self.batch()), **self.copy(self.stream(maxOffsetsPerTrigger="1000"))}
        rows = tubemq_spark.check(self.spark, self.options())
        package = {row.detail for row in rows if row.check == "tubemq-spark" and row.place.startswith("executor")}
        travels = package == {f"{tubemq_spark.__version__} travels from the driver"}
        failed = [row for row in rows if row.state == "failed"]
        return {**found, "travels": travels and not failed, "counted": task_counts().get("fetches", 0) > 0}

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


_WRITERS = 4  # tasks of the repeated stage


def disturbed(folder: Path, batch: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function of tasks that returns their rows, and disturbs one micro-batch: see `repeat_stage`."""

    def wait(moment: str) -> None:
        wait_for((folder / moment).exists, moment)

    def kill_executor() -> None:
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_text()
        os.kill(executor, signal.SIGKILL)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = list(batches)
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        if context.getLocalProperty("streaming.sql.batchId") != str(batch):
            yield from given
            return
        is_first = not (folder / KILLED).exists()
        values = pa.Table.from_batches(given)
        part, step = len(values) // 2, 5
        for start in range(0, part, step):  # what is between the processes of a task may keep the last ones
            yield from values.slice(start, min(step, part - start)).to_batches()
        if is_first:
            (folder / f"at-most-{task}").write_text(str(part))
            (folder / f"surely-{task}").write_text(str(part - 2 * step))
            wait(STORED)
            if task == 1:
                (folder / KILLED).touch()
                kill_executor()
            wait(STORED_AGAIN)
        elif task == _WRITERS - 1:
            wait(ENDED)
        yield from values.slice(part).to_batches()

    return rows


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
