"""A batch write whose tasks fail once, in a process of its own, for Spark must be told at its start to try them again.

python -m tests.spark.retried_write '{"sink": {…}, "tasks": 2, "rows": 1000, "java": "-XX:…"}'

Task t writes rows with the value `t <number> ....` and the key `t <number % 3>`; its first try gives all of them out
before it fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    count = given["rows"]

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        list(batches)
        task, step = context.partitionId(), 100
        for start in range(0, count, step):
            numbers = range(start, min(count, start + step))
            values = [f"{task} {number} ".ljust(100, ".") for number in numbers]
            keys = [f"{task} {number % 3}" for number in numbers]
            yield pa.RecordBatch.from_pydict({"value": values, "key": keys})
        if context.attemptNumber() == 0:
            raise RuntimeError("the first try fails")

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "200")  # the sink has most rows when the try fails
        .getOrCreate()
    )
    frame = spark.range(0, given["tasks"], 1, given["tasks"]).mapInArrow(rows, "value string, key string")
    frame.write.format("tubemq").options(**given["sink"]).mode("append").save()


if __name__ == "__main__":
    main()
