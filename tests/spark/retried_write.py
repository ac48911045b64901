# SPDX-License-Identifier: Apache-2.0
"""A batch write whose tasks fail once. It needs a process of its own, because Spark gets task retries at its start.

python -m tests.spark.retried_write '{"sink": {…}, "tasks": 2, "rows": 1000, "gate": "file", "java": "-XX:…"}'

Task t writes rows with the value `t <number> ....` and the key `t <number % 3>`; its first try gives all of them out,
and fails when the file `gate` is there: by then some are to be stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    count, gate = given["rows"], Path(given["gate"])

    def wait_for_gate(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        list(batches)
        task, step = context.partitionId(), 100
        is_to_fail = context.attemptNumber() == 0
        for start in range(0, count, step):
            if is_to_fail and start > count / 2:  # the sink sends its rows when it gets more
                wait_for_gate(2)
            numbers = range(start, min(count, start + step))
            values = [f"{task} {number} ".ljust(1000, ".") for number in numbers]
            keys = [f"{task} {number % 3}" for number in numbers]
            yield pa.RecordBatch.from_pydict({"value": values, "key": keys})
        if is_to_fail:
            wait_for_gate(300)
            raise RuntimeError("the first try fails")

    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "200")  # so that the sink has most rows by then
        .getOrCreate()
    )
    frame = spark.range(0, given["tasks"], 1, given["tasks"]).mapInArrow(rows, "value string, key string")
    frame.write.format("tubemq").options(**given["sink"]).mode("append").save()


if __name__ == "__main__":
    main()
