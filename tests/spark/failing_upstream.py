# SPDX-License-Identifier: Apache-2.0
"""A query whose rows fail once before they reach the sink, in a process of its own: Spark then attempts the task again.

python -m tests.spark.failing_upstream '{"sink": {…}, "folder": "…", "attempts": 4, "java": "-XX:…"}'

It writes the lines of the files in folder `in`. The task of partition 0 fails behind its last row, in its first
attempt. The status is not 0 if the query fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])

    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and not (folder / "failed").exists():
            (folder / "failed").touch()
            raise RuntimeError("what comes before the sink fails")

    spark = (
        SparkSession.builder.master(f"local[2,{given['attempts']}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .getOrCreate()
    )
    rows = spark.readStream.text(str(folder / "in")).selectExpr("CAST(value AS BINARY) value")
    writer = rows.mapInArrow(failing_once, rows.schema).writeStream.format("tubemq").options(**given["sink"])
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
