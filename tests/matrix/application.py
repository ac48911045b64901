# SPDX-License-Identifier: Apache-2.0
"""A Spark application of its own: reads and copies a topic with a registered source. It prints what it found as JSON.

    application.py MASTER FOLDER [discovered]

With `discovered`, Spark first has to find the source by itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(master: str, folder: str, *discovered: str) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    options = {"tubemq.master": master, "tubemq.group": "application", "subscribe": "from"}
    found = {"discovered": -1}
    if discovered:
        found["discovered"] = spark.read.format("tubemq").options(**options).load().count()

    import tubemq_spark

    for _ in range(2):
        tubemq_spark.register(spark)
    found["batch"] = spark.read.format("tubemq").options(**options).load().count()
    query = (
        spark.readStream.format("tubemq")
        .options(**options, startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("tubemq")
        .options(**{"tubemq.master": master, "topic": "into", "checkpointLocation": str(Path(folder) / "checkpoint")})
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240), query.status
    problems = [result for result in tubemq_spark.check(spark, options, show=False) if result.state == "failed"]
    print("FOUND", json.dumps({**found, "problems": problems}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
