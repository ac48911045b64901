# SPDX-License-Identifier: Apache-2.0
"""A query from topics into a topic, in a process of its own that tests kill.

python -m tests.spark.endless_copy '{"source": {…}, "columns": ["value", …], "sink": {…}, "java": "", "reuse": true}'

A query that ends is started again. Each line on standard input stops it; the end of the input ends the program.
"""

from __future__ import annotations

import json
import select
import sys

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2,4]")  # up to four attempts of a task
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", given["java"])
        .config("spark.python.worker.reuse", str(given["reuse"]).lower())
        .getOrCreate()
    )
    frame = spark.readStream.format("tubemq").options(**given["source"]).load().selectExpr(*given["columns"])
    writer = frame.writeStream.format("tubemq").options(**given["sink"])
    query = writer.start()
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable:
            if not sys.stdin.readline():
                break
            query.stop()
        if not query.isActive:
            query = writer.start()
    query.stop()


if __name__ == "__main__":
    main()
