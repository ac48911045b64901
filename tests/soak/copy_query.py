# SPDX-License-Identifier: Apache-2.0
"""A query that copies the input with `effectivelyOnce`, in a process that a run kills and starts again.

    python -m tests.soak.copy_query '{"source": {…}, "sink": {…}, "local": "folder", "seconds": 4, …}'

If the query ends by itself, the program notes why and starts it again. The end of standard input ends the program.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark_jvm import quick_start

# A heap of one size and few retained results: Spark fills both within minutes, and a leak is what comes on top.
_HEAP = "512m"
_RETAINED = {
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "20",
}


def session(given: dict[str, Any]) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2,4]")  # up to four attempts of a task
        .config("spark.driver.memory", _HEAP)
        .config("spark.driver.extraJavaOptions", f"{quick_start()} -Xms{_HEAP}")
        .config("spark.local.dir", given["local"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in _RETAINED.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    frame = spark.readStream.format("tubemq").options(**given["source"]).load().select("value")
    writer = frame.writeStream.format("tubemq").options(**given["sink"])
    return writer.trigger(processingTime=f"{given['seconds']} seconds").start()


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session(given)
    query = start(spark, given)
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], 0.5)
        if readable and not sys.stdin.readline():
            break
        if not query.isActive:
            with open(given["ends"], "a") as ends:
                print(json.dumps({"at": time.time(), "error": str(query.exception())}), file=ends)
            query = start(spark, given)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
