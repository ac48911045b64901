# SPDX-License-Identifier: Apache-2.0
"""A query from topics into a topic, in a process of its own that tests and the soak kill.

python -m tests.spark.endless_copy '{"source": {…}, "columns": ["value", …], "sink": {…}, "config": {…}, "seconds": 0}'

A query that ends is started again; its error goes to the file `ends`, if that is given. Each line on standard input
stops it; the end of the input ends the program.
"""

from __future__ import annotations

import json
import select
import sys
import time

from pyspark.sql import SparkSession


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]")  # up to four attempts of a task
    for name, value in {"spark.ui.enabled": "false", **given["config"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.format("tubemq").options(**given["source"]).load().selectExpr(*given["columns"])
    writer = frame.writeStream.format("tubemq").options(**given["sink"])
    writer = writer.trigger(processingTime=f"{given['seconds']} seconds")
    query = writer.start()
    while True:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable:
            if not sys.stdin.readline():
                break
            query.stop()
        if not query.isActive:
            if "ends" in given:
                with open(given["ends"], "a") as ends:
                    print(json.dumps({"at": time.time(), "error": str(query.exception())}), file=ends)
            query = writer.start()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
